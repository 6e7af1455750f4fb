"""Following a local log beside its writer: rotation, trim, the tier behind it, and its cursors."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path

import pytest

from tests import local
from tests.walstore.spark.reading import copied
from tests.walstore.spark.streaming.querying import Query, offsets
from uploader import CloudLog, CloudTier, UploadSettings
from walstore import Settings, Wal, WalStore
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import CELL_FILE_NAME
from walstore.errors import CorruptionError, LogNotFoundError, OffsetTrimmedError
from walstore.spark.partitions import FilePartition, FragmentPartition
from walstore.testing import FaultyFileSystem

KEEP_FEW = local.SMALL.replace(retention_bytes=0)
SMALL_FRAGMENTS = UploadSettings(fragment_bytes=16_384)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/orders"


def write(
    path: Path, count: int, *, url: str | None = None, settings: Settings = local.SMALL
) -> None:
    """Append kilobytes, of which some sixty make a segment; close the log, shipped if it has a tier."""
    chance = random.Random(1)

    async def run() -> None:
        tier = None if url is None else CloudTier(url, settings=SMALL_FRAGMENTS)
        async with Wal.open(path, settings=settings, tier=tier) as wal:
            for _ in range(count):
                await wal.append(chance.randbytes(1000), durability="memory")
            await wal.flush()

    asyncio.run(run())


async def test_a_live_log_through_rotations(log_directory):
    async with Wal.open(log_directory, settings=local.SMALL) as wal:
        query = await asyncio.to_thread(Query, log_directory)
        found = []
        for turn in range(10):
            await wal.append_many([b"%d" % turn * 1000] * 30)
            rows = await asyncio.to_thread(query.trigger)
            assert len(rows) == 30  # without waiting: the durable limit is in the cell
            found += offsets(rows)
            query.later(1)
        assert found == list(range(1, 301))
        assert len(local.segments(log_directory)) > 3


async def test_only_durable_records_are_seen(log_directory):
    fs = FaultyFileSystem(PosixFileSystem())
    async with Wal.open(log_directory, settings=local.SMALL, fs=fs) as wal:
        await wal.append(b"durable")
        query = await asyncio.to_thread(Query, log_directory)
        with fs.hold("datasync") as hold:
            wal.append_nowait(b"accepted")
            await hold.wait_entered()
            assert offsets(await asyncio.to_thread(query.drain)) == [1]
        await wal.flush()
        assert offsets(await asyncio.to_thread(query.drain)) == [2]


def test_each_call_may_come_from_another_thread(log_directory):
    """One at a time, as Spark calls."""
    write(log_directory, 1)
    query = Query(log_directory)
    found = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(offsets(query.drain())))
        thread.start()
        thread.join()
        write(log_directory, 1)
    assert found == [[1], [2], [3]]


def test_a_log_without_its_durable_cell(log_directory):
    write(log_directory, 10)
    query = Query(log_directory)
    (log_directory / CELL_FILE_NAME).unlink()
    assert len(query.drain()) == 10
    write(log_directory, 10)
    query.later()
    assert len(query.drain()) == 10


def test_a_trim_beneath_the_query(log_directory):
    write(log_directory, 300)
    query = Query(log_directory, maxOffsetsPerTrigger=10)
    lenient = Query(log_directory, maxOffsetsPerTrigger=10, failOnDataLoss="false")
    query.trigger()
    lenient.trigger()

    async def trim() -> int:
        async with Wal.open(log_directory, settings=local.SMALL) as wal:
            await wal.trim(before=200)
            return wal.head

    head = asyncio.run(trim())
    assert head > 100
    query.later()
    with pytest.raises(OffsetTrimmedError, match="log were removed before the query read them"):
        query.trigger()
    assert offsets(lenient.drain()) == list(range(head, 301))


def test_a_trim_that_the_query_has_not_heard_of(log_directory):
    """Without the cell the head is known only as of the last look: planning looks anew."""
    write(log_directory, 300)
    (log_directory / CELL_FILE_NAME).unlink()
    query = Query(log_directory, maxOffsetsPerTrigger=250)
    lenient = Query(log_directory, maxOffsetsPerTrigger=250, failOnDataLoss="false")
    assert query.plan()
    assert lenient.plan()

    async def trim() -> int:
        async with Wal.open(log_directory, settings=local.SMALL) as wal:
            await wal.trim(before=200)
            return wal.head

    head = asyncio.run(trim())
    with pytest.raises(OffsetTrimmedError):
        query.read()
    assert offsets(lenient.read()) == list(range(head, 251))


@pytest.mark.slow
def test_files_deleted_between_planning_and_reading_come_from_the_tier(log_directory, url):
    write(log_directory, 300, url=url)
    query = Query(log_directory)
    start, end = query.reader.initialOffset(), {"log": {"0": 301}}
    assert start == {"log": {"0": 1}}
    planned = copied(query.reader.partitions(start, end))
    assert {type(partition) for partition in planned} == {FilePartition}
    write(log_directory, 1, url=url, settings=KEEP_FEW)
    assert int(local.segments(log_directory)[0].stem) > 200
    rows = [
        row
        for partition in planned
        for batch in copied(Query(log_directory).reader).read(partition)
        for row in batch.to_pylist()
    ]
    assert offsets(rows) == list(range(1, 301))


@pytest.mark.slow
def test_a_query_begins_in_the_tier_and_goes_on_in_the_files(log_directory, url):
    write(log_directory, 300, url=url, settings=KEEP_FEW)
    query = Query(log_directory, maxBytesPerTrigger=60_000)
    found, kinds = [], set()
    while query.plan():
        start, end = query.start, query.reader.latestOffset(query.start)
        kinds |= {type(item) for item in query.reader.partitions(start, end)}
        found += offsets(query.read())
        query.done += 1
    assert found == list(range(1, 301))
    assert kinds == {FragmentPartition, FilePartition}
    assert len(query.planned) > 3


def test_without_the_tier_the_query_begins_at_the_files(log_directory, url):
    write(log_directory, 300, url=url, settings=KEEP_FEW)
    first = int(local.segments(log_directory)[0].stem)
    assert offsets(Query(log_directory, tier="off").drain()) == list(range(first, 301))
    with pytest.raises(OffsetTrimmedError):
        Query(log_directory, tier="off", startingOffsets=1).trigger()


def test_bytes_limit_batches_of_files(log_directory):
    write(log_directory, 300)
    query = Query(log_directory, maxBytesPerTrigger=50_000)
    sizes = []
    while rows := query.trigger():
        sizes.append(len(rows))
    assert sum(sizes) == 300
    assert 5 <= len(sizes) <= 15


def test_another_log_in_its_place(log_directory, tmp_path):
    write(log_directory, 10)
    query = Query(log_directory)
    query.drain()
    shutil.move(log_directory, tmp_path / "away")
    query.later()
    with pytest.raises(LogNotFoundError):
        query.trigger()
    write(log_directory, 20)
    query.later()
    with pytest.raises(CorruptionError, match="another log"):
        query.trigger()


def test_several_logs_of_a_store_directory(tmp_path):
    async def fill() -> None:
        async with WalStore.open(tmp_path / "data") as store:
            for name, count in (("orders/0", 3), ("orders/1", 4), ("clicks", 5)):
                wal = await store.wal(name)
                await wal.append_many([b"v"] * count)

    asyncio.run(fill())
    query = Query(tmp_path / "data", subscribe="orders,clicks", maxOffsetsPerTrigger=6)
    rows = query.drain()
    assert query.start == {"clicks": {"0": 6}, "orders": {"0": 4, "1": 5}}
    assert [len(offsets(rows, "orders", at)) for at in range(2)] == [3, 4]
    asyncio.run(fill())
    assert len(query.drain()) == 12


# -- cursors -------------------------------------------------------------------------------------


def local_cursor(path: Path, name: str) -> int | None:
    async def ask() -> int | None:
        async with Wal.open_readonly(path) as log:
            return {info.name: info.position for info in await log.cursors()}.get(name)

    return asyncio.run(ask())


def tier_cursor(url: str, name: str) -> int | None:
    async def ask() -> int | None:
        async with CloudLog.open(url) as log:
            found = await log.cursors.load(name)
            return None if found is None else found.position

    return asyncio.run(ask())


@pytest.mark.slow
def test_the_cursor_keeps_retention_off(log_directory):
    write(log_directory, 300)
    query = Query(log_directory, cursorName="etl", maxOffsetsPerTrigger=10)
    query.trigger()
    write(log_directory, 300, settings=KEEP_FEW)
    query.later()
    assert offsets(query.drain()) == list(range(11, 601))


@pytest.mark.slow
def test_a_log_with_a_tier_holds_the_cursor_there(log_directory, url):
    write(log_directory, 300, url=url, settings=KEEP_FEW)
    query = Query(log_directory, cursorName="etl", maxOffsetsPerTrigger=100)
    query.trigger()
    assert (tier_cursor(url, "etl"), local_cursor(log_directory, "etl")) == (1, None)
    query.drain()
    assert tier_cursor(url, "etl") == 201


def test_a_cursor_that_cannot_be_moved_does_not_fail_the_query(log_directory, caplog):
    write(log_directory, 10)
    query = Query(log_directory, cursorName="etl", maxOffsetsPerTrigger=2)
    query.trigger()
    for path in (log_directory / "cursors").iterdir():
        path.write_bytes(b"damaged")
    assert len(query.drain()) == 8
    assert "cursor etl of log was not moved to 3" in caplog.text


@pytest.mark.slow
def test_a_cursor_cannot_stand_before_the_files_of_a_log_whose_tier_is_not_used(log_directory, url):
    write(log_directory, 300, url=url, settings=KEEP_FEW)
    query = Query(log_directory, cursorName="etl", tier="off")
    first = int(local.segments(log_directory)[0].stem)
    assert query.reader.initialOffset() == {"log": {"0": first}}
    assert local_cursor(log_directory, "etl") == first
    assert tier_cursor(url, "etl") is None
