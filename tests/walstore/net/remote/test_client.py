"""What a client makes of a server that stops, or whose log moves: each request has one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.local import turns
from tests.waiting import RUNS_OUT_SECONDS, until
from walstore import LimitExceededError, OutcomeUnknownError, StorageUnavailableError
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.net.remote.client import Client
from walstore.net.wire.address import parse_address
from walstore.net.wire.errors import pack_error
from walstore.net.wire.message import (
    MOST_ANSWER_HEAD_BYTES,
    MOVES,
    NOT_BEGUN,
    PREAMBLE,
    UNDECIDED,
    VERSION,
    Decoder,
    Kind,
    Message,
    encode,
)
from walstore.net.wire.verbs import Fate, Verb
from walstore.testing import ManualClock

MOST: Final = 1 << 20
EPOCH: Final = 7
CONNECT_SECONDS: Final = 60.0
Answer = Callable[[asyncio.StreamWriter, Message], None]
"""What a server does with a request."""


@asynccontextmanager
async def servers(path: Path, *answers: Answer) -> AsyncIterator[list[dict[str, Any]]]:
    """Serve one connection after the other, each with its own way to answer; then there is no server.

    Yields the greetings of the clients.
    """
    greetings: list[dict[str, Any]] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = left.pop(0)
        if not left:
            server.close()
        decoder = Decoder(most_bytes=MOST)
        writer.write(PREAMBLE)
        try:
            while data := await reader.read(MOST):
                for message in decoder.feed(data):
                    if message.kind == Kind.HELLO:
                        greetings.append(message.head)
                        welcome = {
                            "version": VERSION,
                            "server": "1",
                            "message_bytes": MOST,
                            "log": {"log_id": "1", "epoch": EPOCH},
                        }
                        writer.write(encode_all(Kind.DONE, message.id, welcome))
                    else:
                        answer(writer, message)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield greetings
    finally:
        server.close()


def once(name: str) -> Verb:
    """Return what may not be asked twice."""
    return Verb(name, is_write=True, fate=Fate.UNKNOWN)


def encode_all(kind: Kind, number: int, head: object) -> bytes:
    return b"".join(encode(kind, number, head))


def drop(writer: asyncio.StreamWriter, _: Message) -> None:
    writer.transport.abort()


def done(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(encode_all(Kind.DONE, message.id, "done"))


def failed(head: object) -> Answer:
    """Answer so: a request that was not begun, or that may have been done."""

    def answer(writer: asyncio.StreamWriter, message: Message) -> None:
        writer.write(encode_all(Kind.FAILED, message.id, head))

    return answer


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Client]:
    client = make_client(path, SystemClock())
    await client.connect()
    try:
        yield client
    finally:
        await client.aclose()


def make_client(path: Path, clock: Clock) -> Client:
    return Client(
        [parse_address(f"unix://{path}")],
        token=None,
        tls=None,
        log=None,
        connect_seconds=CONNECT_SECONDS,
        reconnect_seconds=RUNS_OUT_SECONDS,
        clock=clock,
        make_tag=lambda: bytes(8),
    )


async def test_why_nobody_lets_it_in_is_said(tmp_path: Path) -> None:
    """The last try has no time for an answer; what a server said before is what the user wants to know."""
    refused = StorageUnavailableError("nobody leads the log 'a' now")
    connections = ended = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, ended
        connections += 1
        writer.write(PREAMBLE)
        if connections == 1:
            (hello,) = Decoder(most_bytes=MOST).feed(await reader.read(MOST))
            writer.write(encode_all(Kind.FAILED, hello.id, pack_error(refused)))
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()
        ended += 1

    async with await asyncio.start_unix_server(serve, tmp_path / "s") as server:
        clock = ManualClock()
        connecting = asyncio.ensure_future(make_client(tmp_path / "s", clock).connect())
        await clock.wait_for_sleepers()
        clock.advance(CONNECT_SECONDS - RUNS_OUT_SECONDS)
        await clock.wait_for_sleepers()
        clock.advance(RUNS_OUT_SECONDS)
        with pytest.raises(StorageUnavailableError, match="nobody leads"):
            await connecting
        assert connections > 1
        server.close()
        await turns()  # what was accepted before begins
        await until(lambda: ended == connections)


async def test_what_was_not_begun_goes_to_the_next_server(tmp_path: Path) -> None:
    async with (
        servers(tmp_path / "s", failed(NOT_BEGUN), done) as greetings,
        connected(tmp_path / "s") as client,
    ):
        assert await client.call(once("a")) == "done"
        assert [one["moves"] for one in greetings] == [True, True]


async def test_what_no_server_began_was_not_written(tmp_path: Path) -> None:
    async with servers(tmp_path / "s", failed(NOT_BEGUN)), connected(tmp_path / "s") as client:
        with pytest.raises(StorageUnavailableError, match="nothing was written"):
            await client.call(Verb("a", is_write=True))


async def test_what_a_lost_server_may_have_done_stays_open(tmp_path: Path) -> None:
    """The next one did not begin it; that says nothing of the first."""
    async with (
        servers(tmp_path / "s", drop, failed(NOT_BEGUN)),
        connected(tmp_path / "s") as client,
    ):
        with pytest.raises(OutcomeUnknownError):
            await client.call(Verb("a", is_write=True))


async def test_what_may_have_been_done_is_as_if_the_connection_were_lost(tmp_path: Path) -> None:
    """It is repeated if it may be; else its caller is told at once."""

    def answer(writer: asyncio.StreamWriter, message: Message) -> None:
        if message.head[0] == "first":
            waiting.append((writer, message))
        else:
            failed(UNDECIDED)(writer, message)

    waiting: list[tuple[asyncio.StreamWriter, Message]] = []
    async with servers(tmp_path / "s", answer, done), connected(tmp_path / "s") as client:
        first = asyncio.ensure_future(client.call(once("first")))
        with pytest.raises(OutcomeUnknownError):
            await client.call(once("once"))
        repeated = asyncio.ensure_future(client.call(Verb("again", is_write=True)))
        await asyncio.sleep(0)
        assert not first.done()
        done(*waiting[0])
        assert (await first, await repeated) == ("done", "done")
        assert client.reconnects == 1


@pytest.mark.parametrize("why", [MOVES, None])
async def test_after_a_log_moved_the_next_server_is_asked_for_a_later_epoch(
    tmp_path: Path, why: bool | None
) -> None:
    """Others may not know yet that it moves. A server that only stops says nothing of the log."""

    def goodbye(writer: asyncio.StreamWriter, message: Message) -> None:
        done(writer, message)
        writer.write(encode_all(Kind.GOODBYE, 0, why))

    path = tmp_path / "s"
    async with servers(path, goodbye, drop, done) as greetings, connected(path) as client:
        assert await client.call(Verb("a")) == "done"
        assert await client.call(Verb("b")) == "done"
    # The third connection is made because the second one was lost, which says nothing of an epoch.
    found = [greeting.get("after") for greeting in greetings]
    assert found == [None, EPOCH if why is MOVES else None, None]


async def test_nothing_new_is_sent_after_a_goodbye(tmp_path: Path) -> None:
    """And the client ends the connection once it has its answers."""
    seen: list[str] = []

    def answer(writer: asyncio.StreamWriter, message: Message) -> None:
        seen.append(message.head[0])
        writer.write(encode_all(Kind.GOODBYE, 0, None))
        waiting.append((writer, message))

    waiting: list[tuple[asyncio.StreamWriter, Message]] = []
    async with servers(tmp_path / "s", answer, done), connected(tmp_path / "s") as client:
        first = asyncio.ensure_future(client.call(once("a")))
        await until(lambda: bool(waiting))
        for _ in range(100):
            await asyncio.sleep(0)
        second = asyncio.ensure_future(client.call(once("b")))
        for _ in range(100):
            await asyncio.sleep(0)
        assert seen == ["a"]
        done(*waiting[0])
        assert (await first, await second) == ("done", "done")
        assert client.reconnects == 1


async def test_a_server_that_answers_what_was_cancelled_as_not_begun_is_not_left(
    tmp_path: Path,
) -> None:
    """The same nil says that a server stops, of a request that was not cancelled."""

    def answer(writer: asyncio.StreamWriter, message: Message) -> None:
        if message.kind == Kind.CANCEL:
            failed(NOT_BEGUN)(writer, message)
        elif message.head[0] != "wait":
            done(writer, message)

    async with servers(tmp_path / "s", answer, drop), connected(tmp_path / "s") as client:
        forgotten = client.send(Verb("wait"))
        client.forget(forgotten)
        withdrawn = client.send(Verb("wait"))
        client.withdraw(withdrawn)
        client.withdraw(withdrawn)
        assert await client.call(Verb("a")) == "done"
        await asyncio.wait((withdrawn.future,))
        assert withdrawn.future.exception() is not None
        assert await client.call(Verb("b")) == "done"
        assert client.reconnects == 0


async def test_what_is_withdrawn_may_have_been_done_and_is_not_repeated(tmp_path: Path) -> None:
    asked: list[Any] = []

    def answer(writer: asyncio.StreamWriter, message: Message) -> None:
        asked.append(message.kind)
        if message.kind == Kind.CANCEL:
            done(writer, message)
        elif message.head[0] == "drop":
            drop(writer, message)

    async with servers(tmp_path / "s", answer, done), connected(tmp_path / "s") as client:
        late, lost = client.send(Verb("a")), client.send(Verb("b"))
        client.withdraw(late)
        assert (await late.future)[0] == "done"
        lost.is_withdrawn, lost.fate = True, Fate.DROPPED  # as if its CANCEL were on the way
        assert await client.call(Verb("drop")) == "done"
        with pytest.raises(StorageUnavailableError):
            await lost.future
    assert asked == [Kind.CALL, Kind.CALL, Kind.CANCEL, Kind.CALL]


async def test_an_answer_that_is_too_large_fails_its_call_and_nothing_is_asked_again(
    tmp_path: Path,
) -> None:
    """The connection goes on, with what else is under way; before, it was lost, and all was repeated."""
    asked: list[Any] = []

    def answer(writer: asyncio.StreamWriter, message: Message) -> None:
        asked.append(message.head[0])
        head = bytes(MOST_ANSWER_HEAD_BYTES) if message.head[0] == "large" else "done"
        writer.write(encode_all(Kind.DONE, message.id, head))

    async with (
        servers(tmp_path / "s", answer) as greetings,
        connected(tmp_path / "s") as client,
    ):
        large = asyncio.ensure_future(client.call(Verb("large")))
        write = asyncio.ensure_future(client.call(once("write")))
        with pytest.raises(LimitExceededError, match="answer was not taken") as refused:
            await large
        assert refused.value.outcome == "unknown"
        assert await write == "done"
        assert await client.call(Verb("small")) == "done"
        assert (asked, len(greetings)) == (["large", "write", "small"], 1)
