"""Following a log as Spark does, trap by trap (docs/spark_streaming.md). No session."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tests.effort import first_seed
from tests.walstore.spark.streaming.querying import Query, offsets
from tests.walstore.spark.versions import needs_filters, needs_limits
from uploader import CloudLog, CloudWriter
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
)
from walstore.spark.features import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from walstore.spark.rows import arrow_schema
from walstore.spark.streaming.reader import StreamReader


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/orders"


def append(url: str, count: int, **options) -> None:
    """Append values that tell their offset."""

    async def run() -> None:
        async with CloudWriter.open(url, **options) as log:
            tail = log.tail
            await log.append_many([b"%d" % (tail + at) for at in range(count)])

    asyncio.run(run())


def cursor(url: str, name: str) -> int | None:
    async def ask() -> int | None:
        async with CloudLog.open(url) as log:
            found = await log.cursors.load(name)
            return None if found is None else found.position

    return asyncio.run(ask())


def test_every_record_once_as_they_come(url):
    append(url, 10)
    query = Query(url)
    rows = query.drain()
    assert offsets(rows) == list(range(1, 11))
    assert [row["value"] for row in rows] == [b"%d" % at for at in range(1, 11)]
    assert query.trigger() == []
    append(url, 5)
    query.later()
    assert offsets(query.drain()) == [11, 12, 13, 14, 15]


def test_a_restart_goes_on_where_the_checkpoint_is(url):
    append(url, 10)
    query = Query(url, maxOffsetsPerTrigger=4)
    found = offsets(query.trigger())
    query.restart()
    assert query.plan()
    query.restart()  # between the plan and the end of the batch
    found += offsets(query.drain())
    assert found == list(range(1, 11))


# -- trap 1: the initial offset is asked for again and again, and not remembered ---------------


def test_a_starting_time_is_held_as_well(url):
    append(url, 10)
    query = Query(url, startingTimestamp=0, cursorName="etl")
    assert query.reader.initialOffset() == {"orders": {"0": 1}}
    assert cursor(url, "etl") == 1
    late = Query(
        url,
        startingTimestamp=4_000_000_000_000,
        startingOffsetsByTimestampStrategy="latest",
        cursorName="late",
    )
    assert late.reader.initialOffset() == {"orders": {"0": 11}}
    with pytest.raises(InvalidSettingsError, match="no record is as new"):
        Query(url, startingTimestamp=4_000_000_000_000, cursorName="no").reader.initialOffset()
    assert cursor(url, "no") is None


def test_offsets_given_as_numbers_need_no_cursor(url):
    append(url, 10)
    assert offsets(Query(url, startingOffsets=8).drain()) == [8, 9, 10]
    json_start = Query(url, startingOffsets='{"orders": {"0": 9}}')
    assert offsets(json_start.drain()) == [9, 10]
    with pytest.raises(OffsetNotWrittenError, match="beyond the log's tail"):
        Query(url, startingOffsets=12).trigger()
    with pytest.raises(InvalidSettingsError, match="must name every partition"):
        Query(url, startingOffsets='{"clicks": {"0": 9}}').trigger()


# -- few records -----------------------------------------------------------------------------------


def test_a_batch_waits_for_the_least_records(url):
    append(url, 4)
    query = Query(url, minOffsetsPerTrigger=5)
    assert query.trigger() == []
    append(url, 1)
    query.later()
    assert offsets(query.trigger()) == [1, 2, 3, 4, 5]
    append(url, 4)
    query.later()
    assert query.trigger() == []


def test_a_batch_waits_no_longer_than_the_delay_after_the_one_before(url):
    append(url, 4)
    query = Query(url, minOffsetsPerTrigger=5, maxTriggerDelay="10m")
    assert query.trigger() == []
    query.later(599)
    assert query.trigger() == []
    query.later(1)
    assert offsets(query.trigger()) == [1, 2, 3, 4]
    query.later(3600)  # nothing came meanwhile, and the next one does not wait
    assert query.trigger() == []
    append(url, 1)
    query.later(60)
    assert offsets(query.trigger()) == [5]
    append(url, 1)
    query.later(60)
    assert query.trigger() == []


def test_what_ends_at_what_is_there_waits_for_nothing(url):
    append(url, 4)
    assert offsets(Query(url, minOffsetsPerTrigger=5).once()) == [1, 2, 3, 4]
    assert offsets(Query(url, minOffsetsPerTrigger=5).everything()) == [1, 2, 3, 4]


def test_a_restarted_query_replays_its_batch_however_few_records_it_has(url):
    append(url, 5)
    query = Query(url, minOffsetsPerTrigger=5)
    assert query.plan()
    query.restart()
    assert offsets(query.trigger()) == [1, 2, 3, 4, 5]


def test_a_task_has_at_most_so_many_records_and_no_record_is_missed(url):
    append(url, 10)
    query = Query(url, maxRecordsPerPartition=3)
    assert query.plan()
    planned = query.reader.partitions(query.start, json.loads(query.planned[0]))
    assert [(one.start, one.limit) for one in planned] == [(1, 3), (3, 6), (6, 8), (8, 11)]
    assert offsets(query.read()) == list(range(1, 11))


# -- trap 2: commit lags one batch and leaves out the last ---------------------------------------


# -- traps 3 and 4: nobody says that it is over, and other processes read ------------------------


def test_only_partitions_and_options_travel(url):
    append(url, 10)
    query = Query(url)
    fresh = pickle.loads(pickle.dumps(query.reader))
    partitions = query.reader.partitions({"orders": {"0": 3}}, {"orders": {"0": 6}})
    copies = pickle.loads(pickle.dumps(partitions))
    rows = [row for part in copies for batch in fresh.read(part) for row in batch.to_pylist()]
    assert offsets(rows) == [3, 4, 5]


def test_stopping_is_optional_and_harmless(url):
    append(url, 3)
    query = Query(url, cursorName="etl")
    assert len(query.trigger()) == 3
    query.reader.stop()
    query.reader.stop()
    append(url, 2)
    query.later()
    assert len(query.trigger()) == 2  # it opens again


# -- trap 6: Arrow -----------------------------------------------------------------------------


def test_rows_come_in_sparks_own_arrow_schema(url):
    append(url, 10)
    query = Query(url)
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "stream")
    for partition in query.reader.partitions({"orders": {"0": 1}}, {"orders": {"0": 11}}):
        for batch in query.reader.read(partition):
            assert batch.schema == arrow_schema(names)
            assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


# -- trap 7: pushdown --------------------------------------------------------------------------


@needs_filters
def test_a_stream_reader_has_no_filters_to_push():
    assert not hasattr(StreamReader, "pushFilters")
    assert hasattr(DataSourceReader, "pushFilters")


# -- trap 8: lists, and options as text ----------------------------------------------------------


def test_partitions_are_a_list_also_if_there_is_nothing(url):
    append(url, 10)
    reader = Query(url).reader
    there = {"orders": {"0": 5}}
    assert reader.partitions(there, there) == []
    assert list(reader.read(InputPartition(None))) == []


# -- trap 9: older Sparks ------------------------------------------------------------------------


def test_spark_4_0_asks_without_arguments(url):
    """Seen of Spark 4.0 and 4.1: each micro-batch takes what there is, also after a crash."""
    append(url, 10)
    query = Query(url, is_told=False, cursorName="etl")
    assert query.reader.initialOffset() == {"orders": {"0": 1}}
    assert query.reader.latestOffset() == {"orders": {"0": 11}}
    assert offsets(query.trigger()) == list(range(1, 11))
    append(url, 3)
    query.restart()
    assert query.plan()
    query.restart()
    append(url, 2)
    assert offsets(query.trigger()) == [11, 12, 13]
    query.later()
    assert offsets(query.once()) == [14, 15]
    assert cursor(url, "etl") == 14


@pytest.mark.parametrize("start", ["latest", "time"])
def test_an_older_spark_asks_for_the_end_before_the_start(url, start):
    """Seen of Spark 4.0 and 4.1. What is appended between the two questions is read."""
    append(url, 10)
    options = {"startingOffsets": "latest"}
    if start == "time":
        options = {
            "startingTimestamp": "4000000000000",
            "startingOffsetsByTimestampStrategy": "latest",
        }
    query = Query(url, is_told=False, cursorName="etl", **options)
    assert query.plan()
    append(url, 3)
    query.later()
    assert query.read() == []
    query.restart()
    assert query.trigger() == []
    query.restart()
    assert offsets(query.trigger()) == [11, 12, 13]


def test_an_older_spark_with_a_start_that_is_not_there_yet(url):
    """Told before an end is written down that lies before the start."""
    append(url, 10)
    query = Query(url, is_told=False, startingOffsets=13)
    with pytest.raises(OffsetNotWrittenError, match="beyond the log's tail"):
        query.trigger()
    append(url, 5)
    query.restart()
    assert offsets(query.trigger()) == [13, 14, 15]


def test_an_older_spark_goes_on_where_the_start_is_gone(url):
    """Its checkpoint counts, also if it asks for the end first, as it does with its availableNow wrapper."""
    grow(url, 4)
    query = Query(url, is_told=False, startingOffsets=2)
    assert len(query.trigger()) == 39
    collect(url, 21)
    grow(url, 1)
    query.reader = Query(url, is_told=False, startingOffsets=2).reader
    assert offsets(query.trigger()) == list(range(41, 51))


def test_an_older_spark_with_the_checkpoint_of_another_log(tmp_path):
    """It does not compare offsets: it plans from 11 to 6. Once the log is longer, too."""
    one = f"file://{tmp_path}/one/orders"
    append(one, 10)
    query = Query(one, is_told=False)
    query.trigger()
    for lenient in ("true", "false"):
        other = f"file://{tmp_path}/other-{lenient}/orders"
        append(other, 5)
        moved = Query(other, failOnDataLoss=lenient, is_told=False)
        moved.planned, moved.done = [*query.planned], query.done
        with pytest.raises(CorruptionError, match="another log than the checkpoint is of"):
            moved.trigger()
        append(other, 10)
        moved.restart()
        with pytest.raises(CorruptionError, match="another log than the checkpoint is of"):
            moved.trigger()


@needs_limits
def test_the_field_of_a_row_limit(url):
    append(url, 10)
    reader = Query(url).reader
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(max_rows=3)) == {"orders": {"0": 4}}


# -- admission -----------------------------------------------------------------------------------


@needs_limits
def test_limits_come_from_the_options(url):
    append(url, 10)
    assert Query(url).reader.getDefaultReadLimit() == ReadAllAvailable()
    assert Query(url, maxOffsetsPerTrigger=3).reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert Query(url, maxBytesPerTrigger=3).reader.getDefaultReadLimit() == ReadMaxBytes(3)
    from pyspark.sql.streaming.datasource import ReadMinRows

    both = Query(url, maxOffsetsPerTrigger=3, maxBytesPerTrigger=1).reader
    assert both.getDefaultReadLimit() == ReadMaxRows(3)
    start = both.initialOffset()
    assert both.latestOffset(start, ReadMaxRows(3)) == {"orders": {"0": 2}}
    assert both.latestOffset(start, ReadMinRows(1)) == {"orders": {"0": 2}}


def test_all_available_overrides_the_options(url):
    append(url, 10)
    query = Query(url, maxOffsetsPerTrigger=3, maxBytesPerTrigger=1)
    assert len(query.everything()) == 10


def test_a_limit_by_bytes_ends_batches_between_fragments(url):
    for _ in range(6):
        append(url, 100)
    reader = Query(url).reader
    partitions = reader.partitions({"orders": {"0": 1}}, {"orders": {"0": 601}})
    (size_bytes,) = {part.entry.num_bytes for item in partitions for part in item.parts[:1]}
    query = Query(url, maxBytesPerTrigger=int(size_bytes * 2.5))
    assert [len(query.trigger()) for _ in range(4)] == [200, 200, 200, 0]


def test_a_log_that_keeps_growing_is_read_in_equal_steps(url):
    append(url, 20)
    query = Query(url, maxOffsetsPerTrigger=5)
    for _ in range(3):
        assert len(query.trigger()) == 5
        append(url, 5)
        query.later()
    assert query.reader.reportLatestOffset() == {"orders": {"0": 36}}
    assert query.start == {"orders": {"0": 16}}


def test_more_tasks_on_request(url):
    for _ in range(4):
        append(url, 100)
    assert len(Query(url).reader.partitions({"orders": {"0": 1}}, {"orders": {"0": 401}})) == 1
    reader = Query(url, minPartitions=4).reader
    assert len(reader.partitions({"orders": {"0": 1}}, {"orders": {"0": 401}})) == 4


# -- availableNow ----------------------------------------------------------------------------


def test_available_now_ends_at_what_is_there(url):
    append(url, 10)
    query = Query(url, maxOffsetsPerTrigger=4)
    assert isinstance(query.reader, SupportsTriggerAvailableNow)
    query.reader.prepareForTriggerAvailableNow()
    append(url, 10)
    query.later()
    assert offsets(query.drain()) == list(range(1, 11))
    query.restart()
    assert offsets(query.once()) == list(range(11, 21))
    query.restart()
    assert query.once() == []


def test_available_now_asks_the_store_however_recently_it_was_asked(url):
    append(url, 10)
    query = Query(url, is_told=True)
    query.trigger()
    append(url, 10)
    assert len(query.once()) == 10


# -- what is lost, and what is another log -----------------------------------------------------


def collect(url: str, before: int) -> None:
    from uploader import CollectorSettings, GarbageCollector

    async def run() -> None:
        settings = CollectorSettings(
            interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1
        )
        async with CloudLog.open(url) as log:
            await log.cursors.commit("collected", before)
        async with GarbageCollector.open(url, settings=settings) as collector:
            await collector.collect()

    asyncio.run(run())


def grow(url: str, count: int) -> None:
    """Append fragments of ten records."""
    for _ in range(count):
        append(url, 10)


def test_records_collected_before_they_were_read_fail_the_query(url):
    grow(url, 4)
    query = Query(url, maxOffsetsPerTrigger=5)
    query.trigger()
    collect(url, 21)
    query.later()
    with pytest.raises(
        OffsetTrimmedError, match=r"orders were removed .* failOnDataLoss=false"
    ) as told:
        query.trigger()
    assert (told.value.requested, told.value.head) == (6, 21)
    query.restart()
    with pytest.raises(OffsetTrimmedError):
        query.trigger()


def test_without_failing_the_stream_goes_on_at_the_head_and_says_so_once(url, caplog):
    grow(url, 4)
    query = Query(url, maxOffsetsPerTrigger=5, failOnDataLoss="false")
    query.trigger()
    collect(url, 21)
    query.later()
    found = query.drain()
    assert offsets(found) == list(range(21, 41))
    told = [text for text in caplog.messages if "were removed before they were read" in text]
    assert told == ["orders: offsets [6, 21) were removed before they were read"]


def test_a_planned_batch_is_cut_off_as_well(url):
    """The end was written down before the records were removed."""
    grow(url, 4)
    for option, expected in (("true", None), ("false", list(range(21, 31)))):
        query = Query(url, maxOffsetsPerTrigger=30, failOnDataLoss=option)
        query.reader.initialOffset()
        query.planned.append(json.dumps({"orders": {"0": 31}}))
        if expected is None:
            collect(url, 21)
            query.restart()
            with pytest.raises(OffsetTrimmedError):
                query.reader.partitions({"orders": {"0": 1}}, {"orders": {"0": 31}})
        else:
            query.restart()
            assert offsets(query.read()) == expected


def test_the_cursor_keeps_what_is_not_read_yet(url):
    grow(url, 4)
    query = Query(url, cursorName="etl", maxOffsetsPerTrigger=5)
    query.trigger()
    collect(url, 41)
    query.later()
    assert offsets(query.drain()) == list(range(6, 41))


def test_a_checkpoint_of_another_log_is_told(tmp_path):
    one, other = f"file://{tmp_path}/one/orders", f"file://{tmp_path}/other/orders"
    append(one, 10)
    append(other, 5)
    query = Query(one)
    query.trigger()
    for lenient in ("true", "false"):
        moved = Query(other, failOnDataLoss=lenient)
        moved.planned, moved.done = query.planned, query.done
        with pytest.raises(CorruptionError, match="another log than the checkpoint is of"):
            moved.trigger()


def test_a_checkpoint_of_other_topics_is_told(url, caplog):
    append(url, 10)
    reader = Query(url).reader
    with pytest.raises(LogNotFoundError, match=r"clicks: the query has read this log before"):
        reader.latestOffset({"clicks": {"0": 5}, "orders": {"0": 1}}, ReadAllAvailable())
    lenient = Query(url, failOnDataLoss="false").reader
    start = {"clicks": {"0": 5}, "orders": {"0": 1}}
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end == {"clicks": {"0": 5}, "orders": {"0": 11}}  # it is kept, should it come back
    assert len(lenient.partitions(start, end)) == 1
    assert len([text for text in caplog.messages if "clicks" in text]) == 1
    with pytest.raises(InvalidSettingsError, match="checkpointLocation of its own"):
        reader.latestOffset({"partition-1": {"index": 5}}, ReadAllAvailable())


def test_there_must_be_a_log(tmp_path):
    for place in (f"file://{tmp_path}/none", tmp_path / "none"):
        with pytest.raises(LogNotFoundError):
            Query(place).trigger()


# -- the rest ------------------------------------------------------------------------------------


def test_one_stream_of_a_log(url):
    async def fill() -> None:
        async with CloudWriter.open(url) as log:
            for at in range(12):
                await log.append(b"%d" % at, stream="eu" if at % 3 else None)

    asyncio.run(fill())
    query = Query(url, stream="eu", maxOffsetsPerTrigger=5)
    rows = query.drain()
    assert len(rows) == 8
    assert {row["stream"] for row in rows} == {"eu"}


def test_the_chain_layout(url):
    append(url, 10, layout="chain")
    query = Query(url, cursorName="etl")
    assert len(query.drain()) == 10
    append(url, 5, layout="chain")
    query.later(2)
    assert offsets(query.drain()) == [11, 12, 13, 14, 15]


def test_headers_on_request(url):
    async def fill() -> None:
        async with CloudWriter.open(url) as log:
            await log.append(b"v", headers={"h": b"1"})

    asyncio.run(fill())
    assert "headers" not in Query(url).drain()[0]
    assert Query(url, includeHeaders="true").drain()[0]["headers"] == [{"key": "h", "value": b"1"}]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_each_record_once_whenever_it_dies(url, seed):
    """Plans, reads and finishes come in any order with crashes, appends and time between them."""
    chance = random.Random(seed + first_seed("micro-batches"))
    append(url, 3)
    query = Query(url, cursorName="etl", startingOffsets="latest", maxOffsetsPerTrigger=7)
    first = query.reader.initialOffset()["orders"]["0"]
    assert first == 4
    written, found = 3, []
    for _ in range(80):
        match chance.randrange(5):
            case 0:
                count = chance.randrange(1, 12)
                append(url, count)
                written += count
            case 1:
                query.restart()
            case 2:
                query.later(chance.random() * 2)
            case 3:
                if query.plan() and chance.random() < 0.5:
                    query.read()  # and then it dies
                    query.restart()
            case 4:
                found += offsets(query.trigger())
    query.later()
    found += offsets(query.drain())
    assert found == list(range(4, written + 1))
