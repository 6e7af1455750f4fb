"""Wal: the public calls, what they accept and refuse."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.local import (
    SMALL,
    check_contiguous,
    contents,
    open_descriptors,
    read_all,
    read_values,
    turns,
)
from tests.waiting import until
from tests.walstore.wals import ACTIVE
from walstore import (
    Durability,
    InvalidSettingsError,
    OffsetNotWrittenError,
    Record,
    RecordTooLargeError,
    Settings,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WouldBlock,
)
from walstore.core.settings import KIB
from walstore.testing import ManualClock

# -- opening and closing -----------------------------------------------------------------------


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


# -- appending ---------------------------------------------------------------------------------


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
        with pytest.raises(TypeError, match="timestamp_us must be an aware datetime or an int"):
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
        ("replicated", "needs a log opened with replication="),
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


# -- back-pressure -----------------------------------------------------------------------------


async def test_a_full_channel_makes_append_wait_in_turn_and_nowait_raise(wal, faulty) -> None:
    with faulty.hold("datasync", name=ACTIVE) as hold:
        full = asyncio.create_task(wal.append(b"x" * 944))
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


# -- reading -----------------------------------------------------------------------------------


async def test_visible_is_durable(wal, faulty) -> None:
    """A reader never sees a record whose sync has not returned."""
    await wal.append(b"first")
    seen: list[int] = []

    async def follow() -> None:
        async with wal.follow() as reader:
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
        assert wal.follow("latest").position == offset
    await until(lambda: seen == [1, 2])
    reading.cancel()


@pytest.mark.slow
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
