"""Reading a log's directory: sealed files, the live tail, and nothing that is not durable."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests import local
from tests.walstore.spark.reading import (
    START_US,
    fill,
    planned,
    read_batches,
    read_records,
    reader_of,
)
from walstore import Record, Settings, Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.core.settings import KIB
from walstore.errors import (
    CorruptionError,
    LogNotFoundError,
    OffsetTrimmedError,
)
from walstore.spark.planned_log import DirectoryLog
from walstore.testing import FaultyFileSystem


def wreck(path: Path, position: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A log and its records, made once: tests have copies of the log."""
    path = tmp_path_factory.mktemp("made") / "log"
    return path, asyncio.run(fill(path, settings=local.SMALL))


@pytest.fixture
def records(made: tuple[Path, list[Record]], log_directory: Path) -> list[Record]:
    shutil.copytree(made[0], log_directory)
    return made[1]


@pytest.mark.parametrize("count", [1, 8])
def test_frames_without_records_are_passed_over(log_directory, count):
    async def append() -> list[Record]:
        async with Wal.open(log_directory, settings=local.SMALL) as wal:
            for number in range(60):
                await wal.open_stream(f"s{number}")
                await wal.append(bytes(3000), stream=f"s{number}")
            await wal.open_stream("last")
            return await local.read_all(wal)

    records = asyncio.run(append())
    assert read_records(log_directory, minPartitions=count) == records
    for start, limit in [(1, 2), (20, 41), (60, 61)]:
        found = read_records(log_directory, startingOffsets=start, endingOffsets=limit)
        assert found == records[start - 1 : limit - 1]


def test_files_outside_the_interval_are_not_read(log_directory, records):
    first, second, *_ = local.segments(log_directory)
    start = int(second.stem)
    wreck(first, 5000)
    assert read_records(log_directory, startingOffsets=start) == records[start - 1 :]
    with pytest.raises(CorruptionError):
        read_records(log_directory)


def test_a_sealed_file_without_its_end_is_found_when_planning(log_directory, records):
    first = local.segments(log_directory)[0]
    first.write_bytes(first.read_bytes()[:-100])
    with pytest.raises(CorruptionError):
        planned(log_directory)


async def test_a_live_log_is_read_up_to_its_durable_limit(log_directory):
    async def seen() -> list[bytes]:
        return [record.value for record in await asyncio.to_thread(read_records, log_directory)]

    fs = FaultyFileSystem(PosixFileSystem())
    async with Wal.open(log_directory, fs=fs) as wal:
        await wal.append_many([b"durable"] * 5)
        assert await seen() == [b"durable"] * 5
        with fs.hold("datasync") as hold:
            wal.append_nowait(b"accepted")
            await hold.wait_entered()
            assert await seen() == [b"durable"] * 5, "a record was seen before its sync"
        await wal.flush()
        assert await seen() == [*[b"durable"] * 5, b"accepted"]
        await wal.append(b"more")
        assert len(await seen()) == 7
    assert len(await seen()) == 7


async def test_the_tail_of_a_live_log_is_divided_too(log_directory):
    def row_counts() -> list[int]:
        reader = reader_of(log_directory, minPartitions=4)
        found = read_batches(reader, reader.partitions())
        return [sum(batch.num_rows for batch in batches) for batches in found]

    async with Wal.open(log_directory, settings=Settings(batch_bytes=4 * KIB)) as wal:
        for _ in range(200):
            await wal.append_many([b"x" * 100] * 20)
        rows = await asyncio.to_thread(row_counts)
    assert len(rows) == 4
    assert sum(rows) == 4000
    assert max(rows) < 1.3 * min(rows)


def test_an_empty_log_has_no_rows(log_directory):
    async def make() -> None:
        async with Wal.open(log_directory):
            pass

    asyncio.run(make())
    assert planned(log_directory) == []
    assert read_records(log_directory) == []


def test_a_file_that_vanishes_while_a_time_is_looked_up(log_directory, records):
    log = DirectoryLog(str(log_directory), "log")
    local.segments(log_directory)[0].unlink()
    with pytest.raises(OffsetTrimmedError, match="while the read was planned"):
        log.offset_at(START_US)


def test_a_trimmed_start(log_directory, records):
    files = local.segments(log_directory)
    files[0].unlink()
    head = int(files[1].stem)
    with pytest.raises(OffsetTrimmedError, match=f"requested=1 head={head}"):
        planned(log_directory, startingOffsets=1)
    rest = records[head - 1 :]
    assert read_records(log_directory, startingOffsets=1, failOnDataLoss="false") == rest
    assert read_records(log_directory) == rest


def test_a_file_that_vanishes_after_planning(log_directory, records):
    reader = reader_of(log_directory)
    partitions = reader.partitions()
    local.segments(log_directory)[2].unlink()
    with pytest.raises(OffsetTrimmedError, match="was deleted since the read was planned"):
        read_batches(reader, partitions)


def test_a_file_that_vanishes_is_left_out_if_loss_is_allowed(log_directory, records):
    reader = reader_of(log_directory, failOnDataLoss="false")
    partitions = reader.partitions()
    gone = local.segments(log_directory)[2]
    limit = int(local.segments(log_directory)[3].stem)
    gone.unlink()
    offsets = {
        offset
        for batches in read_batches(reader, partitions)
        for batch in batches
        for offset in batch.column("offset").to_pylist()
    }
    lost = {record.offset for record in records} - offsets
    assert lost == set(range(int(gone.stem), limit))


def test_damage_is_found(log_directory, records):
    wreck(local.segments(log_directory)[1], 5000)
    with pytest.raises(CorruptionError):
        read_records(log_directory)


def test_a_file_cut_short_is_found(log_directory, records):
    reader = reader_of(log_directory)
    partitions = reader.partitions()
    path = local.segments(log_directory)[1]
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(CorruptionError):
        read_batches(reader, partitions)


def test_no_log(tmp_path):
    with pytest.raises(LogNotFoundError, match="there is no log at"):
        planned(tmp_path)


def test_a_store_named_as_a_directory_gets_a_hint(tmp_path):
    (tmp_path / "manifest").mkdir()
    with pytest.raises(LogNotFoundError) as caught:
        planned(tmp_path)
    assert f"file://{tmp_path}" in "".join(caught.value.__notes__)


def test_partitions_tell_what_they_read_and_nothing_else(log_directory, records):
    (partition,) = planned(log_directory)
    assert repr(partition) == "FilePartition(log/0 [1, 1001))"
