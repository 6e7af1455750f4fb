"""Reading one log, whether its records are in files, in fragments, or in both."""

from __future__ import annotations

import asyncio

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
from uploader import CloudTier, UploadSettings
from walstore import Record
from walstore.errors import OffsetNotWrittenError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[Record]]]:
    """Locations of closed logs and their records, made once: the tests only read."""
    path = tmp_path_factory.mktemp("made")
    url, both = f"file://{path}/store/orders", path / "both"
    tier = CloudTier(url, settings=UploadSettings(fragment_bytes=16_384))
    files = asyncio.run(fill(path / "files", settings=local.SMALL))
    shipped = asyncio.run(fill(both, settings=local.SMALL.replace(retention_bytes=0), tier=tier))
    return {
        "files": (str(path / "files"), files),
        "store": (url, shipped),
        "both": (str(both), shipped),
    }


@pytest.fixture(params=["files", "store", "both"])
def log(
    request: pytest.FixtureRequest, made: dict[str, tuple[str, list[Record]]]
) -> tuple[str, list[Record]]:
    return made[request.param]


@pytest.mark.parametrize("count", [1, 3, 12, 1000])
def test_all_records_in_any_number_of_tasks(log, count):
    place, records = log
    reader = reader_of(place, minPartitions=count)
    partitions = reader.partitions()
    assert len(partitions) >= min(count, 6)
    rows = [batch for batches in read_batches(reader, partitions) for batch in batches]
    assert [o for b in rows for o in b.column("offset").to_pylist()] == [r.offset for r in records]
    assert read_records(place, minPartitions=count) == records


@pytest.mark.parametrize("count", [1, 8])
def test_intervals_inside_of_what_is_stored_together(log, count):
    place, records = log
    edge = planned(place, minPartitions=count)[0].limit
    for start, limit in [(1, 2), (5, 5), (17, 733), (edge - 1, min(edge + 1, 1001)), (1001, 1001)]:
        found = read_records(place, startingOffsets=start, endingOffsets=limit, minPartitions=count)
        assert found == records[start - 1 : limit - 1]


@pytest.mark.parametrize("at", [5, 50, 99])
def test_times(log, at):
    place, records = log
    moment_ms = START_US // 1000 + at
    first = next(r.offset for r in records if r.timestamp_us >= moment_ms * 1000)
    assert read_records(place, startingTimestamp=moment_ms) == records[first - 1 :]
    assert read_records(place, endingTimestamp=moment_ms) == records[: first - 1]
    assert read_records(place, startingTimestamp=0, endingTimestamp=10**13) == records


def test_offsets_that_are_not_there(log):
    place, records = log
    with pytest.raises(OffsetNotWrittenError):
        planned(place, endingOffsets=5000)
    assert read_records(place, endingOffsets=5000, failOnDataLoss="false") == records
