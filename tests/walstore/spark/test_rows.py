"""Rows: every record arrives in Spark's exact schema, whatever the batches look like."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from tests.frames import batch_of, build, record_lists, values_only
from tests.walstore.spark.versions import sparks_arrow_schema
from walstore import Record
from walstore.core.batches.batch import Batch
from walstore.errors import InvalidSettingsError
from walstore.spark import rows
from walstore.spark.rows import (
    MOST_ROWS,
    Projection,
    RowBuilder,
    arrow_schema,
    column_names,
    spark_schema,
)

ALL = spark_schema(include_headers=True)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def expected(record: Record) -> dict[str, object]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": 0,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(microseconds=record.timestamp_us),
        "timestampType": 0,
        "stream": record.stream,
        "headers": [{"key": k, "value": v} for k, v in record.headers.items()] or None,
    }


def schema_of(**columns: str) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def built(batches: Sequence[Batch], schema: StructType = ALL) -> list[pa.RecordBatch]:
    return list(RowBuilder(Projection(column_names(schema)), topic="orders").build(iter(batches)))


def as_batches(records: Sequence[Record], cuts: Sequence[int]) -> list[Batch]:
    bounds = sorted({0, len(records), *(cut % len(records) for cut in cuts)})
    return [batch_of(build(records[low:high])) for low, high in pairwise(bounds)]


def test_the_arrow_schema_is_the_one_that_spark_derives():
    assert arrow_schema(ALL.fieldNames()).equals(sparks_arrow_schema(ALL))


def test_headers_are_left_out_unless_asked_for():
    assert spark_schema(include_headers=False).fieldNames() == ALL.fieldNames()[:-1]


@given(record_lists(), st.lists(st.integers(0, 100), max_size=6))
def test_all_records_arrive(records, cuts):
    found = built(as_batches(records, cuts))
    assert [row for batch in found for row in batch.to_pylist()] == [expected(r) for r in records]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(ALL.fieldNames()))


def test_large_batches_are_divided_and_small_ones_joined(monkeypatch):
    monkeypatch.setattr(rows, "MOST_ROWS", 1000)
    large = batch_of(build(values_only(*[b"x"] * 2500)))
    small = [batch_of(build(values_only(b"y", start=2501 + at))) for at in range(1500)]
    found = built([large, *small])
    assert [batch.num_rows for batch in found] == [1000, 1000, 500, 1000, 500]
    offsets = [offset for batch in found for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(1, 4001))


def test_values_share_the_bytes_of_the_log():
    batch = batch_of(build(values_only(*[b"x" * 100] * 1000)))
    (found,) = built([batch])
    source = batch.to_arrow().column("value").buffers()[2]
    assert found.column("value").buffers()[2].address == source.address


def test_slices_of_a_batch_keep_their_headers():
    records = [
        Record(at, b"v", headers={"n": str(at).encode()} if at % 3 else {}) for at in range(1, 20)
    ]
    batch = batch_of(build(records)).slice(5, 15)
    (found,) = built([batch])
    assert found.to_pylist() == [expected(record) for record in records[4:14]]


@pytest.mark.parametrize(
    "columns",
    [{"value": "binary"}, {"offset": "long", "key": "binary"}, {"timestamp": "timestamp"}],
)
def test_a_schema_may_choose_columns(columns):
    schema = schema_of(**columns)
    records = values_only(b"a", b"b")
    (found,) = built([batch_of(build(records))], schema)
    assert found.schema.equals(sparks_arrow_schema(schema))
    assert found.to_pylist() == [{n: expected(r)[n] for n in columns} for r in records]


@pytest.mark.parametrize(
    "schema",
    [
        StructType().add("value", "string"),
        StructType().add("price", "integer"),
        StructType().add("value", "binary", nullable=False),
        StructType().add("key", "binary").add("key", "binary"),
        StructType(),
    ],
)
def test_another_schema_is_refused(schema):
    with pytest.raises(InvalidSettingsError, match="schema"):
        column_names(schema)


def test_offsets_are_told_in_batches():
    names = ("partition", "offset", "topic", "timestampType")
    batches = list(RowBuilder(Projection(names), topic="orders", partition=3).count(5, 300_005))
    assert [len(batch) for batch in batches] == [
        *[MOST_ROWS] * (300_000 // MOST_ROWS),
        300_000 % MOST_ROWS,
    ]
    assert {batch.schema for batch in batches} == {arrow_schema(names)}
    found = pa.Table.from_batches(batches)
    assert found.column("offset").to_pylist() == list(range(5, 300_005))
    for name, value in (("partition", 3), ("topic", "orders"), ("timestampType", 0)):
        assert found.column(name).unique().to_pylist() == [value]
    assert list(RowBuilder(Projection(names), topic="orders").count(5, 5)) == []


def test_only_records_of_the_streams_are_built():
    records = [
        Record(at, b"%d" % at, None, (None, "eu", "us", "asia")[at % 4], {}, at)
        for at in range(1, 200)
    ]
    projection = Projection(("offset", "value"), frozenset({"eu", "us"}))
    batches = list(RowBuilder(projection, topic="orders").build(as_batches(records, [7, 50, 51])))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == [
        {"offset": r.offset, "value": r.value} for r in records if r.stream in {"eu", "us"}
    ]
