"""What open transactions of clients hold in the server: together they have a limit, and no one waits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local import read_values, turns
from tests.waiting import until
from tests.walstore.serve.served import Served
from tests.walstore.serve.test_bad_input import raw
from walstore import DiskFullError, LimitExceededError, RecordTooLargeError, Wal
from walstore.net.wire.message import Kind
from walstore.serve import Server, ServeSettings
from walstore.serve.transaction_room import OWN_BYTES
from walstore.testing import FaultyFileSystem

MIB = 1 << 20
LIMITS = ServeSettings(message_bytes=8 * MIB, request_bytes=MIB)  # 8 MiB for open transactions
PARTS = [b"%d" % number * MIB for number in range(3)]


@pytest.fixture
async def served(tmp_path: Path, faulty: FaultyFileSystem) -> AsyncIterator[Served]:
    async with (
        Wal.open(tmp_path / "log", fs=faulty) as wal,
        Server.open(wal, unix=tmp_path / "s.sock", settings=LIMITS) as server,
    ):
        yield Served(wal, server)
        assert server.transaction_room.used_bytes == 0
        assert server.incoming.used_bytes == 0


@contextlib.contextmanager
def nothing_left(served: Served) -> Any:
    """Others' transactions hold all there is."""
    room = served.server.transaction_room
    taken = OWN_BYTES + room.most_bytes - room.used_bytes
    assert room.change(0, taken)
    try:
        yield
    finally:
        room.change(taken, 0)


def files(served: Served) -> int:
    """How many transactions have a file."""
    return len(list(served.wal.path.glob("transaction-*")))


async def test_what_they_hold_counts_among_the_requests_of_all_clients(served: Served) -> None:
    room = served.server.transaction_room
    async with served.connect() as remote, remote.transaction() as txn:
        for part in PARTS:
            await txn.append(part)
        assert 3 * MIB - OWN_BYTES < room.used_bytes < 3 * MIB
        assert served.server.incoming.used_bytes == room.used_bytes


async def test_without_room_they_are_written_to_files_and_commit(served: Served) -> None:
    """150 of them hold next to nothing, and none waits for another."""
    room = served.server.transaction_room
    async with served.connect() as one, served.connect() as two:
        async with one.transaction() as mine, two.transaction() as yours:
            with nothing_left(served):
                for part in PARTS:
                    await mine.append(part, b"key", "eu", {"h": part[:1]})
                    await yours.append(part)
                assert files(served) == 2
                assert room.used_bytes == room.most_bytes
        assert (mine.span, yours.span) == (range(4, 7), range(1, 4))
        assert await read_values(served.wal) == PARTS + PARTS
        async with served.wal.reader(4, follow=False) as reader:
            record = await anext(reader)
        assert (record.key, record.stream, record.headers) == (b"key", "eu", {"h": b"0"})


async def test_small_ones_have_room_in_any_case_and_so_have_the_largest_requests(
    served: Served,
) -> None:
    async with served.connect() as idle, served.connect() as remote, idle.transaction() as txn:
        await txn.append(PARTS[0])
        with nothing_left(served):
            for number in range(3):
                async with remote.transaction(update={"r": str(number)}) as small:
                    await small.append(bytes(32 << 10))
            assert files(served) == 0
            assert await remote.append(bytes(8 * MIB - 100)) == 4


async def test_one_that_even_a_file_does_not_help_is_refused_and_rolled_back(
    served: Served,
) -> None:
    """A client always has one large one, and has no more of them than there is room for."""
    async with served.connect() as remote, remote.transaction() as large:
        with nothing_left(served):
            await large.append(PARTS[0])
            with pytest.raises(
                LimitExceededError, match=r"nothing was written.*request_bytes"
            ) as no:
                async with remote.transaction() as more:
                    await more.append(PARTS[1])
            assert no.value.limit == served.server.transaction_room.most_bytes
            assert no.value.retriable, "once another one ends there is room"
            await large.append(PARTS[2])
        async with remote.transaction() as more:
            await more.append(PARTS[1])
    assert await read_values(served.wal) == [PARTS[1], PARTS[0], PARTS[2]]


async def test_registers_for_which_there_is_no_room(served: Served) -> None:
    update = {f"r{number}": "x" * 4000 for number in range(100)}
    async with served.connect() as remote:
        with nothing_left(served), pytest.raises(LimitExceededError):
            async with remote.transaction(update=update):
                pass
        async with remote.transaction(update=update):
            pass
        assert remote.registers == update


async def test_names_of_streams_count_also_of_records_in_a_file(served: Served) -> None:
    async with served.connect() as remote:
        with nothing_left(served), pytest.raises(LimitExceededError):
            async with remote.transaction() as txn:
                for number in range(1000):
                    await txn.append(b"v", stream=f"{number}" + "s" * 100)
    assert await read_values(served.wal) == []


async def test_a_full_disk_that_has_no_room_for_the_file(
    served: Served, faulty: FaultyFileSystem
) -> None:
    faulty.fail("pwrite", name="transaction-*", error=errno.ENOSPC)
    async with served.connect() as remote:
        with nothing_left(served), pytest.raises(DiskFullError):
            async with remote.transaction() as txn:
                await txn.append(PARTS[0])
        assert await remote.append(b"v") == 1
    assert files(served) == 0


# -- what they held is given back, once ------------------------------------------------------------


async def _leaves(txn: Any) -> None:
    raise ZeroDivisionError


async def _rolls_back(txn: Any) -> None:
    await txn.rollback()


async def _adds_too_much(txn: Any) -> None:
    with contextlib.suppress(RecordTooLargeError):
        await txn.append(bytes(17 * MIB))


async def _commits(txn: Any) -> None:
    txn.set_registers({"r": "1"})


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("how", [_leaves, _rolls_back, _adds_too_much, _commits])
async def test_an_ended_one_holds_nothing(
    served: Served, how: Callable[[Any], Any], *, is_short: bool
) -> None:
    room = served.server.transaction_room
    async with served.connect() as remote:
        shortage = nothing_left(served) if is_short else contextlib.nullcontext()
        with shortage, contextlib.suppress(ZeroDivisionError):
            before = room.used_bytes
            async with remote.transaction() as txn:
                for part in PARTS:
                    await txn.append(part)
                await how(txn)
        assert room.used_bytes == 0
        assert before == (room.most_bytes if is_short else 0)
        assert files(served) == 0


async def test_one_whose_connection_is_lost_holds_nothing(served: Served) -> None:
    sizes = MIB.to_bytes(4, "little")
    room = served.server.transaction_room
    for last in ("add", "commit", "rollback"):
        async with raw(served) as client:
            client.request(Kind.CALL, 2, ["begin", [1, None, [None] * 6]])
            client.request(Kind.CALL, 3, ["add", [1, sizes, None]], bytes(MIB))
            assert (await client.answer()).kind == (await client.answer()).kind == Kind.DONE
            assert room.used_bytes > 0
            arguments: list[Any] = {"add": [1, sizes, None], "commit": [1, {}]}.get(last, [1])
            client.request(Kind.CALL, 4, [last, arguments], bytes(MIB) if last == "add" else b"")
            await client.writer.drain()
        await until(lambda: served.server.connections == 0)
        await until(lambda: room.used_bytes == 0)


async def test_requests_after_its_end_are_refused_and_count_nothing(served: Served) -> None:
    """Sent before the client knows how it ended: they have their turn after it."""
    sizes = MIB.to_bytes(4, "little")
    room = served.server.transaction_room
    for end in (["commit", [1, {}]], ["rollback", [1]], ["add", [1, b"wrong", None]]):
        async with raw(served) as client:
            client.request(Kind.CALL, 2, ["begin", [1, None, [None] * 6]])
            client.request(Kind.CALL, 3, ["add", [1, sizes, None]], bytes(MIB))
            client.request(Kind.CALL, 4, end)
            client.request(Kind.CALL, 5, ["add", [1, sizes, None]], bytes(MIB))
            client.request(Kind.CALL, 6, ["commit", [1, {}]])
            kinds = {answer.id: answer.kind for answer in [await client.answer() for _ in range(5)]}
            assert kinds[5] == kinds[6] == Kind.FAILED
            assert room.used_bytes == 0


@pytest.mark.parametrize("is_short", [True, False])
async def test_one_that_is_cancelled_at_any_turn_holds_nothing(
    served: Served, *, is_short: bool
) -> None:
    room = served.server.transaction_room
    async with served.connect() as remote:

        async def write() -> None:
            async with remote.transaction() as txn:
                for part in PARTS:
                    await txn.append(part)

        with nothing_left(served) if is_short else contextlib.nullcontext():
            before = room.used_bytes
            for number in range(0, 120, 3):
                writing = asyncio.create_task(write())
                await turns(number)
                writing.cancel()
                await asyncio.wait((writing,))
                await until(lambda: room.used_bytes == before)
        assert await remote.append(b"v") > 0
        assert files(served) == 0
