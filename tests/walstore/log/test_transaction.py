"""Transactions: all or nothing, in memory or in a file of their own, beside other appends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from tests.local import SMALL, contents, open_descriptors, read_all, read_values, segments, turns
from tests.waiting import until
from walstore import (
    DiskFullError,
    OffsetMismatchError,
    RecordTooLargeError,
    RegisterMismatchError,
    Settings,
    StorageUnavailableError,
    StreamClosedError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock

SETTINGS = SMALL.replace(transaction_memory_bytes=8 * KIB)
LARGE = [b"%05d" % n * 20 for n in range(2000)]
"""200 KB: more than the memory of a transaction, a segment, or the channel takes."""


@pytest.fixture(params=["small", "large"])
def values(request) -> list[bytes]:
    """Records that stay in memory, and records that go to a file."""
    return LARGE if request.param == "large" else [b"a", b"b", b"c"]


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem, clock: ManualClock):
    """An open log on a file system that can fail."""
    opened = await Wal.open(log_directory, settings=SETTINGS, fs=faulty, clock=clock)
    yield opened
    faulty.heal()
    try:
        await opened.aclose()
    except WalError:
        assert opened._engine.writer.failure is not None


def leftovers(directory: Path) -> list[str]:
    """Files of transactions that are no segments."""
    return sorted(path.name for path in directory.glob("transaction-*"))


async def fill(transaction, values: list[bytes]) -> None:
    for value in values:
        await transaction.append(value)


# -- commit ----------------------------------------------------------------------------------------


async def test_it_is_there_as_a_whole_once_it_commits(wal, values, log_directory) -> None:
    await wal.append(b"before")
    async with wal.transaction() as transaction:
        for place, value in enumerate(values):
            assert await transaction.append(value) == place
        assert wal.tail == 2
        assert transaction.span is None
        assert await read_values(wal) == [b"before"]
    assert transaction.span == range(2, 2 + len(values))
    assert wal.durable_limit == wal.tail == transaction.span.stop
    assert await wal.append(b"after") == transaction.span.stop
    assert await read_values(wal) == [b"before", *values, b"after"]
    assert leftovers(log_directory) == []
    await wal.aclose()
    assert [r.value for r in await contents(log_directory)] == [b"before", *values, b"after"]


async def test_others_append_meanwhile_and_are_not_held_up(wal, values) -> None:
    async with wal.transaction() as transaction:
        for at, value in enumerate(values):
            await transaction.append(value)
            if at % 100 == 0:
                await wal.append(b"other")
    others = 1 + (len(values) - 1) // 100
    assert transaction.span == range(1 + others, 1 + others + len(values))
    assert await read_values(wal) == [b"other"] * others + values


async def test_several_at_a_time(wal) -> None:
    async def run(number: int) -> range:
        async with wal.transaction() as transaction:
            await fill(transaction, [b"%d-%d" % (number, at) * 100 for at in range(50)])
        return transaction.span

    spans = await asyncio.gather(*map(run, range(6)))
    found = await read_values(wal)
    for number, span in enumerate(spans):
        expected = [b"%d-%d" % (number, at) * 100 for at in range(50)]
        assert found[span.start - 1 : span.stop - 1] == expected
    assert len(found) == 300


async def test_a_large_one_is_a_segment_of_its_own(wal, log_directory) -> None:
    await wal.append(b"before")
    async with wal.transaction() as transaction:
        await fill(transaction, LARGE)
    await wal.append(b"after")
    assert [path.stem.lstrip("0") for path in segments(log_directory)] == ["1", "2", "2002"]
    assert wal.statistics().segments == 3


async def test_two_large_ones_follow_each_other(wal, log_directory) -> None:
    for _ in range(2):
        async with wal.transaction() as transaction:
            await fill(transaction, LARGE)
    assert [path.stem.lstrip("0") for path in segments(log_directory)] == ["1", "2001", "4001"]
    assert await read_values(wal) == LARGE * 2


async def test_records_keep_all_that_they_were_given(wal, clock) -> None:
    headers = {"h": b"1"}
    async with wal.transaction() as transaction:
        await transaction.append(b"x", b"key", "eu", headers, clock.now_us() - 5)
        await transaction.append(b"y")
        await fill(transaction, LARGE)
        await transaction.append(b"z", stream="us")
    first, second, *_, last = await read_all(wal)
    assert first[1:5] == (b"x", b"key", "eu", headers)
    assert second[1:5] == (b"y", None, None, {})
    assert last.stream == "us"
    assert first.timestamp_us == clock.now_us() - 5
    assert list(wal.streams()) == ["eu", "us"]


async def test_time_never_goes_back_behind_what_was_appended_meanwhile(wal, clock) -> None:
    async with wal.transaction() as transaction:
        await fill(transaction, LARGE)
        clock.advance(10)
        await wal.append(b"meanwhile")
    times = [record.timestamp_us for record in await read_all(wal)]
    assert times == sorted(times)


async def test_a_reader_sees_all_of_it_or_nothing(wal, values) -> None:
    reader = wal.follow()
    reading = asyncio.create_task(reader.fetch(max_records=10_000, max_bytes=1 << 30))
    async with wal.transaction() as transaction:
        await fill(transaction, values)
        await turns(50)
        assert not reading.done()
    first = await reading
    assert first.start == 1
    assert wal.durable_limit == 1 + len(values)


async def test_without_records_it_is_a_barrier(wal, faulty) -> None:
    with faulty.hold("datasync") as hold:
        wal.append_nowait(b"accepted")
        async with asyncio.timeout(60):
            await hold.wait_entered()

            async def barrier() -> range:
                async with wal.transaction() as transaction:
                    pass
                return transaction.span

            waiting = asyncio.create_task(barrier())
            await turns(50)
            assert not waiting.done()
            hold.release()
            assert await waiting == range(2, 2)
    assert wal.durable_limit == 2


# -- rollback --------------------------------------------------------------------------------------


async def test_an_exception_rolls_back(wal, values, log_directory) -> None:
    with pytest.raises(ZeroDivisionError):
        async with wal.transaction() as transaction:
            await fill(transaction, values)
            raise ZeroDivisionError
    assert transaction.span is None
    assert wal.tail == 1
    assert leftovers(log_directory) == []
    assert await wal.append(b"next") == 1


async def test_a_cancellation_rolls_back(wal, values, log_directory) -> None:
    filled = asyncio.Event()

    async def work() -> None:
        async with wal.transaction() as transaction:
            await fill(transaction, values)
            filled.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await filled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not leftovers(log_directory))
    assert wal.tail == 1
    assert await wal.append(b"next") == 1


async def test_rollback_by_hand(wal, values, log_directory) -> None:
    async with wal.transaction() as transaction:
        await fill(transaction, values)
        await transaction.rollback()
        await transaction.rollback()
        with pytest.raises(WalClosedError, match="rolled back"):
            await transaction.append(b"more")
    assert transaction.span is None
    assert leftovers(log_directory) == []
    assert wal.statistics().transactions_rolled_back == 1


async def test_cancelled_at_any_moment_it_is_there_as_a_whole_or_not_at_all(
    log_directory, values, faulty
) -> None:
    """Also in the middle of the commit, whose caller then looks at ``span``."""
    wal = await Wal.open(log_directory, settings=SETTINGS, fs=faulty)
    spans = []
    for moment in range(0, 60, 2):
        transaction = wal.transaction()

        async def work(transaction=transaction) -> None:
            async with transaction:
                await fill(transaction, values)

        task = asyncio.create_task(work())
        await turns(moment)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            assert transaction.span is not None
        if transaction.span is not None:
            spans.append(transaction.span)
    await wal.flush()
    assert wal.tail == 1 + len(values) * len(spans)
    assert await read_values(wal) == values * len(spans)
    await wal.aclose()
    assert leftovers(log_directory) == []
    assert open_descriptors(log_directory) == []


# -- conditions ------------------------------------------------------------------------------------


async def test_a_condition_that_does_not_hold_rolls_back(wal, values, log_directory) -> None:
    await wal.append(b"first")
    with pytest.raises(OffsetMismatchError) as offset:
        async with wal.transaction(expect_offset=1, update={"owner": "x"}) as transaction:
            await fill(transaction, values)
    assert (offset.value.expected, offset.value.actual) == (1, 2)
    with pytest.raises(RegisterMismatchError) as register:
        async with wal.transaction(expect={"owner": "me"}) as transaction:
            await fill(transaction, values)
    assert (register.value.expected, register.value.actual) == ({"owner": "me"}, {})
    assert (offset.value.outcome, register.value.outcome) == ("not_written", "not_written")
    assert wal.tail == 2
    assert wal.registers == {}
    assert leftovers(log_directory) == []


async def test_registers_change_with_the_records(wal, values, log_directory) -> None:
    async with wal.transaction(
        expect_offset=1, expect={"owner": None}, update={"owner": "me", "x": "1"}
    ) as transaction:
        await fill(transaction, values)
        assert wal.registers == {}
    assert wal.registers == {"owner": "me", "x": "1"}
    async with wal.transaction(expect={"owner": "me"}, update={"x": None}):
        pass
    assert wal.registers == {"owner": "me"}
    await wal.aclose()
    async with Wal.open(log_directory) as reopened:
        assert reopened.registers == {"owner": "me"}


async def test_a_closed_stream_refuses_a_transaction(wal, values, log_directory) -> None:
    await wal.open_stream("eu")
    await wal.close_stream("eu")
    with pytest.raises(StreamClosedError):
        async with wal.transaction() as transaction:
            await transaction.append(b"", stream="eu")
            await fill(transaction, values)
    assert wal.tail == 1
    assert leftovers(log_directory) == []


# -- bad use ---------------------------------------------------------------------------------------


async def test_bad_records_leave_it_as_it_was(wal) -> None:
    async with wal.transaction() as transaction:
        await transaction.append(b"good")
        with pytest.raises(TypeError):
            await transaction.append("text")  # type: ignore[arg-type]
        with pytest.raises(RecordTooLargeError):
            await transaction.append(bytes(SETTINGS.max_record_bytes + 1))
        with pytest.raises(ValueError, match="stream"):
            await transaction.append(b"", stream="")
        await transaction.append(b"too")
    assert await read_values(wal) == [b"good", b"too"]


async def test_it_is_used_once_inside_its_block(wal) -> None:
    transaction = wal.transaction()
    with pytest.raises(RuntimeError, match="async with"):
        await transaction.append(b"")
    async with transaction:
        await transaction.append(b"one")
    with pytest.raises(RuntimeError, match="once"):
        async with transaction:
            pass
    with pytest.raises(RuntimeError, match=r"is committed, as range\(1, 2\)"):
        await transaction.append(b"")


@pytest.mark.parametrize("registers", [{"": "x"}, {"a": "x" * 5000}, {"n" * 257: "x"}])
async def test_bad_registers_are_refused_at_once(wal, registers) -> None:
    with pytest.raises(ValueError, match="register"):
        wal.transaction(update=registers)
    with pytest.raises(TypeError):
        wal.transaction(expect={"a": 1})  # type: ignore[dict-item]


async def test_the_log_closes_under_it(wal, values, log_directory) -> None:
    with pytest.raises(WalClosedError):
        async with wal.transaction() as transaction:
            await fill(transaction, values)
            await wal.aclose()
    assert leftovers(log_directory) == []
    assert open_descriptors(log_directory) == []
    with pytest.raises(WalClosedError):
        async with wal.transaction():
            pass


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "error"),
    [
        ("open", errno.ENOSPC, DiskFullError),
        ("open", errno.EIO, StorageUnavailableError),
        ("pwrite", errno.ENOSPC, DiskFullError),
        ("datasync", errno.EIO, StorageUnavailableError),
    ],
)
async def test_a_disk_that_refuses_its_file_rolls_back_and_does_not_fail_the_log(
    wal, faulty, log_directory, kind, code, error
) -> None:
    faulty.fail(kind, name="transaction-*", error=code)
    with pytest.raises(error) as caught:
        async with wal.transaction() as transaction:
            await fill(transaction, LARGE)
    assert caught.value.outcome == "not_written"
    assert transaction.span is None
    faulty.heal()
    assert await wal.append(b"works") == 1
    assert leftovers(log_directory) == []


async def test_who_catches_a_failure_inside_is_told_when_the_block_ends(wal, faulty) -> None:
    """Else it would look as if it had committed."""
    faulty.fail("pwrite", name="transaction-*", error=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        async with wal.transaction() as transaction:
            for value in LARGE:
                with contextlib.suppress(DiskFullError):
                    await transaction.append(value)
    assert transaction.span is None
    assert wal.tail == 1


async def test_who_catches_a_cancellation_inside_is_told_when_the_block_ends(wal, faulty) -> None:
    with pytest.raises(WalClosedError, match="cancelled, so it was rolled back"):
        async with wal.transaction() as transaction:
            with faulty.hold("pwrite", name="transaction-*") as hold:
                filling = asyncio.create_task(fill(transaction, LARGE))
                await hold.wait_entered()
                filling.cancel()
                hold.release()
                with contextlib.suppress(asyncio.CancelledError):
                    await filling
    assert transaction.span is None
    assert wal.tail == 1


async def test_closing_beside_many_that_roll_back(wal, log_directory) -> None:
    """Their files go, whoever is first to delete them."""

    async def abandon() -> None:
        async with wal.transaction() as transaction:
            await fill(transaction, LARGE[:500])
            await started.wait()
            await transaction.rollback()

    started = asyncio.Event()
    abandoning = [asyncio.create_task(abandon()) for _ in range(8)]
    await until(lambda: len(wal._engine.spills) == 8)
    closing = asyncio.create_task(wal.aclose())
    started.set()
    await asyncio.gather(*abandoning, closing)
    assert leftovers(log_directory) == []
    assert open_descriptors(log_directory) == []


async def test_closing_beside_one_that_begins_to_spill(wal, faulty, log_directory) -> None:
    """Nothing is done with its file once the lock is released, and it is told why."""

    async def spill(begin: asyncio.Event | None = None) -> None:
        async with wal.transaction() as transaction:
            if begin is not None:
                await begin.wait()
            await fill(transaction, LARGE)

    begin = asyncio.Event()
    second = asyncio.create_task(spill(begin))
    with (
        faulty.hold("open", name="transaction-2-*") as late,
        faulty.hold("pwrite", name="transaction-1-*") as hold,
    ):
        first = asyncio.create_task(spill())
        await hold.wait_entered()
        closing = asyncio.create_task(wal.aclose())
        await until(lambda: wal._engine.source._closed is not None)
        await turns()
        begin.set()
        await turns()
        hold.release()
        await closing
        late.release()
        for outcome in await asyncio.gather(first, second, return_exceptions=True):
            assert isinstance(outcome, WalClosedError)
    assert leftovers(log_directory) == []
    assert open_descriptors(log_directory) == []


async def test_spilling_for_the_first_time_after_the_log_was_closed(wal, log_directory) -> None:
    with pytest.raises(WalClosedError):
        async with wal.transaction() as transaction:
            await transaction.append(b"small")
            await wal.aclose()
            await fill(transaction, LARGE)
    assert leftovers(log_directory) == []


async def test_leftovers_of_a_crash_are_removed(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"x")
    (log_directory / "transaction-1-0a1b2c3d.tmp").write_bytes(b"unfinished")
    assert [record.value for record in await contents(log_directory)] == [b"x"]
    assert leftovers(log_directory) == []


async def test_memory_stays_bounded(tmp_path: Path) -> None:
    """What a transaction holds does not grow with its size."""
    settings = Settings(transaction_memory_bytes=256 * KIB, batch_bytes=256 * KIB)
    async with Wal.open(tmp_path / "log", settings=settings) as wal:
        most = 0
        async with wal.transaction() as transaction:
            for _ in range(400):
                await transaction.append(bytes(10 * KIB))
                most = max(most, transaction.held_bytes)
        assert most < 300 * KIB
        assert transaction.span == range(1, 401)
