"""Outgoing: room for answers is shared by those who take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

from tests.waiting import until
from tests.walstore.serve.served import Served, serving
from tests.walstore.serve.test_bad_input import HELLO, Raw, raw
from walstore import Wal, connect
from walstore.net.wire.message import PREAMBLE, Kind
from walstore.serve import Server, ServeSettings
from walstore.serve.outgoing import SHORT_BYTES
from walstore.testing import ManualClock

MIB = 1 << 20
LIMITS = ServeSettings(answer_bytes=MIB, stall_seconds=86_400)
READ = [1, None, MIB, 0, "durable"]
SIZE = 600_000
"""Of a record: there is room for one that a client does not take, and not for two."""


@asynccontextmanager
async def limited(path: Path, clock: ManualClock) -> AsyncIterator[Served]:
    """A server that looks at its clients when the clock is advanced, with one large record."""
    async with (
        Wal.open(path / "log") as wal,
        Server.open(wal, unix=path / "s.sock", settings=LIMITS, clock=clock) as server,
    ):
        await wal.append(bytes(SIZE))
        yield Served(wal, server)


async def takes(client: Raw, number: int) -> None:
    client.request(Kind.READ, number, READ)
    answer = await client.answer()
    assert (answer.kind, answer.id) == (Kind.DONE, number)
    assert len(answer.payload) > SIZE


def takes_nothing(client: Raw) -> None:
    client.writer.transport.pause_reading()
    client.request(Kind.READ, 2, READ)


async def is_waiting(served: Served, count: int) -> None:
    await until(lambda: served.server.outgoing.waiting == count)


async def test_who_has_taken_answers_gets_large_ones_before_those_who_have_not(
    tmp_path: Path,
) -> None:
    async with (
        limited(tmp_path, ManualClock()) as served,
        raw(served) as holder,
        raw(served) as stranger,
        raw(served) as taker,
    ):
        await takes(taker, 2)
        takes_nothing(holder)
        await until(lambda: served.server.outgoing.used_bytes >= SIZE)
        takes_nothing(stranger)
        await is_waiting(served, 1)
        taker.request(Kind.READ, 3, READ)
        await is_waiting(served, 2)
        holder.writer.transport.abort()
        assert (await taker.answer()).id == 3
        await is_waiting(served, 0)


async def test_who_came_last_does_not_wait_for_many_that_take_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with limited(tmp_path, clock) as served, AsyncExitStack() as stack:
        for client in [await stack.enter_async_context(raw(served)) for _ in range(20)]:
            takes_nothing(client)
        await is_waiting(served, 19)
        last = await stack.enter_async_context(raw(served))
        taking = asyncio.ensure_future(takes(last, 2))
        await is_waiting(served, 20)
        await pass_seconds(served, clock, 7)
        await taking
        assert served.server.figures.dropped == 1
        await is_waiting(served, 18)


async def test_a_greeting_is_short_and_waits_for_nobody(tmp_path: Path) -> None:
    """Registers that one has no room for are asked for, as they were at the greeting."""
    async with limited(tmp_path, ManualClock()) as served, AsyncExitStack() as stack:
        written = {f"r{at}": "é" * 1000 for at in range(500)}
        await served.wal.append_many([b""], update=written)
        for _ in range(100):
            client = await stack.enter_async_context(raw(served, greets=False))
            client.writer.transport.pause_reading()
            client.send(PREAMBLE, HELLO)
        early = await stack.enter_async_context(raw(served))
        remote = await stack.enter_async_context(connect(served.address))
        assert remote.registers == written
        await served.wal.append_many([b""], update={"r499": "new"})
        found: dict[str, str] = {}
        for number in count(2):
            early.request(Kind.CALL, number, ["registers", []])
            answer = await early.answer()
            assert answer.size <= SHORT_BYTES
            found |= answer.head[0]
            if not answer.head[1]:
                break
        assert len(found) > 400
        assert found.items() <= written.items()
        assert (served.server.outgoing.waiting, served.server.figures.dropped) == (0, 0)


async def test_an_answer_takes_no_more_than_there_was_room_for(tmp_path: Path) -> None:
    """It was made of the group's first record, and there is room for no more."""
    clock = ManualClock()
    async with limited(tmp_path, clock) as served:
        start = (await served.wal.append_many([bytes(SIZE // 2)] * 8)).start
        async with AsyncExitStack() as stack:
            holder, *others = [await stack.enter_async_context(raw(served)) for _ in range(6)]
            takes_nothing(holder)
            await until(lambda: served.server.outgoing.used_bytes >= SIZE)
            for client in others:
                client.writer.transport.pause_reading()
                client.request(Kind.READ, 2, [start, None, MIB, 0, "durable"])
            await is_waiting(served, 5)
            holder.writer.transport.abort()
            # What the sockets of the others took is not held, so there is room for several.
            await until(lambda: 0 < served.server.outgoing.waiting < 4)
            assert served.server.outgoing.used_bytes < SIZE
            others[-1].writer.transport.resume_reading()
            assert SIZE // 2 < len((await others[-1].answer()).payload) < SIZE


async def test_who_takes_nothing_goes_soon_if_others_wait_for_the_room(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        limited(tmp_path, clock) as served,
        raw(served) as holder,
        raw(served) as taker,
    ):
        takes_nothing(holder)
        await until(lambda: served.server.outgoing.used_bytes >= SIZE)
        await pass_seconds(served, clock, 60)
        assert served.server.figures.dropped == 0
        taker.request(Kind.READ, 2, READ)
        await is_waiting(served, 1)
        await pass_seconds(served, clock, 10)
        assert (await taker.answer()).id == 2
        assert served.server.figures.dropped == 1
        await takes(taker, 3)


async def pass_seconds(served: Served, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        await until(lambda: clock.sleepers > 0)
        clock.advance(1.0)


async def test_a_large_answer_and_short_ones_behind_it_come_whole_and_in_order(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "log") as served, raw(served) as client:
        await served.wal.append(bytes(4 * MIB))
        client.writer.transport.pause_reading()
        client.request(Kind.READ, 2, READ)
        await until(lambda: served.server.outgoing.used_bytes > 0)
        for number in range(3, 6):
            client.request(Kind.CALL, number, ["limits", []])
        client.writer.transport.resume_reading()
        answers = [await client.answer() for _ in range(4)]
        assert [answer.id for answer in answers] == [2, 3, 4, 5]
        assert len(answers[0].payload) > 4 * MIB
        await until(lambda: served.server.outgoing.used_bytes == 0)


async def test_a_group_is_read_in_parts_and_one_record_whole(tmp_path: Path) -> None:
    async with serving(tmp_path / "log") as served, raw(served) as client:
        await served.wal.append_many([bytes([at]) * MIB for at in range(20)])
        seen, number = 1, 2
        while seen < 21:
            client.request(Kind.READ, number, [seen, None, 3 * MIB, 0, "durable"])
            answer = await client.answer()
            [[start, limit, _]] = answer.head[0]
            assert (start, len(answer.payload) < 2 * MIB) == (seen, True)
            seen, number = limit, number + 1
        assert number == 22
