"""Wal: no interruption harms anybody (L14)."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.local import (
    check_contiguous,
    contents,
    gather_outcomes,
    open_descriptors,
    read_all,
    read_values,
    turns,
)
from tests.waiting import wait_until
from tests.walstore.wals import ACTIVE, TINY
from walstore import (
    OutcomeUnknownError,
    Wal,
    WalClosedError,
)
from walstore.testing import ManualClock


async def test_L14_cancelled_while_waiting_for_room_nothing_is_written(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        full = asyncio.create_task(wal.append(b"x" * 992))
        await hold.wait_entered()
        tasks = [asyncio.create_task(wal.append(b"%d" % n * 90)) for n in range(6)]
        many = asyncio.create_task(wal.append_many([b"m"] * 3))
        await turns()
        tasks[1].cancel()
        tasks[4].cancel()
        many.cancel()
        await turns()
    await full
    outcomes = await gather_outcomes(tasks)
    assert [found for found in outcomes if isinstance(found, int)] == [2, 3, 4, 5]
    assert many.cancelled()
    assert await read_values(wal) == [b"x" * 992, *(b"%d" % n * 90 for n in (0, 2, 3, 5))]


@pytest.mark.parametrize("call", ["append", "append_many", "flush", "wait_durable"])
async def test_L14_cancelled_while_waiting_for_the_disk_nobody_else_is_harmed(
    wal, faulty, call
) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        before = asyncio.create_task(wal.append(b"before"))
        await hold.wait_entered()
        victim = asyncio.create_task(
            {
                "append": lambda: wal.append(b"victim"),
                "append_many": lambda: wal.append_many([b"victim"]),
                "flush": lambda: wal.flush(),
                "wait_durable": lambda: wal.wait_durable(1),
            }[call]()
        )
        await turns()
        after = asyncio.create_task(wal.append(b"after"))
        await turns()
        victim.cancel()
        await turns()
        assert victim.cancelled()
        assert not before.done()
    assert await before == 1
    appended = call.startswith("append")
    assert await after == (3 if appended else 2)
    victims = [b"victim"] if appended else []
    assert await read_values(wal) == [b"before", *victims, b"after"], "cancelled is not unwritten"


@pytest.mark.parametrize("turns_before", range(12))
async def test_L14_cancelling_half_of_the_callers_at_any_turn(log_directory, turns_before) -> None:
    async with Wal.open(log_directory, settings=TINY) as wal:
        tasks = [asyncio.create_task(wal.append(b"%03d" % n * 20)) for n in range(60)]
        await turns(turns_before)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await gather_outcomes(tasks)
        records = await read_all(wal)
        check_contiguous(records)
        by_offset = {record.offset: record.value for record in records}
        for n, found in enumerate(outcomes):
            if isinstance(found, int):
                assert by_offset[found] == b"%03d" % n * 20
            else:
                assert isinstance(found, asyncio.CancelledError)
                assert n % 2 == 0
        values = list(by_offset.values())
        assert len(values) == len(set(values)), "nothing is written twice"
        assert values == sorted(values), "first come, first served"


async def test_L14_cancelling_close_does_not_stop_it(wal, faulty, log_directory) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        offset = wal.append_nowait(b"a")
        await hold.wait_entered()
        closing = asyncio.create_task(wal.aclose())
        await turns()
        closing.cancel()
        await turns()
        assert closing.cancelled()
        with pytest.raises(WalClosedError):
            wal.append_nowait(b"b")
    await wal.aclose()
    await wal.wait_durable(offset)
    assert [record.value for record in await contents(log_directory)] == [b"a"]


async def test_an_error_of_a_closing_that_nobody_waits_for_is_logged(
    log_directory, faulty, caplog
) -> None:
    wal = await Wal.open(log_directory, settings=TINY, fs=faulty)
    await wal.append(b"a")
    with faulty.hold("truncate") as hold:
        closing = asyncio.create_task(wal.aclose())
        await hold.wait_entered()
        closing.cancel()
        await turns()
        faulty.fail("truncate")
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks)
    del wal, closing
    gc.collect()
    assert "closing the log" in caplog.text


def test_a_loop_that_ends_without_closing_leaves_a_log_that_opens(log_directory) -> None:
    async def forget() -> None:
        wal = await Wal.open(log_directory)
        await wal.append(b"kept")
        wal.append_nowait(b"perhaps")

    def is_told() -> bool:
        gc.collect()  # the log's thread may still be about to let go of it
        return bool(told.list)

    def end() -> None:
        asyncio.run(forget())
        wait_until(is_told)

    with pytest.warns(ResourceWarning, match="its accepted records were written") as told:
        end()
    assert open_descriptors(log_directory) == []
    values = [record.value for record in asyncio.run(contents(log_directory))]
    assert values in ([b"kept"], [b"kept", b"perhaps"])


class _BrokenClock(ManualClock):
    """A clock with a defect: its sleep raises."""

    def __init__(self) -> None:
        super().__init__()
        self.crash = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.crash.wait()
        raise RuntimeError("a defect")


async def test_a_defect_in_a_task_of_the_log_leaves_nobody_waiting(log_directory, faulty) -> None:
    clock = _BrokenClock()
    settings = TINY.replace(segment_age_seconds=60)
    wal = await Wal.open(log_directory, settings=settings, fs=faulty, clock=clock)
    await wal.append(b"kept")
    reading = asyncio.create_task(anext(wal.follow(2)))
    with faulty.hold("datasync", name=ACTIVE) as hold:
        in_flight = asyncio.create_task(wal.append(b"in flight" * 100))
        await hold.wait_entered()
        waiting = asyncio.create_task(wal.append(b"no room" * 100))
        await turns()
        clock.crash.set()
        await turns()
    outcomes = await gather_outcomes([in_flight, reading, waiting])
    assert [type(found) for found in outcomes] == [
        OutcomeUnknownError,
        WalClosedError,
        WalClosedError,
    ]
    assert [found.outcome for found in outcomes] == ["unknown", "not_written", "not_written"]
    with pytest.raises(WalClosedError):
        wal.append_nowait(b"")
    with pytest.raises(WalClosedError):
        await wal.rotate()
    with pytest.raises(WalClosedError) as closing:
        await wal.aclose()
    assert str(closing.value.__cause__) == "a defect"
    assert (await contents(log_directory))[0].value == b"kept"
