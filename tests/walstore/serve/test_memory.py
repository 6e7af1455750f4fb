"""What clients can make a server hold: the peak of a process that serves, beside a client that is fine."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.programs import COMMANDS, WALSTORE, Program, start
from tests.waiting import until
from tests.walstore.serve.test_bad_input import HELLO, Raw
from walstore import RemoteWal, connect
from walstore.net.wire.message import HEADER, PREAMBLE, Kind, encode
from walstore.serve import ServeSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
MIB = 1 << 20
MOST_GROWN = 300 * MIB


class Serving:
    """A server in a process of its own."""

    def __init__(self, program: Program, socket: Path) -> None:
        self.program = program
        self.socket = socket
        self.base = self.peak

    @property
    def peak(self) -> int:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.program.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def check(self) -> None:
        assert self.peak - self.base < MOST_GROWN


@contextmanager
def serving(path: Path) -> Iterator[Serving]:
    socket = path / "s.sock"
    with start(
        WALSTORE, "serve", path / "log", "--unix", socket, imports=COMMANDS, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith(b"serving")
        try:
            yield Serving(program, socket)
        finally:
            program.kill()


@asynccontextmanager
async def strangers(served: Serving, count: int, *, greets: bool) -> AsyncIterator[list[Raw]]:
    """Connect so many clients that send what they like."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            reader, writer = await asyncio.open_unix_connection(str(served.socket))
            stack.callback(writer.transport.abort)
            client = Raw(reader, writer)
            client.send(PREAMBLE)
            if greets:
                client.send(HELLO)
                assert (await client.answer()).kind == Kind.DONE
            clients.append(client)
        yield clients


async def is_fine(remote: RemoteWal) -> None:
    """Another client goes on."""
    offset = await remote.append(b"well")
    async with remote.reader(offset, follow=False) as reader:
        assert (await anext(reader)).value == b"well"


async def test_thousands_of_reads_that_wait_hold_nothing_and_are_all_served(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 1, greets=True) as (greedy,),
        ):
            for number in range(2, 2502):
                greedy.request(Kind.READ, number, [1, None, MIB, 60, "durable"])
            greedy.request(Kind.CALL, 2502, ["limits", []])
            assert (await greedy.answer()).id == 2502  # all are there
            await remote.append(bytes(MIB))
            for _ in range(20):
                await is_fine(remote)
            served.check()
            answered = set()
            for _ in range(200):
                answer = await greedy.answer()
                answered.add(answer.id)
                assert len(answer.payload) > MIB
            assert len(answered) == 200
            await is_fine(remote)
        served.check()


async def test_listings_are_made_one_after_the_other(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 1, greets=True) as (greedy,),
        ):
            for low in range(0, 1000, 250):
                update = {f"r{n}": "x" * 1000 for n in range(low, low + 250)}
                async with remote.transaction(update=update):
                    pass
            for number in range(2, 4002):
                greedy.request(Kind.CALL, number, ["refresh", []])
            for _ in range(20):
                await is_fine(remote)
            served.check()


async def test_before_its_greeting_is_answered_a_client_may_send_little(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 40, greets=False) as many,
        ):
            for client in many:
                client.send(HEADER.pack(70 * MIB, 1, 9, Kind.HELLO), bytes(30 * MIB))
            for client in many:
                with contextlib.suppress(ConnectionError):
                    await client.end()
            await is_fine(remote)
        served.check()


async def test_requests_of_all_clients_have_a_limit_and_come_to_their_end(tmp_path: Path) -> None:
    """Twenty have sent most of a large message, and wait for room; then they send the rest."""
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 20, greets=True) as many,
        ):
            value = bytes(15 * MIB)
            sizes = len(value).to_bytes(4, "little")
            message = b"".join(encode(Kind.APPEND, 2, ["memory", sizes, None], [value]))
            for client in many:
                client.send(message[:-1])
            await until(lambda: served.peak - served.base > 64 * MIB)
            for _ in range(20):
                await is_fine(remote)
            served.check()
            for client in many:
                client.send(message[-1:])
            for client in many:
                assert (await client.answer()).kind == Kind.DONE
            await is_fine(remote)
        served.check()


async def test_open_transactions_of_all_clients_have_a_limit(tmp_path: Path) -> None:
    """150 leave one open that is a little smaller than what goes to a file anyway."""
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 150, greets=True) as many,
        ):
            sizes = MIB.to_bytes(4, "little")
            for client in many:
                client.request(Kind.CALL, 2, ["begin", [1, None, [None] * 6]])
                assert (await client.answer()).kind == Kind.DONE
            for part in range(7):
                for client in many:
                    client.request(Kind.CALL, 3 + part, ["add", [1, sizes, None]], bytes(MIB))
                for client in many:
                    assert (await client.answer()).kind == Kind.DONE
                await is_fine(remote)
                async with remote.transaction() as small:
                    await small.append(bytes(32 << 10))
                await remote.append(bytes(15 * MIB))
            served.check()
            for client in many:
                client.request(Kind.CALL, 10, ["commit", [1, {}]])
                answer = await client.answer()
                assert answer.kind == Kind.DONE
                assert answer.head[1] - answer.head[0] == 7
        served.check()


async def test_nobody_holds_all_of_a_large_group_and_who_takes_its_answers_gets_it(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 40, greets=True) as many,
        ):
            await remote.append_many([bytes(MIB)] * 60)
            for client in many:
                client.writer.transport.pause_reading()
                for number in range(2, 22):
                    client.request(Kind.READ, number, [1, None, 64 * MIB, 5, "durable"])
            async with remote.reader(follow=False) as reader:
                assert [len(record.value) async for record in reader] == [MIB] * 60
            await is_fine(remote)
        served.check()


def columns(kind: str) -> list[list[object] | None]:
    if kind == "keys":
        return [[b"%03d" % (at % 1000) for at in range(4000)], None, None, None]
    return [None, [f"{at:04}".ljust(110, "n") for at in range(4000)], None, None]


@pytest.mark.parametrize("kind", ["keys", "names"])
async def test_requests_of_many_records_are_objects_only_while_they_are_accepted(
    tmp_path: Path, kind: str
) -> None:
    """A head of 30 KiB is a megabyte of objects. 100 clients send ten each."""
    sizes = (10).to_bytes(4, "little") * 4000
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 100, greets=True) as many,
        ):
            message = ["disk", sizes, columns(kind)]
            for client in many:
                for number in range(2, 7):
                    client.request(Kind.APPEND, number, message, b"0123456789" * 4000)
            for _ in range(10):
                await is_fine(remote)
            for client in many:
                for _ in range(5):
                    assert (await client.answer()).kind == Kind.DONE
        served.check()


async def test_small_requests_in_progress_have_a_limit_in_objects(tmp_path: Path) -> None:
    """Of 60 clients that send 2000 each, as many are begun as ``request_bytes`` has room for."""
    with serving(tmp_path) as served:
        async with (
            connect(f"unix://{served.socket}") as remote,
            strangers(served, 60, greets=True) as many,
        ):
            wait = b"".join(encode(Kind.READ, 0, [1, None, 1000, 60, "durable"]))
            for client in many:
                client.send(
                    *(
                        wait[:4] + number.to_bytes(4, "little") + wait[8:]
                        for number in range(2, 2002)
                    )
                )
            for _ in range(10):
                await remote.refresh()
            served.check()
            assert served.peak - served.base < ServeSettings().request_bytes
            await is_fine(remote)
            assert (await many[-1].answer()).kind == Kind.DONE
