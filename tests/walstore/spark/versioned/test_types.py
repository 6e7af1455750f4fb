"""Columns of collections in Spark: one type each, no value lost."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, LongType

from tests.walstore.spark.versioned.columns import EVERY, KINDS, every_schema, table
from tests.walstore.spark.versions import sparks_arrow_schema
from uploader.versioned import updates
from uploader.versioned.schema import CollectionSchema
from walstore.errors import InvalidSettingsError, WalError
from walstore.spark.versioned.types import (
    arrow_schema,
    arrow_type,
    from_spark,
    spark_schema,
    spark_type,
    to_spark,
)


@pytest.mark.parametrize("is_updates", [False, True])
@pytest.mark.parametrize("kind", ["diff", "upsert"])
def test_the_arrow_types_are_those_that_spark_expects(kind, is_updates):
    schema = every_schema(kind)
    spark = spark_schema(schema, is_updates=is_updates)
    expected = sparks_arrow_schema(spark)
    assert arrow_schema(schema, is_updates=is_updates).equals(expected)
    own = {"diff": ["_t", "_d"], "upsert": ["_t", "_deleted"]}[kind]
    if not is_updates:
        own = [name for name in own if name == "_d"]
    assert spark.fieldNames() == [*EVERY.names, *own]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_come_back(kind):
    schema = CollectionSchema.new(pa.schema([("id", pa.int64()), ("c", kind)]), kind="diff", key=())
    given = table(200, random.Random(1), schema.columns)
    stored = updates.conform(given, schema, lower=0, upper=1)
    shown = to_spark(stored.select(["id", "c"]))
    assert shown.schema.field("c").type == arrow_type(kind)
    assert shown.num_rows == stored.num_rows
    again = updates.conform(
        from_spark(shown, schema).append_column("_d", stored.column("_d")), schema, lower=0, upper=1
    )
    assert again.schema.equals(stored.schema)
    assert str(again.to_pylist()) == str(stored.to_pylist())  # a NaN is a NaN


def test_numbers_without_a_sign_become_larger_types():
    assert spark_type(pa.uint64()) == DecimalType(20, 0)
    assert spark_type(pa.uint32()) == LongType()


def test_an_empty_table_has_all_columns():
    assert to_spark(EVERY.empty_table()).schema.names == EVERY.names
    assert from_spark(to_spark(EVERY.empty_table()), every_schema("diff")).num_rows == 0


@pytest.mark.parametrize("kind", [pa.decimal256(39, 0), pa.decimal256(76, 3)])
def test_types_that_spark_does_not_have(kind):
    schema = CollectionSchema.new(pa.schema([("wide", kind)]), kind="diff", key=())
    with pytest.raises(InvalidSettingsError, match=r"'wide'.*Spark has no type"):
        spark_schema(schema)


def test_a_timestamp_beyond_spark():
    found = pa.table({"at": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(WalError, match="'at' does not fit Spark"):
        to_spark(found)


@pytest.mark.parametrize(
    "kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
)
@pytest.mark.parametrize("count", [-1, 2**50])
def test_longs_that_are_no_time_of_day(kind, count):
    schema = CollectionSchema.new(pa.schema([("at", kind)]), kind="diff", key=())
    with pytest.raises(InvalidSettingsError, match="'at' does not fit"):
        from_spark(pa.table({"at": pa.array([count])}), schema)


def test_columns_that_the_collection_does_not_have_stay():
    found = pa.table({"other": [1], "c20": [1]})
    assert from_spark(found, every_schema("diff")).column("other").to_pylist() == [1]
