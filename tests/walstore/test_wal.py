"""Wal: the public calls, what they accept and refuse, and that no interruption harms anybody."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.local import (
    SMALL,
    check_contiguous,
    contents,
    gather_outcomes,
    open_descriptors,
    read_all,
    read_values,
    turns,
)
from tests.waiting import until
from walstore import (
    CorruptionError,
    DiskFullError,
    Durability,
    InvalidSettingsError,
    OffsetNotWrittenError,
    Record,
    RecordTooLargeError,
    Settings,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalLockedError,
    WouldBlock,
)
from walstore.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock

ACTIVE = "next.tmp"
"""The name under which a new segment was opened; its calls keep it."""
TINY = SMALL.replace(max_record_bytes=1000, channel_bytes=1000)


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem, clock: ManualClock):
    """An open log with little room in its channel."""
    async with Wal.open(log_directory, settings=TINY, fs=faulty, clock=clock) as opened:
        yield opened
        faulty.heal()


# -- opening and closing ---------------------------------------------------------------------------


async def test_open_can_be_awaited_or_entered(log_directory) -> None:
    wal = await Wal.open(log_directory)
    assert await wal.append(b"a") == 1
    await wal.aclose()
    async with Wal.open(str(log_directory)) as wal:
        assert await wal.append(b"b") == 2
    async with await Wal.open(log_directory) as wal:
        assert await read_values(wal) == [b"a", b"b"]


async def test_what_an_empty_log_looks_like(log_directory) -> None:
    async with Wal.open(log_directory) as wal:
        assert (wal.head, wal.tail, wal.durable_limit, wal.uploaded_limit) == (1, 1, 1, 1)
        assert wal.recovery.created
        assert await read_all(wal) == []
        assert wal.path == log_directory
        assert wal.settings == Settings()
        assert repr(wal) == f"<Wal {log_directory} [1, 1)>"
        await wal.flush()


async def test_a_log_keeps_its_identity(log_directory, tmp_path) -> None:
    async with Wal.open(log_directory) as wal, Wal.open(tmp_path / "other") as other:
        log_id = wal.log_id
        assert len(log_id) == 32
        assert log_id != other.log_id
    async with Wal.open(log_directory) as wal:
        assert wal.log_id == log_id
        assert not wal.recovery.created


async def test_closing_twice_and_at_once_is_allowed(log_directory) -> None:
    wal = await Wal.open(log_directory)
    await asyncio.gather(wal.aclose(), wal.aclose())
    await wal.aclose()
    assert open_descriptors(log_directory) == []


async def test_closing_drains_what_was_accepted(log_directory) -> None:
    wal = await Wal.open(log_directory, settings=SMALL)
    for n in range(200):
        wal.append_nowait(b"%04d" % n * 250)
    await wal.aclose()
    assert wal.durable_limit == 201
    records = await contents(log_directory)
    check_contiguous(records)
    assert [record.value for record in records] == [b"%04d" % n * 250 for n in range(200)]


async def test_closing_acknowledges_waiters_and_refuses_those_without_room(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        accepted = asyncio.create_task(wal.append(b"x" * 900))
        await hold.wait_entered()
        waiting = asyncio.create_task(wal.append(b"y" * 900))
        await turns()
        closing = asyncio.create_task(wal.aclose())
        await turns()
        with pytest.raises(WalClosedError) as refused:
            await waiting
        assert refused.value.outcome == "not_written"
        assert not closing.done()
    assert await accepted == 1
    await closing


async def test_a_closed_log_refuses_everything(log_directory) -> None:
    wal = await Wal.open(log_directory)
    await wal.append(b"a")
    await wal.aclose()
    for call in (
        lambda: wal.append(b"b"),
        lambda: wal.append_many([b"b"]),
        lambda: wal.rotate(),
        lambda: read_all(wal),
    ):
        with pytest.raises(WalClosedError, match="the log is closed") as refused:
            await call()
        assert (refused.value.reason, refused.value.outcome) == ("clean", "not_written")
    with pytest.raises(WalClosedError):
        wal.append_nowait(b"b")
    await wal.wait_durable(1)
    await wal.flush()
    assert (wal.tail, wal.durable_limit) == (2, 2)


async def test_an_error_in_the_block_is_not_replaced_by_one_of_closing(
    log_directory, faulty
) -> None:
    with pytest.raises(KeyError) as found:
        async with Wal.open(log_directory, fs=faulty) as wal:
            await wal.append(b"x")
            faulty.fail("truncate")
            raise KeyError("mine")
    assert "closing failed: StorageUnavailableError" in found.value.__notes__[0]
    faulty.heal()
    async with Wal.open(log_directory):
        pass


async def test_a_failed_close_loses_nothing_and_frees_the_lock(log_directory, faulty) -> None:
    wal = await Wal.open(log_directory, fs=faulty)
    await wal.append(b"a")
    faulty.fail("truncate")
    with pytest.raises(StorageUnavailableError):
        await wal.aclose()
    faulty.heal()
    assert [record.value for record in await contents(log_directory)] == [b"a"]


# -- what cannot be opened -------------------------------------------------------------------------


async def test_L15_two_openers_one_wins(log_directory) -> None:
    outcomes = await gather_outcomes(Wal.open(log_directory)._open_it() for _ in range(4))
    winners = [found for found in outcomes if isinstance(found, Wal)]
    assert len(winners) == 1
    losers = [found for found in outcomes if isinstance(found, WalLockedError)]
    assert len(losers) == 3
    assert losers[0].path == str(log_directory)
    with pytest.raises(WalLockedError, match=str(os.getpid())):  # by now the winner has signed
        await Wal.open(log_directory)
    assert await winners[0].append(b"a") == 1
    await winners[0].aclose()
    async with Wal.open(log_directory) as wal:
        assert wal.tail == 2


HOLDER = """
import asyncio, sys
from walstore import Wal

async def main():
    async with Wal.open(sys.argv[1]) as wal:
        print(await wal.append(b"theirs"), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


async def test_L15_an_opener_in_another_process_wins_until_it_dies(log_directory) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        log_directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"1\n"
    with pytest.raises(WalLockedError, match=f"process {holder.pid} on"):
        await Wal.open(log_directory)
    holder.send_signal(signal.SIGKILL)
    await holder.communicate()
    assert [record.value for record in await contents(log_directory)] == [b"theirs"]


async def test_a_path_that_is_a_file(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    for place in (path, path / "below"):
        with pytest.raises(StorageUnavailableError, match="not a directory") as found:
            await Wal.open(place)
        assert not found.value.retriable
        assert isinstance(found.value.__cause__, OSError)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("kind", ["make_directory", "lock", "open"])
async def test_a_directory_that_cannot_be_written(log_directory, faulty, code, kind) -> None:
    faulty.fail(kind, code)
    with pytest.raises(StorageUnavailableError, match="cannot be written") as found:
        await Wal.open(log_directory, fs=faulty)
    assert str(log_directory) in str(found.value)
    assert open_descriptors(log_directory) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_read_only_directory(log_directory) -> None:
    async with Wal.open(log_directory):
        pass
    log_directory.chmod(0o500)
    (log_directory / "LOCK").chmod(0o400)
    with pytest.raises(StorageUnavailableError, match="cannot be written"):
        await Wal.open(log_directory)
    log_directory.chmod(0o700)


async def test_a_full_disk(log_directory, faulty) -> None:
    faulty.limit_space(100)
    with pytest.raises(DiskFullError, match="no space left"):
        await Wal.open(log_directory, fs=faulty)
    faulty.limit_space(None)
    async with Wal.open(log_directory, fs=faulty) as wal:
        await wal.append(b"a")


async def test_damaged_files(log_directory) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"a")
    (log_directory / "00000000000000000001.wal").write_bytes(b"hello")
    with pytest.raises(CorruptionError):
        await Wal.open(log_directory)
    assert open_descriptors(log_directory) == []


async def test_settings_that_contradict_are_refused(log_directory) -> None:
    with pytest.raises(InvalidSettingsError, match="needs a log opened with tier="):
        await Wal.open(log_directory, settings=Settings(durability="cloud"))
    assert not log_directory.exists()


@pytest.mark.parametrize("kind", ["make_directory", "lock", "pwrite", "replace", "cell"])
async def test_L14_an_open_that_is_cancelled_leaves_the_log_free(
    log_directory, faulty, kind
) -> None:
    with faulty.hold(kind) as hold:
        opening = asyncio.create_task(Wal.open(log_directory, fs=faulty)._open_it())
        await hold.wait_entered()
        opening.cancel()
        await turns()
        assert not opening.done(), "it waits for the call on the thread, so that nothing is left"
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert open_descriptors(log_directory) == []
    async with Wal.open(log_directory) as wal:
        assert await wal.append(b"a") == 1


async def test_L14_an_open_that_is_cancelled_at_any_turn_leaves_the_log_free(log_directory) -> None:
    for after in sorted({int(1.4**n) for n in range(40)}):
        opening = asyncio.create_task(Wal.open(log_directory)._open_it())
        await turns(after)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().aclose()
            break
        assert open_descriptors(log_directory) == []
        async with Wal.open(log_directory) as wal:
            assert await wal.append(b"") == wal.tail - 1
    else:
        pytest.fail("it never finished")


async def test_L14_a_cancelled_open_that_fails_meanwhile_is_silent(log_directory, faulty) -> None:
    with faulty.hold("list") as hold:
        faulty.fail("list")
        opening = asyncio.create_task(Wal.open(log_directory, fs=faulty)._open_it())
        await hold.wait_entered()
        opening.cancel()
        await turns()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert open_descriptors(log_directory) == []


# -- appending -------------------------------------------------------------------------------------


async def test_a_record_comes_back_as_it_was_given(wal, clock) -> None:
    now_us = clock.now_us()
    await wal.append(b"plain")
    await wal.append(b"", key=b"", stream="eu", headers={"h": b"1", "": b""})
    await wal.append(b"late", timestamp_us=now_us + 5)
    await wal.append(b"early", b"k", timestamp_us=7)
    records = await read_all(wal)
    assert [r._replace(headers=dict(r.headers)) for r in records] == [
        Record(1, b"plain", None, None, {}, now_us),
        Record(2, b"", b"", "eu", {"h": b"1", "": b""}, now_us),
        Record(3, b"late", None, None, {}, now_us + 5),
        Record(4, b"early", b"k", None, {}, now_us + 5),
    ]


async def test_values_of_no_length(wal) -> None:
    assert await wal.append(b"") == 1
    assert await wal.append_many([b"", b""]) == range(2, 4)
    assert wal.append_nowait(b"") == 4
    await wal.flush()
    assert await read_values(wal) == [b""] * 4


@pytest.mark.parametrize("value", ["text", 1, None, [b"x"], 1.5])
async def test_values_that_are_not_bytes_are_type_errors_and_take_no_offset(wal, value) -> None:
    with pytest.raises(TypeError, match="must be bytes"):
        await wal.append(value)
    with pytest.raises(TypeError):
        wal.append_nowait(value)
    with pytest.raises(TypeError):
        await wal.append_many([b"fine", value])
    assert wal.tail == 1


async def test_bytes_like_values_are_taken_as_they_are_now(wal) -> None:
    value = bytearray(b"abc")
    wal.append_nowait(value)
    value[:] = b"xyz"
    await wal.append(memoryview(value))
    assert await read_values(wal) == [b"abc", b"xyz"]


async def test_records_over_the_limit_are_refused_before_they_take_an_offset(wal) -> None:
    for call in (
        lambda: wal.append(b"x" * 1001),
        lambda: wal.append(b"x" * 999, key=b"kk"),
        lambda: wal.append_many([b"x" * 500, b"y" * 501]),
    ):
        with pytest.raises(RecordTooLargeError) as refused:
            await call()
        assert (refused.value.size_bytes, refused.value.limit_bytes) == (1001, 1000)
    with pytest.raises(RecordTooLargeError):
        wal.append_nowait(b"x" * 1001)
    assert wal.tail == 1
    assert await wal.append(b"x" * 1000) == 1


async def test_a_group_has_consecutive_offsets_and_is_one_batch(wal) -> None:
    assert await wal.append_many([b"a", b"b"], key=b"k") == range(1, 3)
    assert await wal.append_many(value for value in [b"c"]) == range(3, 4)
    async with wal.reader(follow=False) as reader:
        assert [(b.start, b.limit) async for b in reader.batches()] == [(1, 3), (3, 4)]
    with pytest.raises(ValueError, match="at least one value"):
        await wal.append_many([])
    with pytest.raises(TypeError):
        await wal.append_many(b"abc")


async def test_groups_of_concurrent_callers_do_not_mix(wal) -> None:
    async def append(name: bytes) -> range:
        return await wal.append_many([name] * 7)

    spans = await asyncio.gather(*(append(b"%d" % n) for n in range(30)))
    values = await read_values(wal)
    for n, span in enumerate(spans):
        assert values[span.start - 1 : span.stop - 1] == [b"%d" % n] * 7


async def test_timestamps_are_checked(wal, clock) -> None:
    for wrong in (1.5, "now", True):
        with pytest.raises(TypeError, match="timestamp_us must be an int"):
            await wal.append(b"", timestamp_us=wrong)
    day_us = 86_400_000_000
    for wild in (-1, clock.now_us() + day_us + 1, clock.now_us() * 1000):
        with pytest.raises(ValueError, match="is it in microseconds"):
            await wal.append(b"", timestamp_us=wild)
    assert wal.tail == 1
    await wal.append(b"", timestamp_us=clock.now_us() + day_us)
    await wal.append(b"", timestamp_us=0)


async def test_levels(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE):
        for memory in ("memory", Durability.MEMORY):
            await wal.append(b"", durability=memory)
    await wal.append(b"", durability="disk")
    for wrong, why in [
        ("cloud", "needs a log opened with tier="),
        ("replicated", "not available yet"),
        ("paper", "durability must be one of 'memory', 'disk', 'cloud'"),
    ]:
        for call in (
            lambda level=wrong: wal.append(b"", durability=level),
            lambda level=wrong: wal.append_many([b""], durability=level),
            lambda level=wrong: wal.wait_durable(1, level),
        ):
            with pytest.raises(InvalidSettingsError, match=why):
                await call()
    assert wal.tail == 4, "a level that cannot be had is refused before anything is written"


async def test_a_log_has_a_level_of_its_own(log_directory, faulty) -> None:
    settings = Settings(durability="memory")
    async with Wal.open(log_directory, settings=settings, fs=faulty) as wal:
        with faulty.hold("datasync", name=ACTIVE) as hold:
            await wal.append(b"a")
            await wal.append_many([b"b"])
            await hold.wait_entered()
            disk = asyncio.create_task(wal.append(b"c", durability="disk"))
            await turns()
            assert not disk.done()
        assert await disk == 3


async def test_nowait_then_wait(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        offset = wal.append_nowait(b"a")
        await hold.wait_entered()
        waiting = asyncio.create_task(wal.wait_durable(offset))
        flushing = asyncio.create_task(wal.flush())
        await wal.wait_durable(offset, "memory")
        await turns()
        assert not waiting.done()
        assert not flushing.done()
    await waiting
    await flushing
    assert wal.durable_limit == 2


async def test_offsets_that_nobody_has_cannot_be_waited_for(wal) -> None:
    for offset in (0, -1, 1, 5):
        with pytest.raises(OffsetNotWrittenError):
            await wal.wait_durable(offset)


# -- back-pressure ---------------------------------------------------------------------------------


async def test_a_full_channel_makes_append_wait_in_turn_and_nowait_raise(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        full = asyncio.create_task(wal.append(b"x" * 992))
        await hold.wait_entered()
        with pytest.raises(WouldBlock):
            wal.append_nowait(b"")
        waiting = [asyncio.create_task(wal.append(b"%d" % n * 100)) for n in range(9)]
        many = asyncio.create_task(wal.append_many([b"m" * 400] * 2))
        last = asyncio.create_task(wal.append(b"last"))
        await turns()
        assert wal.tail == 2
        assert wal.statistics().waiting_bytes == 1000
    assert await full == 1
    assert await asyncio.gather(*waiting) == list(range(2, 11))
    assert await many == range(11, 13)
    assert await last == 13


# -- L14: cancellation -----------------------------------------------------------------------------


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


def test_a_loop_that_ends_without_closing_leaves_a_log_that_opens(log_directory) -> None:
    async def forget() -> None:
        wal = await Wal.open(log_directory)
        await wal.append(b"kept")
        wal.append_nowait(b"perhaps")

    asyncio.run(forget())
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
    reading = asyncio.create_task(anext(wal.reader(2)))
    with faulty.hold("datasync", name=ACTIVE) as hold:
        in_flight = asyncio.create_task(wal.append(b"in flight" * 100))
        await hold.wait_entered()
        waiting = asyncio.create_task(wal.append(b"no room" * 100))
        await turns()
        clock.crash.set()
        await turns()
    outcomes = await gather_outcomes([in_flight, reading, waiting])
    assert all(isinstance(found, WalClosedError) for found in outcomes)
    assert [found.outcome for found in outcomes] == ["unknown", "unknown", "not_written"]
    with pytest.raises(WalClosedError):
        wal.append_nowait(b"")
    with pytest.raises(WalClosedError):
        await wal.rotate()
    with pytest.raises(ExceptionGroup) as closing:
        await wal.aclose()
    assert closing.group_contains(RuntimeError, match="a defect")
    assert (await contents(log_directory))[0].value == b"kept"


# -- reading ---------------------------------------------------------------------------------------


async def test_visible_is_durable(wal, faulty) -> None:
    """A reader never sees a record whose sync has not returned."""
    await wal.append(b"first")
    seen: list[int] = []

    async def follow() -> None:
        async with wal.reader() as reader:
            async for record in reader:
                assert record.offset < wal.durable_limit
                seen.append(record.offset)

    reading = asyncio.create_task(follow())
    await until(lambda: seen == [1])
    with faulty.hold("datasync", name=ACTIVE) as hold:
        offset = wal.append_nowait(b"second")
        await hold.wait_entered()
        await turns(100)
        assert seen == [1]
        assert await read_values(wal) == [b"first"]
        assert wal.reader("latest").position == offset
    await until(lambda: seen == [1, 2])
    reading.cancel()


async def test_times_find_records_across_batches_segments_and_restarts(log_directory) -> None:
    clock = ManualClock()
    moments = []
    for _ in range(3):
        async with Wal.open(log_directory, settings=SMALL, clock=clock) as wal:
            for _ in range(40):
                clock.advance(1)
                moments.append(clock.now_us())
                await wal.append(b"x" * 1000)
    async with Wal.open(log_directory, settings=SMALL, clock=clock) as wal:
        records = await read_all(wal)
        assert [record.timestamp_us for record in records] == moments
        for record in records[::7]:
            for shift_us, offset in ((0, 0), (-1, 0), (1, 1)):
                moment = record.timestamp + timedelta(microseconds=shift_us)
                found = await read_all(wal, moment)
                assert len(found) == 120 - (record.offset - 1 + offset)


async def test_a_clock_that_goes_back_does_not_take_the_log_with_it(log_directory) -> None:
    clock = ManualClock()
    for shift in (0, -3600, -60, 7200):
        clock.shift_wall(shift)
        async with Wal.open(log_directory, clock=clock) as wal:
            await wal.append(b"")
            await wal.append(b"", timestamp_us=5)
    check_contiguous(await contents(log_directory))


async def test_statistics(log_directory) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for _ in range(100):
            await wal.append(b"x" * KIB)
        await read_all(wal)
        found = wal.statistics()
        assert (found.head, found.local_head, found.tail, found.durable_limit) == (1, 1, 101, 101)
        assert (found.appended_records, found.waiting_records, found.waiting_bytes) == (100, 0, 0)
        assert found.appended_bytes > 100 * KIB
        assert found.commits == 100
        assert found.rotations == found.segments - 1 == 1
        assert 0 < found.cache_bytes <= 16 * KIB
        assert found.cache_evictions > 80
        assert found.file_reads > 5
        assert found.cache_hits > 0
        assert (found.epoch, found.tier_reads, found.tier_failure) == (1, 0, None)
