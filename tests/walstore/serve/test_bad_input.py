"""Bad clients: what they send ends their own connection at most; other clients go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.connecting import try_once
from tests.effort import first_seed
from tests.local import SMALL, read_values
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.serve.certificates import make_certificate
from tests.walstore.serve.served import Served, serving
from walstore import (
    AccessDeniedError,
    FormatVersionError,
    InvalidSettingsError,
    LimitExceededError,
    LogNotFoundError,
    OutcomeUnknownError,
    RemoteWal,
    StorageUnavailableError,
    Wal,
    WalError,
    WalLockedError,
    WalStore,
    connect,
)
from walstore.net.wire.errors import pack_error, unpack_error
from walstore.net.wire.message import (
    HEADER,
    NO_REQUEST,
    PREAMBLE,
    VERSION,
    Decoder,
    Kind,
    Message,
    encode,
)
from walstore.net.wire.verbs import FLUSH, VERBS, Verb
from walstore.serve import Server, ServeSettings
from walstore.testing import ManualClock

GREETING: dict[str, Any] = {"version": VERSION, "token": None, "log": None}
HELLO = b"".join(encode(Kind.HELLO, 1, GREETING))
QUICK = ServeSettings(stall_seconds=RUNS_OUT_SECONDS)


class Raw:
    """A client that sends bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = Decoder(most_bytes=1 << 30)
        self.messages: list[Message] = []

    def send(self, *pieces: bytes | memoryview) -> None:
        self.writer.writelines(pieces)

    def request(self, kind: int, number: int, head: Any, payload: bytes = b"") -> None:
        self.send(*encode(kind, number, head, [payload] if payload else []))  # type: ignore[arg-type]

    async def answer(self) -> Message:
        """Return the next answer, and pass over what a server says only to be heard."""
        while True:
            while not self.messages:
                data = await self.reader.read(1 << 16)
                assert data, "the server closed the connection"
                self.messages += self.decoder.feed(data)
            message = self.messages.pop(0)
            if (message.kind, message.id, message.head) != (Kind.DONE, NO_REQUEST, None):
                return message

    async def end(self) -> list[Message]:
        """Return what the server still says before it closes the connection."""
        while data := await self.reader.read(1 << 16):
            self.messages += self.decoder.feed(data)
        return self.messages


@asynccontextmanager
async def raw(served: Served, *, greets: bool = True) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_unix_connection(served.address.removeprefix("unix://"))
    client = Raw(reader, writer)
    try:
        if greets:
            client.send(PREAMBLE, HELLO)
            assert (await client.answer()).kind == Kind.DONE
        yield client
    finally:
        writer.transport.abort()


async def test_bytes_that_are_no_message_end_the_connection(
    served: Served, remote: RemoteWal
) -> None:
    for why, wrong in (
        ("received bytes of another protocol: b'GET /", b"GET / HTTP/1.1\r\n\r\n"),
        ("received bytes of TLS: ", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)),
        ("version 9", PREAMBLE[:-1] + b"\x09" + HELLO),
        ("greeting", PREAMBLE + b"".join(encode(Kind.HELLO, 1, ["no"]))),
        *(
            ("an epoch", PREAMBLE + b"".join(encode(Kind.HELLO, 1, {**GREETING, "after": after})))
            for after in (-1, True, "1", None)
        ),
        *(
            ("a version that", PREAMBLE + b"".join(encode(Kind.HELLO, 1, {**GREETING, "version": it})))
            for it in ("1", True, 1.0, None)
        ),
        ("a message of", PREAMBLE + HEADER.pack(1 << 31, 1, 0, Kind.HELLO)),
        ("a head of", PREAMBLE + HEADER.pack(100, 1, 99, Kind.HELLO) + bytes(200)),
        ("not msgpack", PREAMBLE + HEADER.pack(10, 1, 1, Kind.HELLO) + b"\xc1"),
        ("kind 77", PREAMBLE + HELLO + b"".join(encode(77, 2, None))),  # type: ignore[arg-type]
        ("second greeting", PREAMBLE + HELLO + HELLO),
    ):  # fmt: skip
        with case(why):
            async with raw(served, greets=False) as client:
                client.send(wrong)
                said = await asyncio.wait_for(client.end(), 60)
                assert why in str(said[-1].head)
    assert await remote.append(b"well") == 1


async def test_numbers_of_more_than_64_bits(served: Served, remote: RemoteWal) -> None:
    """They raise what they raise of a log in this process, though no message has room for them."""
    await remote.append(b"v")
    seen = await remote.cursor("seen")
    for number in (1 << 64, 1 << 80, -(1 << 80)):
        for name, ask in (
            ("timestamp_at", lambda log, at=number: log.timestamp_at(at)),
            ("wait_durable", lambda log, at=number: log.wait_durable(at)),
            ("expect_offset", lambda log, at=number: log.append_many([b"v"], expect_offset=at)),
            ("timestamp_us", lambda log, at=number: log.append(b"v", timestamp_us=at)),
            ("lease", lambda log, at=number: log.cursor("c", lease_seconds=at)),
            ("place", lambda log, at=number: log.cursor("c", start=abs(at))),
            ("group", lambda log, at=number: entered(log.group("g", start=abs(at)))),
            ("trim", lambda log, at=number: log.trim(abs(at))),
        ):
            with case(name, number):
                raised = [await outcome(ask(log)) for log in (served.wal, remote)]
                assert type(raised[0]) is type(raised[1])
        assert await remote.offset_at(number) == await served.wal.offset_at(number)
        with pytest.raises((WalError, ValueError)):
            await seen.commit(number)
    assert [one.name for one in await remote.cursors()] == ["seen"]
    assert (await remote.groups(), remote.head) == ([], 1)


async def entered(group: Any) -> None:
    async with group:
        pass


async def outcome(asking: Awaitable[object]) -> Exception:
    with pytest.raises((WalError, ValueError)) as caught:
        await asking
    return caught.value


async def test_refusals_name_what_the_protocol_has_and_nothing_of_the_program(
    served: Served,
) -> None:
    requests: list[tuple[Kind, Any]] = [
        (Kind.CALL, [name, arguments])
        for name in VERBS
        for arguments in ([], [None] * 9, ["fetch", "g", None, {}, 1], [{}, [], 1], [[], {}])
        if name != "wait_durable"
    ]
    requests += [(Kind.APPEND, [1]), (Kind.APPEND, None), (Kind.READ, [1]), (Kind.CALL, {})]
    async with raw(served) as client:
        for number, (kind, head) in enumerate(requests, 2):
            with case(head):
                client.request(kind, number, head)
                answer = await client.answer()
                if answer.kind == Kind.FAILED:
                    said = str(unpack_error(answer.head))
                    for word in (
                        "()",
                        " _",
                        "._",
                        "positional",
                        "unhashable",
                        "object",
                        "attribute",
                    ):
                        assert word not in said, said
        client.request(Kind.CALL, 1000, ["fence", ["me"]])
        assert "it takes owner, register" in str(unpack_error((await client.answer()).head))


async def test_requests_that_make_no_sense_are_refused_one_by_one(served: Served) -> None:
    async with raw(served) as client:
        for number, (name, arguments) in enumerate(
            (
                ("no such call", []),
                ("trim", []),
                ("trim", ["x"]),
                ("trim", [1, 2, 3]),
                ("open_stream", ["x" * 100_000, {}]),
                ("open_stream", [7, {}]),
                ("open_stream", ["s", {"a": 1}]),
                ("open_cursor", ["../x", "earliest", None]),
                ("open_cursor", ["a\0b", "earliest", None]),
                ("open_cursor", ["c", "nowhere", None]),
                ("open_cursor", ["c", "earliest", float("nan")]),
                ("move_cursor", ["c", [1, 1, b"x", 0, 0, 0, ""], b"short", False, "commit", 1]),
                ("offset_at", [None]),
                ("timestamp_at", [-5]),
                ("wait_durable", [0.5, "disk"]),
                ("wait_durable", [1, ["disk"]]),
                ("fence", ["", ""]),
                ("last_sequence", [{}]),
                ("append_group", ["disk", b"", [None] * 4, [None] * 6]),
                ("append_group", ["disk", b"\0\0\0\0", [1, 2, None, 4], [None] * 6]),
                (
                    "append_group",
                    ["disk", b"\0\0\0\0", [None] * 4, [None, 3, None, None, None, None]],
                ),
                (
                    "append_group",
                    ["disk", b"\0\0\0\0", [None] * 4, [None, None, None, "p", "1", None]],
                ),
                ("add", [99, b"", None]),
                ("commit", [99, {}]),
                ("begin", [1, "disk", [None, None, None, 7, None, None]]),
            ),
            start=2,
        ):
            with case(name, arguments):
                client.request(Kind.CALL, number, [name, arguments])
                found = await client.answer()
                assert (found.kind, found.id) == (Kind.FAILED, number)
                assert found.head[0] != "OutcomeUnknownError", found.head
        client.request(Kind.CALL, 100, ["refresh", []])
        assert (await client.answer()).kind == Kind.DONE


async def test_requests_of_a_wrong_shape_are_refused_one_by_one(served: Served) -> None:
    """The connection goes on: others wait for their answers on it."""
    one = b"\x01\0\0\0"
    state = [1, 1, bytes(8), 0, 0, 0, ""]
    async with raw(served) as client:
        client.request(Kind.READ, 2, [1, None, 1, 30, "durable"])
        for number, (why, kind, head, payload) in enumerate(
            (
                ("a call", Kind.CALL, 7, b""),
                ("an append", Kind.APPEND, [1, 2], b""),
                ("sizes", Kind.APPEND, [None, b"abc", None], b""),
                ("payload", Kind.APPEND, [None, b"\x05\0\0\0", None], b"v"),
                ("options", Kind.APPEND, [None, one, [[]] * 4], b"v"),
                ("headers", Kind.APPEND, [None, one, [None, None, [b"\xc1"], None]], b"v"),
                ("a read", Kind.READ, ["1"], b""),
                ("a cursor", Kind.CALL, ["move_cursor", ["c", "none", bytes(8), False, "commit", 1]], b""),
                ("a cursor", Kind.CALL, ["move_cursor", ["c", state, bytes(8), False, "jump", 1]], b""),
                ("a cursor", Kind.CALL, ["move_cursor", ["c", state, None, False, "commit", 1]], b""),
                ("a cursor", Kind.CALL, ["move_cursor", ["c", state, [1], False, "commit", 1]], b""),
                ("a group", Kind.CALL, ["group", ["open", "g", []]], b""),
                ("conditions", Kind.CALL, ["begin", [1, "disk", []]], b""),
                ("conditions", Kind.CALL, ["begin", [1, "disk", [None] * 5]], b""),
                ("conditions", Kind.CALL, ["append_group", ["disk", b"\0\0\0\0", [None] * 4, []]], b""),
            ),
            start=3,
        ):  # fmt: skip
            with case(why):
                client.request(kind, number, head, payload)
                found = await client.answer()
                assert (found.kind, found.id, found.head[0]) == (Kind.FAILED, number, "ValueError")
                assert why in found.head[1]
        await served.wal.append(b"v")
        found = await client.answer()
        assert (found.kind, found.id) == (Kind.DONE, 2)


async def test_nothing_is_repeated_that_the_server_ended_the_connection_for(
    served: Served, remote: RemoteWal
) -> None:
    """Such a request would end every connection anew, and those of others with it."""
    wrong = remote.client.send(Verb("none", kind=Kind.GOODBYE))
    waiting = asyncio.create_task(remote.client.call(FLUSH))
    with pytest.raises(StorageUnavailableError, match="received a request of kind 8"):
        await remote.client.wait(wrong)
    with contextlib.suppress(StorageUnavailableError):
        await waiting
    assert await remote.append(b"v") == 1
    assert remote.client.reconnects == 1


async def test_a_request_that_is_too_large_is_not_sent(served: Served, remote: RemoteWal) -> None:
    async with remote.group("g") as group:
        with pytest.raises(LimitExceededError, match="in parts"):
            await group.backend.settle(range(1 << 60, (1 << 60) + 2_000_000))
    assert await remote.append(b"v") == 1
    assert remote.client.reconnects == 0


async def test_requests_before_the_greeting_wait_for_it(served: Served) -> None:
    async with raw(served, greets=False) as client:
        client.send(PREAMBLE + HELLO + b"".join(encode(Kind.CALL, 2, ["flush", []])))
        assert (await client.answer()).id == 1
        assert (await client.answer()).id == 2


@pytest.mark.slow
async def test_a_client_that_stops_half_way_is_disconnected(tmp_path: Path) -> None:
    async with serving(tmp_path / "log", serve=QUICK) as served, served.connect() as remote:
        message = b"".join(encode(Kind.APPEND, 2, [None, b"\x05\0\0\0", None], [b"value"]))
        for sent in (
            b"",
            PREAMBLE[:4],
            PREAMBLE,
            PREAMBLE + HELLO[:7],
            PREAMBLE + HELLO + message[:20],
        ):
            with case(sent):
                async with raw(served, greets=False) as client:
                    client.send(sent)
                    await asyncio.wait_for(client.end(), 60)
        assert await remote.append(b"well") == 1  # an idle connection is left alone
        assert await read_values(served.wal) == [b"well"]


@pytest.mark.slow
async def test_a_client_that_takes_no_answers_is_read_no_more_and_then_dropped(
    tmp_path: Path,
) -> None:
    limits = ServeSettings(
        stall_seconds=RUNS_OUT_SECONDS, write_buffer_bytes=1 << 16, read_bytes=1 << 20
    )
    async with serving(tmp_path / "log", serve=limits) as served, served.connect() as remote:
        for _ in range(8):
            await served.wal.append_many([b"x" * 100_000] * 10)
        async with raw(served) as greedy:
            for number in range(2, 400):
                greedy.request(Kind.READ, number, [1, None, 1 << 20, 0, "durable"])
            await until(lambda: served.server.connections == 1)
        assert await remote.append(b"well") == 81


async def test_a_client_that_takes_nothing_of_one_answer_is_dropped(tmp_path: Path) -> None:
    """Though it is far from ``write_buffer_bytes``: a hundred such keep the room for answers from others."""
    limits = ServeSettings(stall_seconds=RUNS_OUT_SECONDS)
    async with serving(tmp_path / "log", serve=limits) as served, served.connect() as remote:
        await served.wal.append(bytes(2 << 20))
        async with raw(served) as idle:
            idle.request(Kind.READ, 2, [1, None, 4 << 20, 0, "durable"])
            await until(lambda: served.server.connections == 2)
            await until(lambda: served.server.connections == 1)
        assert await remote.append(b"well") == 2


@pytest.mark.slow
async def test_a_greedy_client_waits_for_its_own_requests(tmp_path: Path) -> None:
    limits = ServeSettings(credit_bytes=1 << 16)
    async with serving(tmp_path / "log", SMALL, serve=limits) as served, served.connect() as remote:
        async with raw(served) as greedy:
            value = b"x" * 30_000
            sizes = len(value).to_bytes(4, "little")
            for number in range(2, 202):
                greedy.request(Kind.APPEND, number, [None, sizes, None], value)
            assert await remote.append(b"small") > 0
            offsets = [(await greedy.answer()).head[0] for _ in range(200)]
        assert offsets == sorted(offsets)


async def test_a_request_that_is_cancelled_as_it_arrives_is_answered_and_costs_nothing(
    tmp_path: Path,
) -> None:
    """Both in one packet, as a client sends them that changes its mind at once; a thousand times.

    The answer is an error like any other: nil would say that the server takes nothing any more.
    """
    limits = ServeSettings(credit_bytes=1 << 16)
    async with serving(tmp_path / "log", serve=limits) as served, raw(served) as client:
        for number in range(2, 1002):
            read = encode(Kind.READ, number, [1, None, 1, 30, "durable"])
            client.send(*read, *encode(Kind.CANCEL, number, None))
            answer = await asyncio.wait_for(client.answer(), 60)
            assert (answer.kind, answer.id) == (Kind.FAILED, number)
            assert "cancelled" in str(unpack_error(answer.head))
        await asyncio.wait_for(served.server.aclose(), 60)


async def test_the_same_number_twice_ends_the_connection(served: Served) -> None:
    async with raw(served) as client:
        for _ in range(2):
            client.request(Kind.READ, 7, [1, None, 1, 30, "durable"])
        assert "two requests" in str((await asyncio.wait_for(client.end(), 60))[-1].head)


async def test_a_request_of_a_client_that_died_is_done_and_its_transaction_is_not(
    served: Served,
) -> None:
    sizes = (1).to_bytes(4, "little")
    async with raw(served) as client:
        client.request(Kind.CALL, 2, ["begin", [1, None, [None] * 6]])
        client.request(Kind.CALL, 3, ["add", [1, sizes, None]], b"t")
        client.request(Kind.APPEND, 4, ["disk", sizes, None], b"v")
        await client.writer.drain()
    await until(lambda: served.wal.statistics().transactions_rolled_back == 1)
    assert await read_values(served.wal) in ([b"v"], [])


async def test_too_many_transactions_and_connections(tmp_path: Path) -> None:
    limits = ServeSettings(transactions=2, connections=2)
    async with serving(tmp_path / "log", serve=limits) as served, served.connect() as remote:
        big = b"x" * (1 << 20)
        async with remote.transaction() as one, remote.transaction() as two:
            await one.append(big)
            await two.append(big)
            with pytest.raises(LimitExceededError):
                async with remote.transaction() as three:
                    await three.append(big)
        async with served.connect():
            with pytest.raises(StorageUnavailableError, match="too many connections"):
                await try_once(served.connect)
        assert await remote.append(b"v") == 3


async def test_only_who_has_the_token_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path / "log", token="secret") as served:
        for wrong in (None, "", "Secret", "secret ", "s" * 100_000):
            with case(wrong), pytest.raises(AccessDeniedError, match="token") as denied:
                await served.connect(token=wrong)
            assert not denied.value.retriable
        async with served.connect(token="secret") as remote:
            assert await remote.append(b"v") == 1


@pytest.mark.slow
async def test_tls_and_plain_do_not_mix(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with Wal.open(tmp_path / "log") as wal:
        async with Server.open(wal, tcp="127.0.0.1:0", tls=context, token="t") as server:
            port = server.addresses[0].port
            assert str(server.addresses[0]) == f"tls://127.0.0.1:{port}"
            async with connect(f"tls://localhost:{port}", tls=trusting, token="t") as remote:
                assert await remote.append(b"v") == 1
            with pytest.raises(AccessDeniedError, match="certificate"):
                await connect(f"tls://localhost:{port}")
            with pytest.raises(StorageUnavailableError, match="tls://"):
                await try_once(connect, f"tcp://127.0.0.1:{port}")
        async with Server.open(wal, tcp="127.0.0.1:0") as server:
            port = server.addresses[0].port
            async with connect(f"tcp://127.0.0.1:{port}") as remote:
                assert await remote.append(b"v") == 2
            with pytest.raises(AccessDeniedError):
                await connect(f"tls://localhost:{port}", tls=trusting)


async def test_places_that_may_not_be_served_or_reached(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        for wrong in (
            {},
            {"tcp": "0.0.0.0:0"},
            {"tcp": "[::]:0"},
            {"tcp": "example.com:80"},
            {"tcp": "127.0.0.1"},
            {"tcp": "127.0.0.1:99999"},
            {"tcp": ":80"},
            {"unix": "x" * 200},
            {"unix": "a\0b"},
            {"unix": "\ud800"},
            {"unix": tmp_path / "s", "token": ""},
            {"unix": tmp_path / "s", "token": "\udc80"},
        ):
            with case(wrong), pytest.raises(InvalidSettingsError):
                Server.open(wal, **wrong)
        with pytest.raises(TypeError, match="a token must be a str"):
            Server.open(wal, unix=tmp_path / "s", token=b"t")  # type: ignore[arg-type]
        for unreachable in (tmp_path / "none" / "s.sock", tmp_path):
            with case(unreachable), pytest.raises(StorageUnavailableError, match="cannot listen"):
                await Server.open(wal, unix=unreachable)
    for address in ("", "data/log", "http://x", "unix://", "tcp://x", "tcp://x:0", "tls://:1",
                    "unix:///a?log=x&log=y", "unix:///a?b=c", "tcp://u@h:1", "tcp://h:1/x", "tcp://a..b:1",
                    "tcp://\udc80:1", "unix:///\ud800", "unix:///a?log=\udc80"):  # fmt: skip
        with case(address), pytest.raises(InvalidSettingsError):
            connect(address)
    for bad in (b"unix:///a", None):
        with case(bad), pytest.raises(TypeError):
            connect(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingsError, match="two logs"):
        connect("unix:///a?log=x", log="y")
    for options in ({"log": "\udc80"}, {"token": "secret\udc80"}):
        with case(options), pytest.raises(InvalidSettingsError, match="surrogates") as refused:
            connect("unix:///a", **options)  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)
    for options in ({"log": 5}, {"log": b"a"}, {"token": 5}, {"token": b"t"}):
        with case(options), pytest.raises(TypeError, match="must be a str"):
            connect("unix:///a", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingsError, match="tls"):
        connect("tcp://example.com:1", token="t")
    with pytest.raises(StorageUnavailableError, match="walstore serve"):
        await try_once(connect, f"unix://{tmp_path}/none.sock")


async def test_a_second_server_is_refused_and_a_left_over_socket_replaced(
    served: Served, tmp_path: Path
) -> None:
    with pytest.raises(WalLockedError, match="serves it at unix://") as locked:
        await Wal.open(served.wal.path)
    assert served.address in str(locked.value)
    socket = Path(served.address.removeprefix("unix://"))
    async with Wal.open(tmp_path / "other") as other:
        with pytest.raises(StorageUnavailableError, match="in use"):
            await Server.open(other, unix=socket)
    left = tmp_path / "left.sock"
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(left))
    plain = tmp_path / "plain"
    plain.write_text("no socket")
    async with Wal.open(tmp_path / "other") as other:
        async with Server.open(other, unix=left) as server:
            assert left.stat().st_mode & 0o777 == 0o600
            async with connect(str(server.addresses[0])) as remote:
                await remote.append(b"v")
        assert not left.exists()
        with pytest.raises(StorageUnavailableError):
            await Server.open(other, unix=plain)
    assert plain.read_text() == "no socket"


async def test_logs_of_a_store_by_name(tmp_path: Path) -> None:
    async with (
        WalStore.open(tmp_path / "store") as store,
        Server.open(store, unix=tmp_path / "s.sock") as server,
    ):
        address = str(server.addresses[0])
        async with connect(address, log="eu/orders") as one, connect(f"{address}?log=us") as two:
            assert (await one.append(b"1"), await two.append(b"2")) == (1, 1)
        assert await store.logs() == ["eu/orders", "us"]
        for wrong in ("..", "../x", "a/../b", "", "a\0b", "x" * 100_000, "/etc"):
            with case(wrong), pytest.raises(InvalidSettingsError):
                await connect(address, log=wrong)
        with pytest.raises(InvalidSettingsError, match="name one"):
            await connect(address)
    async with serving(tmp_path / "log") as served:
        with pytest.raises(LogNotFoundError):
            await served.connect(log="other")
        async with served.connect(log="log") as remote:
            await remote.append(b"v")


@asynccontextmanager
async def stranger(path: Path, *says: bytes | memoryview) -> AsyncIterator[str]:
    """Run a server that says the same to everybody."""
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(says)
        await reader.read()
        writer.transport.abort()
        ended.put_nowait(None)

    server = await asyncio.start_unix_server(serve, path)
    yield f"unix://{path}"
    await ended.get()
    server.close()


async def test_a_server_of_another_version(tmp_path: Path) -> None:
    newer = {"version": VERSION + 1, "log": {}}
    async with stranger(tmp_path / "a", PREAMBLE, *encode(Kind.DONE, 0, newer)) as address:
        with pytest.raises(FormatVersionError):
            await connect(address)
    async with stranger(tmp_path / "b", b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        said = "no walstore server of this version: it sent bytes of another protocol: b'HTTP"
        with pytest.raises(StorageUnavailableError, match=said):
            await connect(address)
    async with stranger(tmp_path / "c") as address:
        with pytest.raises(StorageUnavailableError, match="within"):
            await connect(address, connect_seconds=RUNS_OUT_SECONDS)


@pytest.mark.parametrize(
    "refusal",
    [
        pack_error(OutcomeUnknownError("the server ended the connection: it received nonsense")),
        pack_error(AssertionError("a defect while it received nonsense")),
    ],
)
async def test_a_refused_greeting_leaves_nothing_in_doubt(
    tmp_path: Path, refusal: list[Any]
) -> None:
    """No request was sent before it."""
    answer = PREAMBLE, *encode(Kind.FAILED, 0, refusal)
    async with stranger(tmp_path / "s", *answer) as address:
        with pytest.raises(StorageUnavailableError, match="received nonsense") as refused:
            await connect(address)
    assert (refused.value.outcome, refused.value.retriable) == ("not_written", False)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_greeting_above_the_limit_did_nothing(tmp_path: Path, number: int) -> None:
    """It answers nothing that was asked: what waits was not sent."""
    huge = PREAMBLE + HEADER.pack((1 << 31) - 1, number, 0, Kind.DONE)
    async with contextlib.AsyncExitStack() as stack:
        async with serving(tmp_path / "log") as served:
            remote = await stack.enter_async_context(served.connect())
            assert await remote.append(b"v") == 1
        async with stranger(tmp_path / "s.sock", huge):
            with pytest.raises(StorageUnavailableError, match="no walstore server") as refused:
                await remote.append(b"never sent")
        assert (refused.value.outcome, refused.value.retriable) == ("not_written", False)
        async with serving(tmp_path / "log"):
            assert await remote.append(b"w") == 2
    async with stranger(tmp_path / "s", huge) as address:
        with pytest.raises(StorageUnavailableError, match="no walstore server"):
            await connect(address)


@pytest.mark.parametrize("seed", range(4))
async def test_random_messages_never_harm_the_server(tmp_path: Path, seed: int) -> None:
    """Whole messages with random heads, and bytes with random changes."""
    chance = random.Random(seed + first_seed("random messages"))
    names = (
        "trim",
        "fence",
        "append_group",
        "begin",
        "add",
        "commit",
        "open_cursor",
        "move_cursor",
        "x",
    )

    def value(depth: int = 0) -> Any:
        kinds: list[Any] = [
            None,
            True,
            -1,
            0,
            1,
            1 << 63,
            1.5,
            "disk",
            "",
            b"",
            b"\0\0\0\0",
            bytes(8),
        ]
        if depth < 3 and chance.random() < 0.4:
            return [value(depth + 1) for _ in range(chance.randrange(6))]
        return {"a": "b"} if chance.random() < 0.05 else chance.choice(kinds)

    async with serving(tmp_path / "log", SMALL) as served, served.connect() as remote:
        for _ in range(25):
            async with raw(served) as client:
                for number in range(2, 22):
                    kind = chance.choice(
                        (Kind.APPEND, Kind.READ, Kind.CALL, Kind.CALL, Kind.CANCEL)
                    )
                    head = [chance.choice(names), value()] if kind == Kind.CALL else value()
                    data = bytearray(
                        b"".join(encode(kind, number, head, [b"x" * chance.randrange(9)]))
                    )
                    if chance.random() < 0.1:
                        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                    client.send(bytes(data))
        offset = await remote.append(b"well")
        async with remote.reader(offset, follow=False) as reader:
            assert (await anext(reader)).value == b"well"


async def test_who_sends_something_wrong_and_takes_nothing_is_gone_in_the_end(
    tmp_path: Path,
) -> None:
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock", settings=QUICK) as server,
    ):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s.sock"))
        client = Raw(reader, writer)
        client.send(PREAMBLE, HELLO)
        assert (await client.answer()).kind == Kind.DONE
        writer.transport.pause_reading()
        for number in range(2, 2000):
            client.request(Kind.CALL, number, ["x" * 200, []])
        client.send(HEADER.pack(1 << 31, 1, 0, Kind.CALL))
        await until(lambda: not server.connections)
        writer.transport.abort()


async def test_who_sends_no_more_of_a_large_message_gives_its_room_to_others(
    tmp_path: Path,
) -> None:
    """Each takes more than half of the room: the second one waits for the first."""
    clock = ManualClock()
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock", clock=clock) as server,
    ):
        begun = HEADER.pack(71 << 20, 2, 9, Kind.CALL) + bytes(20_000)
        clients = []
        for count in (1, 2):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s.sock"))
            client = Raw(reader, writer)
            client.send(PREAMBLE, HELLO)
            assert (await client.answer()).kind == Kind.DONE
            client.send(begun)
            await until(lambda: server.incoming.used_bytes > 70 << 20)
            await until(lambda count=count: server.incoming.waiting == count - 1)  # type: ignore[misc]
            clients.append(client)
        for _ in range(8):
            await clock.wait_for_sleepers()
            clock.advance(0.5)
        await clients[0].end()
        await until(lambda: server.incoming.waiting == 0)
        assert server.connections == 1
        clients[1].writer.transport.abort()
        clients[0].writer.transport.abort()
        await until(lambda: server.incoming.used_bytes == 0)


async def test_an_answer_has_no_registers_that_are_large(served: Served, remote: RemoteWal) -> None:
    await remote.append_many([b"v"], update={"small": "1"})
    assert remote.registers == {"small": "1"}
    large = {f"r{number}": "x" * 1000 for number in range(60)}
    await remote.append_many([b"v"], update=large)
    async with remote.transaction(update={"small": None}) as transaction:
        await transaction.append(b"v")
    assert remote.registers == large
    await served.wal.append_many([b"v"], update={"r0": "of another"})
    await remote.append_many([b"v"], update={"r1": None})
    assert "r1" not in remote.registers
    await remote.refresh()
    assert remote.registers["r0"] == "of another"
    assert "r1" not in remote.registers
    async with raw(served) as client:
        sizes = (1).to_bytes(4, "little")
        group = [
            "append_group",
            [None, sizes, [None] * 4, [None, None, {"a": "b"}, None, None, None]],
        ]
        client.request(Kind.CALL, 2, group, b"v")
        answer = await client.answer()
        assert answer.head[2] is None


async def test_headers_that_are_none_are_refused_in_words_of_ours(served: Served) -> None:
    async with raw(served) as client:
        for number, headers in enumerate((5, b"\xff\xff", b"\x01", b"\x81"), 2):
            options = [None, None, [headers], None]
            client.request(Kind.APPEND, number, ["memory", b"\x01\0\0\0", options], b"x")
            error = unpack_error((await client.answer()).head)
            with case(headers):
                assert "received headers that are no" in str(error)
