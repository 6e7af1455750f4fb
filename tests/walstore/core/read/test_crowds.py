"""Many readers that follow one log: what is made once for all of them, and what each has for itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.local import turns
from walstore import Batch, Reader, Record, Wal, WalClosedError
from walstore.core.read import tiered

CROWD = 5


async def take(reader: Reader, count: int) -> list[Record]:
    return [await anext(reader) for _ in range(count)]


def follow(
    wal: Wal, count: int, **options
) -> tuple[list[Reader], list[asyncio.Task[list[Record]]]]:
    readers = [wal.follow("latest", **options) for _ in range(CROWD)]
    return readers, [asyncio.create_task(take(reader, count)) for reader in readers]


async def test_records_are_made_once_for_readers_woken_together(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        readers, tasks = follow(wal, 1)
        await turns()
        await wal.append(b"value", key=b"key", stream="name")
        found = [records[0] for records in await asyncio.gather(*tasks)]
        assert found == found[:1] * CROWD
        assert (found[0].value, found[0].key, found[0].stream) == (b"value", b"key", "name")
        assert len({id(record) for record in found}) == 2, (
            "one reader finds that others want it too"
        )
        assert [reader.position for reader in readers] == [2] * CROWD
        await turns()
        assert wal._engine.source._shared is None, "nothing is kept"


async def test_readers_woken_together_are_counted_one_by_one(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        _, tasks = follow(wal, 1)
        await turns()
        await wal.append(b"value")
        await asyncio.gather(*tasks)
        size = wal._state.appended_bytes
        assert (wal._state.cache.hits, wal._engine.source.cache_read_bytes) == (CROWD, CROWD * size)


async def test_each_reader_has_its_own_headers(log_directory: Path) -> None:
    """A caller might change a dict."""
    async with Wal.open(log_directory) as wal:
        _, tasks = follow(wal, 1)
        await turns()
        await wal.append(b"value", headers={"a": b"1"})
        found = [records[0] for records in await asyncio.gather(*tasks)]
        assert found == found[:1] * CROWD
        assert len({id(record.headers) for record in found}) == CROWD


@pytest.mark.parametrize("most", [(1 << 20, 1 << 30), (9, 1 << 30), (1 << 20, 100)])
async def test_many_records_are_read_by_each(
    log_directory: Path, most: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered, "_SHARED_RECORDS", most[0])
    monkeypatch.setattr(tiered, "_SHARED_BYTES", most[1])
    async with Wal.open(log_directory) as wal:
        readers, tasks = follow(wal, 20)
        await turns()
        await wal.append_many([b"%d" % number for number in range(10)])
        await wal.append_many([b"%d" % number for number in range(10, 20)])
        for records in await asyncio.gather(*tasks):
            assert [record.offset for record in records] == list(range(1, 21))
            assert [record.value for record in records] == [b"%d" % number for number in range(20)]
        assert [reader.position for reader in readers] == [21] * CROWD


async def test_each_reader_has_its_own_position_in_what_is_shared(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        readers, tasks = follow(wal, 3)
        await turns()
        await wal.append_many([b"%d" % number for number in range(10)])
        await asyncio.gather(*tasks)
        one, two, three, four, _ = readers
        assert [reader.position for reader in readers] == [4] * CROWD
        assert (await anext(one)).offset == 4
        assert list((await two.fetch(max_records=2)).offsets) == [4, 5]
        three.seek(2)
        assert (await anext(three)).offset == 2
        assert [
            batch.start async for batch in wal.reader(four.position, follow=False).batches()
        ] == [4]
        assert [reader.position for reader in readers] == [5, 6, 3, 4, 4]
        assert [reader.lag for reader in readers] == [6, 5, 8, 7, 7]


async def test_readers_at_other_places_are_woken_too(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append_many([b"a", b"b"])
        last, stopping = wal.follow(3), wal.follow(3, stop=4)
        named = wal.follow(3, stream="s")
        crowd, tasks = follow(wal, 2)
        tasks += [
            asyncio.create_task(take(last, 2)),
            asyncio.create_task(take(stopping, 1)),
            asyncio.create_task(take(named, 1)),
        ]
        await turns()
        await wal.append(b"c")
        await wal.append(b"d", stream="s")
        found = [[record.offset for record in records] for records in await asyncio.gather(*tasks)]
        assert found == [[3, 4]] * CROWD + [[3, 4], [3], [4]]
        assert {reader.position for reader in crowd} == {5}


async def test_what_is_shared_is_refused_once_the_log_is_closed(log_directory: Path) -> None:
    wal = await Wal.open(log_directory)
    readers, tasks = follow(wal, 1)
    await turns()
    await wal.append_many([b"a", b"b"])
    await asyncio.gather(*tasks)
    await wal.aclose()
    for reader in readers:
        assert reader.position == 2
        with pytest.raises(WalClosedError):
            await anext(reader)


async def test_each_fetch_has_its_own_values(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        readers = [wal.follow("latest") for _ in range(CROWD)]
        tasks: list[asyncio.Task[Batch]] = [
            asyncio.create_task(reader.fetch()) for reader in readers
        ]
        await turns()
        await wal.append_many([b"a", b"b"])
        batches = await asyncio.gather(*tasks)
        assert [list(batch.values) for batch in batches] == [[b"a", b"b"]] * CROWD
        assert len({id(batch.values) for batch in batches}) == CROWD


# -- waiting until a deadline ----------------------------------------------------------------------


def timers() -> list[asyncio.TimerHandle]:
    """Timers of walstore that are to run."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [
        timer
        for timer in scheduled
        if not timer.cancelled() and "_give_up" in repr(timer._callback)
    ]


async def test_a_fetch_leaves_no_timer_behind(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        reader = wal.follow()
        fetching = asyncio.create_task(reader.fetch(max_wait_seconds=60))
        await turns()
        assert len(timers()) == 1
        await wal.append(b"a")
        assert len(await fetching) == 1
        assert timers() == []
        cancelled = asyncio.create_task(reader.fetch(max_wait_seconds=60))
        await turns()
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        assert cancelled.cancelled()
        assert timers() == []
        assert reader.position == 2


async def test_the_deadline_of_one_reader_is_nothing_to_others(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        short = asyncio.create_task(wal.follow().fetch(max_wait_seconds=0.01))
        long = asyncio.create_task(wal.follow().fetch(max_wait_seconds=60))
        following = asyncio.create_task(anext(wal.follow()))
        batch = await short
        assert (len(batch), batch.start, batch.limit) == (0, 1, 1)
        assert not long.done()
        assert not following.done()
        await wal.append(b"a")
        assert len(await long) == 1
        assert (await following).value == b"a"
        assert not wal._state.visible.has_waiters


async def test_deadlines_that_pass_on_an_idle_log_leave_no_waiters(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        following = asyncio.create_task(anext(wal.follow()))
        await turns()
        for _ in range(50):
            assert not await wal.follow().fetch(max_wait_seconds=0.0001)
        assert len(wal._state.visible._queue) < 5
        await wal.append(b"a")
        assert (await following).value == b"a"


async def test_a_record_visible_as_the_deadline_passes_is_returned(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        reader = wal.follow()
        fetching = asyncio.create_task(reader.fetch(max_wait_seconds=60))
        await turns()
        (timer,) = timers()
        (waiter,) = timer._args  # type: ignore[attr-defined]
        # Called while a commit is adopted, before its records are visible.
        wal._state.on_written = lambda _: tiered._give_up(waiter)
        await wal.append(b"a")
        assert len(await fetching) == 1
        tiered._give_up(waiter)  # a timer may be due although the waiter is woken
