"""The fast path gives what ``format("walstore")`` gives: same columns and rows, whatever the log is like."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests import local
from tests.effort import first_seed
from tests.golden.regenerate_fragments import DIRECTORY
from tests.walstore.spark.fast_path.building import (
    both,
    is_native,
    ours,
    put_log,
    records,
    rows_of,
    wal3,
    write_chain,
)
from tests.walstore.spark.many import write, write_directory, write_partitioned
from tests.walstore.spark.reading import START_US, fill
from uploader import CloudTier, UploadSettings
from walstore import Record, Wal
from walstore.records import to_timestamp_us
from walstore.spark import read

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def as_records(rows: Sequence[tuple[Any, ...]]) -> list[Record]:
    return [
        Record(
            row[4], row[1], row[0], row[7], dict(row[8] or ()), to_timestamp_us(row[5].astimezone())
        )
        for row in rows
    ]


@pytest.mark.parametrize("seed", range(3))
def test_random_logs(spark, tmp_path, seed):
    """By both writers, compressed and not, cut by offsets and times, in more tasks, by streams."""
    parts = [records(1 + 40 * at, 40, first_seed("rows") + 10 * seed + at) for at in range(6)]
    makers = [ours, wal3, ours, lambda found: wal3(found, compression="uncompressed"), ours, wal3]
    makers = makers[seed:] + makers[:seed]
    fragments = [make(part) for make, part in zip(makers, parts, strict=True)]
    put_log(tmp_path / "orders", fragments)
    url = f"file://{tmp_path}/orders"
    assert is_native(read(spark, url, fast_path="always"))
    assert len(both(spark, url)) == 240
    assert len(both(spark, url, startingOffsets=39, endingOffsets=203)) == 164
    assert len(both(spark, url, startingOffsets=41, endingOffsets=81)) == 40
    assert len(both(spark, url, startingOffsets=50, endingOffsets=60)) == 10
    both(spark, url, startingTimestamp=START_US // 1000 + 90, endingTimestamp=1 << 45)
    assert len(both(spark, url, minPartitions=5)) == 240
    for stream in ("eu", "", "ß/1", "nobody"):
        assert {row[7] for row in both(spark, url, stream=stream)} <= {stream}


def test_golden_fragments(spark, tmp_path):
    for path in sorted(DIRECTORY.glob("*.parquet")):
        start = json.loads(path.with_suffix(".json").read_text())["start"]
        before = [ours(records(1, start - 1, 1))] if start > 1 else []
        put_log(tmp_path / path.stem, [*before, path.read_bytes()])
        assert both(spark, f"file://{tmp_path}/{path.stem}")[-1][4] >= start


def test_without_sparks_vectorised_reader(spark, tmp_path):
    put_log(tmp_path, [ours(records(1, 50, 1)), wal3(records(51, 50, 2))])
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        assert len(both(spark, f"file://{tmp_path}", endingOffsets=60)) == 59
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


def test_several_row_groups(spark, tmp_path):
    """A fragment of 300 000 records has three; a fragment of 20 MB, too."""
    many = [Record(1 + at, b"%d" % at, timestamp_us=START_US) for at in range(300_000)]
    long = [Record(300_001 + at, b"%d" % at * 20_000, timestamp_us=START_US) for at in range(200)]
    put_log(tmp_path, [ours(many), ours(long)])
    summary = ["count(*)", "sum(offset)", "sum(crc32(value))", "min(offset)", "max(offset)"]
    for options in ({}, {"startingOffsets": 150_000, "endingOffsets": 300_150}):
        found = [
            read(spark, f"file://{tmp_path}", options, fast_path=way).selectExpr(*summary).first()
            for way in ("always", "never")
        ]
        assert found[0] == found[1]


def test_a_chain(spark, tmp_path):
    found = records(1, 200, 4)
    write_chain(f"file://{tmp_path}/orders", found, 20)
    rows = both(spark, f"file://{tmp_path}/orders", startingOffsets=30)
    assert [row[1] for row in rows] == [record.value for record in found[29:]]


def test_several_logs(spark, tmp_path):
    url = f"file://{tmp_path}/bucket"
    write(f"{url}/bills", [b"b1", b"b2"], stream="eu")
    write_partitioned(f"{url}/orders", 3, {0: [b"o1", b"o2"], 2: [b"o3"]})
    assert {row[2:4] for row in both(spark, f"{url}/orders")} == {("orders", 0), ("orders", 2)}
    assert len(both(spark, url, subscribe="bills,orders")) == 5
    assert len(both(spark, url, subscribePattern=".*")) == 5
    assert both(spark, url, subscribe="orders/1") == []
    assert [row[1] for row in both(spark, url, subscribe="orders/2")] == [b"o3"]
    offsets = '{"bills":{"0":2},"orders":{"0":-2,"1":-1,"2":1}}'
    assert len(both(spark, url, subscribe="bills,orders", startingOffsets=offsets)) == 4
    frame = read(spark, url, subscribe="bills,orders")
    assert is_native(frame.where("topic = 'orders' and partition = 2"))
    assert frame.where("topic = 'orders' and partition = 2").count() == 1
    assert frame.where("topic = 'nobody'").count() == 0


def test_strange_names(spark, tmp_path):
    """Folders that Spark would take for patterns, hidden files or columns."""
    for name in ("_x", ".x", "a=b", "{a,b}", "[a]", "*", "?", "\\", "100%", "ü #", "a:b"):
        url = (tmp_path / name).as_uri()
        put_log(tmp_path / name, [ours(records(1, 10, 3))])
        rows = both(spark, url)
        assert [row[2] for row in rows] == [name] * 10


@pytest.mark.parametrize("retention_bytes", [0, None])
def test_a_log_beside_its_store(spark, tmp_path, log_directory, retention_bytes):
    """What was shipped is read by the JVM, the rest by Python; every record once."""
    tier = CloudTier(f"file://{tmp_path}/store", settings=UploadSettings(fragment_bytes=16_384))
    settings = local.SMALL.replace(retention_bytes=retention_bytes)
    found = asyncio.run(fill(log_directory, settings=settings, tier=tier))
    assert as_records(both(spark, log_directory)) == found
    assert is_native(read(spark, str(log_directory), fast_path="always"))

    async def append() -> None:
        async with Wal.open(log_directory) as wal:
            for at in range(7):
                await wal.append(b"later %d" % at, stream="us", headers={"a": b"b"})

    asyncio.run(append())
    rows = both(spark, log_directory)
    assert [row[4] for row in rows] == list(range(1, 1008))
    assert as_records(rows)[:1000] == found
    assert len(both(spark, log_directory, startingOffsets=995, endingOffsets=1004)) == 9
    assert len(both(spark, log_directory, startingOffsets=1002)) == 6
    assert len(both(spark, log_directory, stream="us")) == 7
    frame = read(spark, str(log_directory), fast_path="always", endingOffsets=1001)
    assert is_native(frame)


def test_partitions_in_a_directory(spark, tmp_path):
    """None of it was shipped: only Python reads, and topics and partitions stay right."""
    write_directory(tmp_path / "data", {"bills": [b"b1"], "orders/0": [b"o1"], "orders/2": [b"o2"]})
    rows = rows_of(read(spark, tmp_path / "data", subscribe="bills,orders"))
    assert [row[1:5] for row in rows] == [
        (b"b1", "bills", 0, 1),
        (b"o1", "orders", 0, 1),
        (b"o2", "orders", 2, 1),
    ]


def test_nothing_to_read(spark, tmp_path):
    put_log(tmp_path, [ours(records(1, 10, 3))])
    assert both(spark, f"file://{tmp_path}", startingOffsets="latest") == []
    assert both(spark, f"file://{tmp_path}", startingOffsets=5, endingOffsets=5) == []


def test_headers_on_request(spark, tmp_path):
    put_log(tmp_path, [ours(records(1, 10, 3)), wal3(records(11, 10, 4))])
    assert "headers" not in read(spark, f"file://{tmp_path}").columns
    assert len(both(spark, f"file://{tmp_path}", includeHeaders=False)) == 20
