"""Planning over several logs: each with its own bounds and losses, and no log opened for nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import datasource as spark

from tests.walstore.spark.many import write, write_directory, write_partitioned
from tests.walstore.spark.reading import START_US, copied, planned, read_batches, reader_of
from tests.walstore.spark.versions import needs_filters
from uploader.format import layout
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    OffsetNotWrittenError,
)

MS = START_US // 1000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That bucket, made once: tests have copies."""
    path = tmp_path_factory.mktemp("made") / "bucket"
    url = path.as_uri()
    for at in range(10):
        write(f"{url}/bills", [b"b%d" % at])
    write_partitioned(f"{url}/orders", 3, {0: [bytes(100)] * 4, 2: [bytes(100)] * 6})
    return path


@pytest.fixture
def bucket(made: Path, tmp_path: Path) -> str:
    """Two logs: bills of ten records a second apart, and orders of two partitions and an empty one."""
    return f"file://{shutil.copytree(made, tmp_path / 'bucket')}"


def spans(location: str | Path, **options) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for part in planned(location, **options):
        name = f"{part.topic}/{part.partition}"
        start, limit = found.get(name, (part.start, part.start))
        assert limit == part.start
        found[name] = start, part.limit
    return found


ALL = {"bills/0": (1, 11), "orders/0": (1, 5), "orders/2": (1, 7)}


def test_all_of_every_log(bucket):
    assert spans(bucket, subscribePattern=".*") == ALL
    assert spans(bucket, subscribe="bills,orders", startingOffsets="earliest") == ALL
    assert spans(bucket, subscribe="bills,orders", startingOffsets="latest") == {}


def test_offsets_of_each_log(bucket):
    start = '{"bills":{"0":3},"orders":{"0":-1,"1":-2,"2":-2}}'
    end = '{"bills":{"0":5},"orders":{"0":-1,"1":-1,"2":2}}'
    options = {"subscribe": "orders,bills", "startingOffsets": start, "endingOffsets": end}
    assert spans(bucket, **options) == {"bills/0": (3, 5), "orders/2": (1, 2)}
    assert spans(f"{bucket}/orders", endingOffsets='{"orders":{"0":2,"1":1,"2":3}}') == {
        "orders/0": (1, 2),
        "orders/2": (1, 3),
    }


def test_offsets_must_name_each_partition(bucket):
    with pytest.raises(InvalidSettingsError, match=r"startingOffsets .* lacks orders/1, orders/2"):
        planned(f"{bucket}/orders", startingOffsets='{"orders":{"0":1}}')
    with pytest.raises(InvalidSettingsError, match="names bills/0, not in this read"):
        planned(
            f"{bucket}/orders",
            endingOffsets='{"orders":{"0":1,"1":1,"2":1},"bills":{"0":1}}',
        )
    with pytest.raises(InvalidSettingsError, match="startingOffsets must name the offset of each"):
        planned(bucket, subscribe="bills,orders", startingOffsets="5")
    assert spans(bucket, subscribe="bills", startingOffsets="5") == {"bills/0": (5, 11)}


def test_times_of_every_log_and_of_each(bucket):
    third = MS + 4000
    options = {"startingOffsetsByTimestampStrategy": "latest"}
    assert spans(bucket, subscribe="bills,orders", startingTimestamp=third, **options) == {
        "bills/0": (4, 11)
    }
    times = f'{{"bills":{{"0":{third}}},"orders":{{"0":0,"1":0,"2":{third}}}}}'
    options |= {"subscribe": "bills,orders", "startingOffsetsByTimestamp": times}
    assert spans(bucket, **options) == {"bills/0": (4, 11), "orders/0": (1, 5)}
    ending = f'{{"bills":{{"0":{third}}}}}'
    assert spans(bucket, subscribe="bills", endingOffsetsByTimestamp=ending) == {"bills/0": (1, 4)}
    with pytest.raises(InvalidSettingsError, match="no record is as new") as caught:
        planned(bucket, subscribe="bills,orders/2", startingTimestamp=third)
    assert "orders/2" in "".join(caught.value.__notes__)


def test_losses_are_those_of_a_log(bucket, caplog):
    options = {
        "subscribe": "bills,orders/2",
        "endingOffsets": '{"bills":{"0":99},"orders":{"2":2}}',
    }
    with pytest.raises(OffsetNotWrittenError, match="requested=99") as caught:
        planned(bucket, **options)
    assert "bills/0" in "".join(caught.value.__notes__)
    assert spans(bucket, failOnDataLoss="false", **options) == {
        "bills/0": (1, 11),
        "orders/2": (1, 2),
    }
    assert "bills/0: offsets [11, 99) are not written yet" in caplog.text


def test_an_empty_partition_has_nothing_to_lose(bucket):
    with pytest.raises(OffsetNotWrittenError):
        planned(bucket, subscribe="orders/1", endingOffsets="2")
    assert planned(bucket, subscribe="orders/1", endingOffsets="1") == []


def test_min_partitions_go_where_the_bytes_are(bucket):
    assert len(planned(bucket, subscribePattern=".*")) == 3
    found = planned(bucket, subscribePattern=".*", minPartitions=8)
    assert len(found) >= 8
    assert sum(part.topic == "bills" for part in found) >= 5
    assert spans(bucket, subscribePattern=".*", minPartitions=8) == ALL


def test_one_log_that_is_damaged_fails_the_read_and_others_are_closed(bucket, tmp_path):
    (tmp_path / "bucket" / "bills" / layout.MANIFEST).write_bytes(b"{}")
    with pytest.raises(CorruptionError) as caught:
        planned(bucket, subscribe="bills,orders")
    assert "bills/0" in "".join(caught.value.__notes__)


NOTEBOOK = """
import asyncio, sys
from walstore.spark.reader import Narrowed
from walstore.spark.options import parse_options
from walstore.spark.reader import plan_read

async def cell():
    options = parse_options({"path": sys.argv[1], "subscribePattern": ".*"})
    print(len(plan_read(options, Narrowed())))

asyncio.run(cell())
"""


@pytest.mark.slow
def test_planning_where_an_event_loop_runs(bucket):
    command = [sys.executable, "-W", "error", "-c", NOTEBOOK, bucket]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "3\n", done.stderr


# -- filters ---------------------------------------------------------------------------------------


def filtered(location: str | Path, *filters: spark.Filter, **options) -> list[dict]:
    reader = reader_of(location, pushdown="on", **options)
    assert reader.pushFilters(list(filters)) == list(filters), (
        "Spark is to evaluate all of them, too"
    )
    found = read_batches(copied(reader), copied(reader).partitions())
    return [row for batches in found for batch in batches for row in batch.to_pylist()]


@needs_filters
def test_filters_open_only_the_logs_they_leave(bucket, tmp_path):
    (tmp_path / "bucket" / "bills" / layout.MANIFEST).write_bytes(b"{}")
    rows = filtered(bucket, spark.EqualTo(("topic",), "orders"), subscribePattern=".*")
    assert len(rows) == 10
    rows = filtered(bucket, spark.GreaterThan(("partition",), 0), subscribePattern=".*")
    assert {row["partition"] for row in rows} == {2}
    assert filtered(bucket, spark.EqualTo(("topic",), "x"), subscribePattern=".*") == []


@needs_filters
def test_filters_leave_fragments_unread(bucket, tmp_path):
    for path in sorted((tmp_path / "bucket" / "bills").glob("log/*/*.parquet"))[:5]:
        data = path.read_bytes()
        path.write_bytes(bytes(len(data) - 4096) + data[-4096:] if len(data) > 4096 else b"x")
    bills = f"{bucket}/bills"
    rows = filtered(bills, spark.GreaterThanOrEqual(("offset",), 6), spark.LessThan(("offset",), 9))
    assert [row["offset"] for row in rows] == [6, 7, 8]
    with pytest.raises(CorruptionError):
        filtered(bills, spark.LessThan(("offset",), 9))


@needs_filters
def test_filters_by_time_and_stream(tmp_path):
    url = f"file://{tmp_path}/orders"
    for stream in ("eu", "us", "eu", None):
        write(url, [b"x"] * 3, stream=stream)
    rows = filtered(url, spark.EqualTo(("stream",), "eu"))
    assert [row["offset"] for row in rows] == [1, 2, 3, 7, 8, 9]
    rows = filtered(url, spark.In(("stream",), ["us", "asia"]), stream="eu")
    assert rows == []
    third = read_batches(reader_of(url), reader_of(url).partitions())[0][0].to_pylist()[6]
    rows = filtered(url, spark.GreaterThanOrEqual(("timestamp",), third["timestamp"]))
    assert [row["offset"] for row in rows] == [7, 8, 9, 10, 11, 12]


@needs_filters
def test_filters_go_with_directories(tmp_path):
    write_directory(tmp_path / "data", {"bills": [b"b"] * 5, "orders/0": [b"o"] * 5})
    rows = filtered(
        tmp_path / "data",
        spark.In(("offset",), [2, 4]),
        spark.EqualTo(("topic",), "orders"),
        subscribePattern=".*",
    )
    assert [(row["topic"], row["offset"]) for row in rows] == [("orders", at) for at in (2, 3, 4)]


@needs_filters
def test_the_class_does_not_define_push_filters(bucket):
    """Spark refuses every read by one that does while its setting is off; see FilterTaker."""
    reader = reader_of(f"{bucket}/bills", pushdown="on")
    assert type(reader).pushFilters is spark.DataSourceReader.pushFilters
    assert reader.pushFilters.__func__ is spark.DataSourceReader.pushFilters


@needs_filters
def test_filters_are_left_alone_by_default(bucket):
    reader = reader_of(f"{bucket}/bills")
    filters = [spark.GreaterThan(("offset",), 5)]
    assert reader.pushFilters(filters) == filters
    (part,) = reader.partitions()
    assert (part.start, part.limit) == (1, 11)
