"""What filters spare: never a row that meets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from tests.walstore.spark.test_plan import FakeLog
from walstore.spark.features import HAS_FILTERS
from walstore.spark.plan import ReadInterval
from walstore.spark.reader import Narrowed, Range, narrow

if not HAS_FILTERS:
    pytest.skip("Spark 4.0 has no filters for sources", allow_module_level=True)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MEANINGS = {
    spark.EqualTo: lambda a, b: a == b,
    spark.EqualNullSafe: lambda a, b: a == b,
    spark.GreaterThan: lambda a, b: a > b,
    spark.GreaterThanOrEqual: lambda a, b: a >= b,
    spark.LessThan: lambda a, b: a < b,
    spark.LessThanOrEqual: lambda a, b: a <= b,
    spark.In: lambda a, b: a in b,
}


def moment(offset: int) -> datetime:
    return EPOCH + timedelta(milliseconds=offset)


@st.composite
def filters(draw):
    kind = draw(st.sampled_from([*MEANINGS]))
    column = draw(st.sampled_from(["offset", "timestamp", "partition", "topic", "stream"]))
    value = {
        "offset": st.integers(-5, 30),
        "timestamp": st.integers(0, 30).map(moment),
        "partition": st.integers(-1, 4),
        "topic": st.sampled_from(["orders", "bills"]),
        "stream": st.sampled_from(["eu", "us"]),
    }[column]
    return kind((column,), draw(st.lists(value, max_size=3) if kind is spark.In else value))


@given(st.lists(filters(), max_size=4), st.sampled_from(["orders", "bills"]), st.integers(0, 3))
def test_no_row_that_meets_all_filters_is_lost(given_filters, topic, partition):
    narrowed = narrow(given_filters)
    log = FakeLog(head=10, limit=20)
    left = narrowed.interval(log, ReadInterval(10, 20))
    assert 10 <= left.start <= left.limit <= 20 or left.start == left.limit
    for offset in range(10, 20):
        for stream in ("eu", "us"):
            row = {
                "offset": offset,
                "timestamp": moment(offset),
                "partition": partition,
                "topic": topic,
                "stream": stream,
            }
            if all(MEANINGS[type(f)](row[f.attribute[0]], f.value) for f in given_filters):
                assert narrowed.admits(topic, partition)
                assert left.start <= offset < left.limit
                assert narrowed.streams is None or stream in narrowed.streams


def test_what_is_read_is_no_more_than_needed():
    found = narrow(
        [
            spark.GreaterThanOrEqual(("offset",), 12),
            spark.LessThan(("timestamp",), moment(17)),
            spark.EqualTo(("stream",), "eu"),
            spark.In(("topic",), ["orders", None, "bills"]),
            spark.LessThanOrEqual(("partition",), 1),
        ]
    )
    assert found.interval(FakeLog(head=10, limit=20), ReadInterval(10, 20)) == ReadInterval(12, 17)
    assert found.streams == {"eu"}
    assert [found.admits("orders", at) for at in range(3)] == [True, True, False]
    assert not found.admits("clicks", 0)


def test_contradictions_leave_nothing():
    no_stream = [spark.EqualTo(("stream",), "eu"), spark.EqualTo(("stream",), "us")]
    assert not narrow(no_stream).admits("orders", 0)
    log = FakeLog(head=10, limit=20)
    for none in (
        [spark.GreaterThan(("offset",), 19)],
        [spark.EqualTo(("offset",), 12), spark.EqualTo(("offset",), 14)],
        [spark.In(("offset",), [])],
        [spark.GreaterThan(("timestamp",), moment(30))],
        [spark.LessThan(("timestamp",), moment(10))],
    ):
        left = narrow(none).interval(log, ReadInterval(10, 20))
        assert left.start == left.limit


@pytest.mark.parametrize(
    "item",
    [
        spark.IsNotNull(("offset",)),
        spark.IsNull(("stream",)),
        spark.Not(spark.EqualTo(("offset",), 5)),
        spark.StringStartsWith(("topic",), "o"),
        spark.EqualTo(("value",), b"x"),
        spark.EqualTo(("offset",), None),
        spark.EqualTo(("offset",), True),
        spark.EqualTo(("stream",), None),
        spark.EqualTo(("timestamp",), datetime(2023, 1, 1)),
        spark.EqualTo(("headers", "key"), "x"),
        spark.In(("offset",), [1, "x"]),
        spark.GreaterThan(("topic",), "a"),
        object(),
    ],
)
def test_what_is_not_understood_leaves_everything(item):
    assert narrow([item]) == Narrowed()


def test_ranges():
    assert Range(3, 9).both(Range(5)) == Range(5, 9)
    assert Range(3).both(Range(5)) == Range(5)
    assert [at for at in range(12) if at in Range(3, 9).both(Range(0, 5))] == [3, 4]
