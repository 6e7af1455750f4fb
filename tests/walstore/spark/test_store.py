"""Reading a log from its store: fragments alone, and behind a local log that keeps few files."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from pathlib import Path

import pytest

from tests import local
from tests.walstore.spark.reading import (
    fill,
    planned,
    read_batches,
    read_records,
    read_rows,
    reader_of,
)
from uploader import CloudLog, CloudTier, UploadSettings
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore import Record, Wal
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    LogNotFoundError,
    OffsetTrimmedError,
)
from walstore.spark.partitions import FilePartition, FragmentPartition
from walstore.spark.rows import spark_schema

pytestmark = pytest.mark.slow

KEEP_FEW = local.SMALL.replace(retention_bytes=0)
SMALL_FRAGMENTS = UploadSettings(fragment_bytes=16_384)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store" / "orders"


@pytest.fixture
def url(store: Path) -> str:
    return f"file://{store}"


def tier(url: str) -> CloudTier:
    return CloudTier(url, settings=SMALL_FRAGMENTS)


@pytest.fixture
def records(log_directory: Path, url: str) -> list[Record]:
    """A closed log, shipped, of whose sealed files none is left."""
    found = asyncio.run(fill(log_directory, settings=KEEP_FEW, tier=tier(url)))
    assert int(local.segments(log_directory)[0].stem) > 500
    return found


def objects(store: Path) -> list[Path]:
    return sorted(store.glob("log/*/*.parquet"))


def entries(url: str) -> list:
    async def ask() -> list:
        async with CloudLog.open(url) as log:
            return await log.fragments()

    return asyncio.run(ask())


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_partitions_are_runs_of_fragments(records, url, count):
    found = entries(url)
    assert len(found) > 5
    reader = reader_of(url, minPartitions=count)
    partitions = reader.partitions()
    assert min(count, len(found)) <= len(partitions) <= len(found)
    starts = {entry.start for entry in found}
    assert all(partition.start in starts for partition in partitions)


def test_fragments_outside_the_interval_are_not_opened(records, store, url):
    for path in objects(store)[:-1]:
        path.write_bytes(b"damaged")
    start = entries(url)[-1].start
    assert read_records(url, startingOffsets=start) == records[start - 1 :]


def test_chosen_columns(records, url):
    schema = spark_schema(include_headers=False)
    schema = type(schema)([schema["offset"], schema["value"]])
    assert read_rows(url, schema) == [{"offset": r.offset, "value": r.value} for r in records]


def test_a_flipped_bit_is_found_or_changes_nothing(records, store, url):
    entry, path = entries(url)[1], objects(store)[1]
    whole = path.read_bytes()
    part = records[entry.start - 1 : entry.limit - 1]
    found = 0
    for at in range(0, len(whole), 101):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            options = {"startingOffsets": entry.start, "endingOffsets": entry.limit}
            assert read_records(url, **options) == part
        except (CorruptionError, FormatVersionError):
            found += 1
    assert found > 10


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"\0"])
def test_another_length_is_found(records, store, url, change):
    path = objects(store)[1]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CorruptionError, match="length"):
        read_records(url)


def test_swapped_fragments_are_found(records, store, url):
    first, second, *_ = objects(store)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    with pytest.raises(CorruptionError):
        read_records(url)


def collect(store: Path, count: int) -> int:
    """Do what garbage collection does to the oldest fragments; return where the log begins then."""
    path = store / layout.MANIFEST
    manifest = Manifest.parse(path.read_bytes())
    gone, kept = manifest.fragments[:count], manifest.fragments[count:]
    manifest = dataclasses.replace(
        manifest,
        fragments=kept,
        collected=Setsum.total([manifest.collected, *(entry.setsum for entry in gone)]),
        initial_offset=kept[0].start,
        initial_seq_no=kept[0].seq_no,
    )
    path.write_bytes(manifest.serialise())
    for entry in gone:
        (store / entry.path).unlink()
    return kept[0].start


def test_fragments_collected_after_planning(records, store, url):
    reader, lenient = reader_of(url), reader_of(url, failOnDataLoss="false")
    partitions = reader.partitions()
    head = collect(store, 3)
    with pytest.raises(OffsetTrimmedError, match=f"was collected .* head={head}"):
        read_batches(reader, partitions)
    rows = [batch for batches in read_batches(lenient, partitions) for batch in batches]
    offsets = [offset for batch in rows for offset in batch.column("offset").to_pylist()]
    assert offsets == [record.offset for record in records[head - 1 :]]


def test_a_collected_start(records, store, url):
    head = collect(store, 3)
    assert read_records(url) == records[head - 1 :]
    with pytest.raises(OffsetTrimmedError, match=f"requested=1 head={head}"):
        planned(url, startingOffsets=1)
    found = read_records(url, startingOffsets=1, failOnDataLoss="false")
    assert found == records[head - 1 :]


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_fragment_that_is_named_and_not_there(records, store, url, lenient):
    objects(store)[2].unlink()
    with pytest.raises(CorruptionError, match="is missing"):
        read_records(url, failOnDataLoss=lenient)


def test_no_log(tmp_path):
    with pytest.raises(LogNotFoundError):
        planned(f"file://{tmp_path}/nothing")


def test_a_directory_named_as_a_store_gets_a_hint(log_directory, records):
    with pytest.raises(LogNotFoundError) as caught:
        planned(f"file://{log_directory}")
    assert f"by its path, {log_directory}" in "".join(caught.value.__notes__)


def test_reading_can_stop_early(records, url):
    (partition,) = planned(url)
    rows = reader_of(url).read(partition)
    next(rows)
    rows.close()


# -- a local log with a tier behind it -------------------------------------------------------------


def test_the_tier_comes_first_then_the_files(records, log_directory):
    partitions = planned(log_directory)
    assert [type(p) for p in partitions] == [FragmentPartition, FilePartition]
    assert partitions[0].limit == partitions[1].start == int(local.segments(log_directory)[0].stem)


def test_files_alone_with_tier_off(records, log_directory):
    head = int(local.segments(log_directory)[0].stem)
    assert read_records(log_directory, tier="off") == records[head - 1 :]
    with pytest.raises(OffsetTrimmedError):
        planned(log_directory, tier="off", startingOffsets=1)


def test_the_tier_is_not_asked_for_what_files_have(records, store, log_directory):
    head = int(local.segments(log_directory)[0].stem)
    store.rename(store.with_name("away"))
    assert read_records(log_directory, startingOffsets=head) == records[head - 1 :]


def test_a_tier_that_does_not_answer_is_reported(records, store, log_directory):
    manifest = store / "manifest" / "MANIFEST"
    manifest.write_bytes(b"{}")
    with pytest.raises(CorruptionError) as caught:
        planned(log_directory)
    assert "tier=off" in "".join(caught.value.__notes__)
    manifest.unlink()
    with pytest.raises(LogNotFoundError) as caught:
        planned(log_directory)
    assert "tier=off" in "".join(caught.value.__notes__)


async def test_a_live_log_from_store_and_files(log_directory, url):
    async with Wal.open(log_directory, settings=KEEP_FEW, tier=tier(url)) as wal:
        for at in range(200):
            await wal.append_many([b"%d" % at] * 50, durability="memory")
        await wal.append(b"cloud", durability="cloud")
        await wal.append(b"local")
        found = await asyncio.to_thread(read_records, log_directory)
        assert [record.offset for record in found] == list(range(1, 10_003))
        assert [record.value for record in found[-2:]] == [b"cloud", b"local"]
        in_store = await asyncio.to_thread(read_records, url)
        assert in_store[:10_001] == found[:10_001]


def test_a_file_deleted_after_planning_is_made_up_for_from_the_tier(log_directory, url):
    written = asyncio.run(fill(log_directory, settings=local.SMALL, tier=tier(url)))
    reader = reader_of(log_directory, includeHeaders="true")
    partitions = reader.partitions()
    for path in local.segments(log_directory)[:-1]:
        path.unlink()
    rows = [row for b in read_batches(reader, partitions) for x in b for row in x.to_pylist()]
    assert [row["offset"] for row in rows] == [record.offset for record in written]
    assert [row["value"] for row in rows] == [record.value for record in written]


def test_what_neither_files_nor_tier_have_is_lost(log_directory, url):
    asyncio.run(fill(log_directory, settings=local.SMALL, tier=tier(url)))
    asyncio.run(fill(log_directory, settings=local.SMALL))
    reader = reader_of(log_directory)
    partitions = reader.partitions()
    local.segments(log_directory)[-2].unlink()
    with pytest.raises(OffsetTrimmedError):
        read_batches(reader, partitions)


def test_nothing_secret_is_planned(records, url, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    reader = reader_of(url)
    planned_bytes = pickle.dumps((reader, reader.partitions()))
    assert b"hunter2" not in planned_bytes
    assert repr(reader.partitions()[0]).startswith("FragmentPartition(orders/0 [1, ")
