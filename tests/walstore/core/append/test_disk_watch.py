"""The watermark: appends stop before the disk is full, nothing else does, and they come back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import pickle
from pathlib import Path

import pytest

from tests.channels import Channel
from tests.local import SMALL, turns
from tests.waiting import until
from walstore import DiskFullError
from walstore.core.append.disk_watch import RECHECK_SECONDS, DiskWatch
from walstore.core.batches.append_request import make_record
from walstore.core.files.posix import PosixFileSystem
from walstore.core.runtime.threads import Worker
from walstore.core.settings import KIB, MIB
from walstore.testing import ManualClock

MIN = 64 * MIB
STEP = 16 * MIB


class Disk(PosixFileSystem):
    """The real file system, with as much space as a test says."""

    def __init__(self, free_bytes: int) -> None:
        self.free: int | OSError = free_bytes
        self.looks = 0

    def free_bytes(self, path: Path) -> int:
        self.looks += 1
        if isinstance(self.free, OSError):
            raise self.free
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk(1 << 40)


@pytest.fixture
async def channel() -> Channel:
    return Channel(1, SMALL, asyncio.get_running_loop())


@pytest.fixture
async def worker():
    found = Worker("test")
    yield found
    found.close()


@pytest.fixture
async def watch(disk, channel, worker, clock) -> DiskWatch:
    return make_watch(disk, channel, worker, clock)


def make_watch(
    disk: Disk, channel: Channel, worker: Worker, clock: ManualClock, min_free_bytes: int = MIN
) -> DiskWatch:
    watch = DiskWatch(
        fs=disk, path=Path("/data/log"), min_free_bytes=min_free_bytes, worker=worker, clock=clock
    )
    watch.add(channel)
    return watch


@contextlib.asynccontextmanager
async def running(watch: DiskWatch):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch.run())
        await turns()
        yield
        task.cancel()


def put(channel: Channel, size: int = 10) -> int:
    return channel.put(make_record(bytes(size), None, None, None, None))


async def test_an_idle_log_and_one_with_space_have_no_timer(watch, disk, channel, clock) -> None:
    async with running(watch):
        assert (disk.looks, clock.sleepers) == (0, 0)
        watch.note_written(STEP - 1)
        await turns()
        assert disk.looks == 0
        watch.note_written(1)
        await until(lambda: disk.looks == 1)
        await turns()
        assert clock.sleepers == 0
        watch.note_written(STEP - 1)
        await turns()
        assert disk.looks == 1
        assert put(channel) == 1


async def test_below_the_line_appends_are_refused_and_come_back(
    watch, disk, channel, clock
) -> None:
    async with running(watch):
        disk.free = MIN - 1
        watch.note_written(STEP)
        await clock.wait_for_sleepers()
        with pytest.raises(DiskFullError) as found:
            put(channel)
        error = found.value
        assert (error.outcome, error.retriable) == ("not_written", True)
        assert str(error) == (
            f"{MIN - 1} bytes are free at /data/log and {MIN} are needed; free some space, "
            "then appends work again, or lower min_free_bytes"
        )
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        with pytest.raises(DiskFullError):
            await channel.put_wait(make_record(b"x", None, None, None, None))
        with pytest.raises(DiskFullError):
            channel.put_value(b"x")
        assert channel.tail == 1, "they took no offset"

        disk.free = MIN + STEP - 1
        clock.advance(RECHECK_SECONDS)
        await until(lambda: disk.looks == 2)
        await clock.wait_for_sleepers()
        with pytest.raises(DiskFullError, match=f"{MIN + STEP} are needed"):
            put(channel)

        disk.free = MIN + STEP
        clock.advance(RECHECK_SECONDS)
        await until(lambda: watch.refusal is None)
        assert put(channel) == 1
        assert channel.put_value(b"x") == 2
        await turns()
        assert clock.sleepers == 0, "the timer ends with the trouble"
        assert watch.free_bytes == MIN + STEP


async def test_what_waits_to_be_written_is_space_that_is_gone(watch, disk, channel) -> None:
    put(channel, 50 * KIB)
    disk.free = MIN + 50 * KIB
    await watch.check()
    assert watch.refusal is not None
    assert len(channel.take(1 << 30)) == 1, "what was accepted is written all the same"
    disk.free = MIN + STEP + 60 * KIB
    await watch.check()
    assert watch.refusal is None
    assert put(channel) == 2


async def test_who_waits_for_room_is_refused_too(watch, disk, channel) -> None:
    put(channel, 60 * KIB)
    waiting = [
        asyncio.create_task(channel.put_wait(make_record(bytes(60 * KIB), None, None, None, None)))
        for _ in range(4)
    ]
    await turns()
    blocked = [task for task in waiting if not task.done()]
    assert blocked
    disk.free = 0
    await watch.check()
    for task in blocked:
        with pytest.raises(DiskFullError):
            await task


async def test_a_file_system_that_does_not_answer_changes_nothing(watch, disk, channel) -> None:
    disk.free = OSError(errno.EIO, "no answer")
    await watch.check()
    assert put(channel) == 1
    disk.free = 0
    await watch.check()
    disk.free = OSError(errno.EIO, "no answer")
    await watch.check()
    with pytest.raises(DiskFullError):
        put(channel)


@pytest.mark.parametrize(
    ("min_free_bytes", "step", "resume"),
    [
        (4, 1, 5),
        (400 * KIB, 100 * KIB, 500 * KIB),
        (64 * MIB, 16 * MIB, 80 * MIB),
        (1024 * MIB, 16 * MIB, 1152 * MIB),
    ],
)
async def test_how_often_it_looks_and_when_it_lets_go(
    disk, channel, worker, clock, min_free_bytes, step, resume
) -> None:
    """So often that the disk cannot fill between two looks, but every 16 MiB at the most."""
    watch = make_watch(disk, channel, worker, clock, min_free_bytes)
    async with running(watch):
        watch.note_written(step - 1)
        await turns()
        assert disk.looks == 0
        disk.free = min_free_bytes - 1
        watch.note_written(1)
        await clock.wait_for_sleepers()
    for free, is_refused in ((resume - 1, True), (resume, False), (min_free_bytes, False)):
        disk.free = free
        await watch.check()
        assert (watch.refusal is not None) == is_refused


async def test_switched_off_it_never_looks(disk, channel, worker, clock) -> None:
    watch = make_watch(disk, channel, worker, clock, min_free_bytes=0)
    watch.judge(0)
    async with running(watch):
        watch.note_written(1 << 40)
        await turns()
    assert disk.looks == 0
    assert put(channel) == 1


async def test_a_burst_costs_one_look_at_a_time(watch, disk) -> None:
    async with running(watch):
        for _ in range(100):
            watch.note_written(STEP)
        await until(lambda: disk.looks == 1)
        await turns(50)
        assert disk.looks == 1


async def test_logs_of_one_disk_share_a_watch(watch, disk, channel) -> None:
    """They stop and go on together, and what waits in one counts for all."""
    loop = asyncio.get_running_loop()
    second, third = (Channel(1, SMALL, loop) for _ in range(2))
    watch.add(second)
    put(second, 50 * KIB)
    disk.free = MIN + 50 * KIB
    await watch.check()
    watch.add(third)  # a log that is opened meanwhile
    for found in (channel, second, third):
        with pytest.raises(DiskFullError):
            put(found)
    for _ in range(2):
        watch.remove(second)
    disk.free = MIN + STEP
    await watch.check()
    assert (put(channel), put(third)) == (1, 1)
    with pytest.raises(DiskFullError):
        put(second)


async def test_it_ends_with_the_log(watch, worker, clock, disk) -> None:
    """A closing log closes its threads, perhaps while space is being looked at."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch.run())
        await turns()
        worker.close()
        watch.note_written(STEP)
        await task


@pytest.mark.parametrize("refused", [False, True])
async def test_L14_cancelling_leaves_nothing_behind(watch, disk, clock, refused) -> None:
    if refused:
        disk.free = 0
        await watch.check()
    async with running(watch):
        if refused:
            await clock.wait_for_sleepers()
    assert clock.sleepers == 0
