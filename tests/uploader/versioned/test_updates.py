"""Updates: what callers give becomes stored tables, and compaction changes nothing that a reader sees."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from tests.effort import first_seed
from tests.uploader.versioned.shapes import COLUMNS, schema_of
from uploader.versioned import updates
from uploader.versioned.schema import CollectionSchema
from walstore.errors import CorruptionError, InvalidSettingsError, LimitExceededError

DIFF, UPSERT = schema_of("diff"), schema_of("upsert")
STEP = 10
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([None, "a", "b"]), st.integers(0, 9),
              st.sampled_from([-2, -1, 1, 2])),
    max_size=8,
)  # fmt: skip


def given_rows(rows: Any, schema: CollectionSchema, lower: int) -> pa.Table:
    """Return (id, name, time after ``lower``, count) as callers give updates; a negative count removes."""
    effect = [row[3] if schema is DIFF else row[3] < 0 for row in rows]
    return pa.table({
        "id": pa.array([row[0] for row in rows], pa.int64()),
        "name": pa.array([row[1] for row in rows], pa.string()),
        "_t": pa.array([lower + row[2] for row in rows], pa.uint64()),
        schema.effect: pa.array(effect, schema.updates.field(schema.effect).type),
    })  # fmt: skip


def conform_all(batches: Any, schema: CollectionSchema) -> list[pa.Table]:
    return [
        updates.conform(
            given_rows(rows, schema, STEP * at), schema, lower=STEP * at, upper=STEP * at + STEP
        )
        for at, rows in enumerate(batches)
    ]


def content(tables: Any, schema: CollectionSchema, as_of: int) -> Any:
    rows = updates.snapshot(tables, schema, as_of=as_of).to_pylist()
    if schema is DIFF:
        return {(row["id"], row["name"]): row["_d"] for row in rows}
    return {row["id"]: row["name"] for row in rows}


def model(batches: Any, schema: CollectionSchema, as_of: int) -> Any:
    flat = [(STEP * at + row[2], row) for at, rows in enumerate(batches) for row in rows]
    counts: Counter[Any] = Counter()
    live: dict[Any, Any] = {}
    for time, (key, name, _, effect) in sorted(flat, key=lambda item: item[0]):
        if time > as_of:
            continue
        counts[key, name] += effect
        live.pop(key, None)
        if effect > 0:
            live[key] = name
    return {row: n for row, n in counts.items() if n} if schema is DIFF else live


@pytest.mark.parametrize("schema", [DIFF, UPSERT], ids=["diff", "upsert"])
@given(
    batches=st.lists(ROWS, min_size=3, max_size=4),
    since=st.integers(0, 45),
    more=st.integers(0, 20),
    first=st.integers(0, 2),
)
@pytest.mark.slow
def test_compaction_in_two_stages_changes_no_content_from_since_on(
    schema: CollectionSchema, batches: Any, since: int, more: int, first: int
) -> None:
    tables = conform_all(batches, schema)
    for as_of in range(0, 41, 8):
        assert content(tables, schema, as_of) == model(batches, schema, as_of)
    for floor, run in ((since, slice(first, first + 2)), (since + more, slice(0, None))):
        inputs = tables[run]
        merged = updates.consolidate(inputs, schema, since=floor, is_oldest=run.start == 0)
        _check_merged(merged, inputs, schema, floor)
        tables[run] = [merged]
        for as_of in {floor, floor + 1, floor + 7, 39, 65} - set(range(floor)):
            assert content(tables, schema, as_of) == model(batches, schema, as_of)


_NUMBERS = st.none() | st.sampled_from([-0.0, 0.0, 1.5, math.nan, math.inf])
_SEVERAL = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, "", "a", "ab"]), _NUMBERS,
              st.sampled_from([None, b"a", b"\xff"]), st.sampled_from([None, Decimal("-1.5"), Decimal(2)]),
              st.integers(0, 3), st.integers(-2, 2)),
    max_size=12,
)  # fmt: skip


@given(rows=_SEVERAL, since=st.integers(0, 3), order=st.randoms(use_true_random=False))
@pytest.mark.slow
def test_a_table_that_is_sorted_already_adds_up_as_one_that_is_not(
    rows: Any, since: int, order: random.Random
) -> None:
    columns = [
        ("id", pa.int64()), ("name", pa.string()), ("number", pa.float64()), ("data", pa.binary()),
        ("price", pa.decimal128(9, 2)),
    ]  # fmt: skip
    schema = CollectionSchema.new(pa.schema(columns), kind="diff", key=("id",))
    names = [*schema.columns.names, "_t", "_d"]
    kinds = [schema.updates.field(name).type for name in names]
    given_table = pa.table(
        [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)], names=names
    )
    stored = updates.conform(given_table, schema, lower=0, upper=4)
    places = list(range(stored.num_rows))
    order.shuffle(places)
    mixed = stored.take(pa.array(places, pa.int64()))
    for of in (stored, mixed):
        assert _rows(updates.conform(of.drop_columns(["_h"]), schema, lower=0, upper=4)) == _rows(
            stored
        )
        merged = updates.consolidate([of], schema, since=since, is_oldest=True)
        assert _rows(merged) == _rows(
            updates.consolidate([mixed], schema, since=since, is_oldest=True)
        )
        content = updates.snapshot([of], schema, as_of=3)
        assert _rows(content) == _rows(updates.snapshot([mixed], schema, as_of=3))
        counts: Counter[Any] = Counter()
        for row in given_table.to_pylist():
            counts[_key(row)] += row["_d"]
        assert {_key(row): row["_d"] for row in content.to_pylist()} == {
            key: count for key, count in counts.items() if count
        }


def _rows(table: pa.Table) -> list[str]:
    return [repr(row) for row in table.to_pylist()]  # NaN has one text


def _key(row: dict[str, Any]) -> str:
    """Return the text of a row without its time and count; a zero has one sign."""
    number = None if row["number"] is None else row["number"] + 0.0
    price = None if row["price"] is None else float(row["price"])
    return repr((row["id"], row["name"], number, row["data"], price))


def _place(row: dict[str, Any], schema: CollectionSchema) -> list[Any]:
    """Return what rows are sorted by: nulls come last."""
    columns = [(row[name] is None, row[name] or "") for name in schema.order if name != "id"]
    return [row["id"], *columns, row["_t"]]


def _check_merged(
    merged: pa.Table, inputs: list[pa.Table], schema: CollectionSchema, since: int
) -> None:
    assert merged.schema == schema.stored
    before = {max(time, since) for table in inputs for time in table["_t"].to_pylist()}
    assert set(merged["_t"].to_pylist()) <= before
    by = ["id", "name", "_t"] if schema is DIFF else ["id", "_t"]
    rows = [tuple(row[name] for name in by) for row in merged.to_pylist()]
    assert len(set(rows)) == len(rows)
    order = [_place(row, schema) for row in merged.to_pylist()]
    assert order == sorted(order)
    if schema is DIFF:
        assert 0 not in merged["_d"].to_pylist()
        total = sum(map(updates.digest, inputs)) % (1 << 64)
        assert updates.digest(merged) == total


def test_removals_vanish_only_from_the_oldest_run_and_only_up_to_since() -> None:
    tables = conform_all([[(1, None, 2, -1), (2, None, 8, -1)]], UPSERT)
    kept = updates.consolidate(tables, UPSERT, since=5, is_oldest=False)
    assert [(row["id"], row["_t"]) for row in kept.to_pylist()] == [(1, 5), (2, 8)]
    oldest = updates.consolidate(tables, UPSERT, since=5, is_oldest=True)
    assert [(row["id"], row["_t"]) for row in oldest.to_pylist()] == [(2, 8)]


REFUSED: list[dict[str, Any]] = [
    {"id": [1], "other": [1]},
    {"name": ["a"]},
    {"id": [None]},
    {"id": ["1"]},
    {"id": [1.5]},
    {"id": [1 << 63]},
    {"id": [1], "name": [1]},
    {"id": [1], "_t": [None]},
    {"id": [1], "_t": [-1]},
    {"id": [1], "_t": [4]},
    {"id": [1], "_t": [10]},
    {"id": [1], "_h": [1]},
]


@pytest.mark.parametrize("schema", [DIFF, UPSERT], ids=["diff", "upsert"])
@pytest.mark.parametrize("columns", REFUSED, ids=str)
def test_updates_that_do_not_fit_are_refused(
    schema: CollectionSchema, columns: dict[str, Any]
) -> None:
    made = {
        name: pa.array(v, pa.uint64() if v == [1 << 63] else None) for name, v in columns.items()
    }
    with pytest.raises(InvalidSettingsError):
        updates.conform(pa.table(made), schema, lower=5, upper=10)


def test_counts_beyond_what_a_double_holds_exactly() -> None:
    one = updates.conform(pa.table({"id": [1], "_d": [(1 << 60) + 1]}), DIFF, lower=0, upper=1)
    assert one["_d"].to_pylist() == [(1 << 60) + 1]
    with pytest.raises(InvalidSettingsError, match="64 bits"):
        updates.conform(pa.table({"id": [1, 1], "_d": [1 << 62] * 2}), DIFF, lower=0, upper=1)
    with pytest.raises(LimitExceededError, match="opposite count"):
        updates.consolidate([one] * 9, DIFF, since=0, is_oldest=True)
    with pytest.raises(LimitExceededError, match="64 bits"):
        updates.snapshot([one] * 9, DIFF, as_of=0)


def test_a_hash_depends_on_values_alone() -> None:
    table = pa.table({"id": [1, 2], "name": ["a", None]})
    plain = updates.conform(table, UPSERT, lower=0, upper=1)["_h"]
    turned = updates.conform(table.select(["name", "id"]), UPSERT, lower=0, upper=1)["_h"]
    wide = UPSERT.evolve(
        pa.schema([COLUMNS.field(0), ("name", pa.large_string()), ("new", pa.float64())])
    )
    assert plain == turned == updates.conform(table, wide, lower=0, upper=1)["_h"]
    upgraded = updates.upgrade(updates.conform(table, UPSERT, lower=0, upper=1), wide, path="x")
    assert upgraded.schema == wide.stored
    assert upgraded["new"].null_count == 2
    with pytest.raises(CorruptionError):
        updates.upgrade(upgraded, UPSERT, path="x")


def test_zeros_are_one_value_and_so_are_nans() -> None:
    schema = CollectionSchema.new(pa.schema([("x", pa.float64())]), kind="diff", key=())
    values = [0.0, -0.0, math.nan, -math.nan]
    stored = updates.conform(pa.table({"x": values}), schema, lower=0, upper=1)
    assert stored["_d"].to_pylist() == [2, 2]


@pytest.mark.parametrize("schema", [DIFF, UPSERT], ids=["diff", "upsert"])
@given(rows=ROWS)
def test_the_order_in_which_rows_are_given_does_not_matter_if_no_two_have_one_key_and_time(
    schema: CollectionSchema, rows: Any
) -> None:
    unique = sorted(
        {(row[0], row[2]): row for row in rows}.values(), key=lambda row: (row[0], row[2])
    )
    for given_order in (unique, unique[::-1]):
        table = given_rows(given_order, schema, 0)
        stored = updates.conform(table, schema, lower=0, upper=STEP)
        found = stored.to_pylist()
        assert sorted((row["id"], row["_t"]) for row in found) == [
            (row[0], row[2]) for row in unique
        ]
        places = [_place(row, schema) for row in found]
        assert places == sorted(places)


def _broken_text() -> pa.Array:
    offsets = pa.array([0, 1], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1 << 62], pa.timestamp("s")),
        pa.array([1], pa.int64()).view(pa.date64()),
        pa.array([-5], pa.int32()).view(pa.time32("s")),
        _broken_text(),
    ],
    ids=["seconds", "part of a day", "before midnight", "not UTF-8"],
)
def test_values_that_no_file_holds_are_refused(values: pa.Array) -> None:
    schema = CollectionSchema.new(pa.schema([("a", values.type)]), kind="diff", key=())
    with pytest.raises(InvalidSettingsError):
        updates.conform(pa.table({"a": values}), schema, lower=0, upper=1)


PRICE = pa.decimal128(20, 2)
EXACT: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([5.25, 5.26, 1e15]), PRICE, [Decimal("5.25"), Decimal("5.26"), Decimal(10**15)]),
    (pa.array([7, -(2**53)]), PRICE, [Decimal(7), Decimal(-(2**53))]),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
    (pa.array([Decimal("5.1"), Decimal("0.0000001")]), pa.float64(), [5.1, 1e-7]),
    (pa.array([Decimal("5.0")]), pa.int64(), [5]),
    (pa.array([1000], pa.timestamp("ns")), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 0, 1)]),
    (pa.array(["a", "a"], pa.string_view()), pa.string(), ["a", "a"]),
    (pa.array([b"ab"], pa.binary_view()), pa.binary(2), [b"ab"]),
    (pa.array(["a"]).dictionary_encode(), pa.large_string(), ["a"]),
    (pa.array([0.123456789]), pa.float32(), [0.12345679104328156]),  # the nearest one
]
CHANGED: list[tuple[pa.Array, pa.DataType, str, int]] = [
    (pa.array([5.25, 5.256, 5.257]), PRICE, "5.256", 1),
    (pa.array([1.0, math.nan]), PRICE, "nan", 1),
    (pa.array([1.0, math.inf]), PRICE, "inf", 1),
    (pa.array([1, 2, 10**18]), PRICE, "1000000000000000000", 2),
    (pa.array([None, Decimal("12345678901234567.89")]), pa.float64(), "12345678901234567.89", 1),
    (pa.array([Decimal("5.1")]), pa.int64(), "5.1", 0),
    (pa.array([2**53 + 1]), pa.float64(), "9007199254740993", 0),
    (pa.array([1e300]), pa.float32(), "1e+300", 0),
    (
        pa.array([1000, 1], pa.timestamp("ns")),
        pa.timestamp("us"),
        "1970-01-01 00:00:00.000000001",
        1,
    ),
]


def test_values_of_other_types_are_taken_as_they_are() -> None:
    for column, kind, expected in EXACT:
        with case(column.type, kind):
            schema = CollectionSchema.new(pa.schema([("v", kind)]), kind="diff", key=())
            stored = updates.conform(pa.table({"v": column}), schema, lower=0, upper=1)
            assert set(stored["v"].to_pylist()) == set(expected)


def test_a_value_that_would_change_is_named_with_its_row() -> None:
    for column, kind, value, row in CHANGED:
        with case(column.type, kind):
            schema = CollectionSchema.new(pa.schema([("v", kind)]), kind="diff", key=())
            said = rf"'v' is .*the value {re.escape(value)} of row {row} "
            with pytest.raises(InvalidSettingsError, match=said):
                updates.conform(pa.table({"v": column}), schema, lower=0, upper=1)


def test_updates_with_nan_equal_themselves() -> None:
    schema = CollectionSchema.new(
        pa.schema([("a", pa.float64()), ("b", pa.float32())]), kind="diff", key=()
    )
    one, other = (
        updates.conform(
            pa.table({"a": [math.nan, None], "b": pa.array([math.nan, value], pa.float32())}),
            schema, lower=0, upper=1,
        )
        for value in (1.0, 2.0)
    )  # fmt: skip
    assert updates.are_equal(one, one)
    assert not updates.are_equal(one, other)


@pytest.mark.parametrize("schema", [DIFF, UPSERT], ids=["diff", "upsert"])
@pytest.mark.parametrize("keys", [7, 900, 100_000], ids=["grouped", "some twice", "sorted"])
def test_many_updates_add_up_however_often_a_row_is_repeated(
    schema: CollectionSchema, keys: int
) -> None:
    """Many equal rows are grouped, few are found by sorting: what comes out is the same."""
    chance = random.Random(keys + first_seed("updates"))
    batches = [
        [
            (chance.randrange(keys), chance.choice([None, "a"]), chance.randrange(10), effect)
            for effect in chance.choices([-2, -1, 1, 2], k=5000)
        ]
        for _ in range(2)
    ]
    tables = conform_all(batches, schema)
    assert content(tables, schema, 19) == model(batches, schema, 19)
    merged = updates.consolidate(tables, schema, since=12, is_oldest=True)
    assert content([merged], schema, 12) == model(batches, schema, 12)
    assert content([merged], schema, 15) == model(batches, schema, 15)
    order = [(row["id"], row["_t"]) for row in merged.to_pylist()]
    assert schema is DIFF or order == sorted(set(order))


def test_large_counts_that_cancel_each_other_are_no_trouble() -> None:
    large = (1 << 62) + 3
    tables = [
        updates.conform(
            pa.table({"id": [1, 2], "_d": [count, -count]}), DIFF, lower=at, upper=at + 1
        )
        for at, count in enumerate([large, -large, large, -large, large])
    ]
    for order in (tables, tables[::-1]):
        merged = updates.consolidate(order, DIFF, since=9, is_oldest=True)
        assert merged["_d"].to_pylist() == [large, -large]
        assert content(order, DIFF, 3) == {}
        assert content(order, DIFF, 4) == {(1, None): large, (2, None): -large}
    with pytest.raises(LimitExceededError, match="64 bits"):
        updates.consolidate([*tables, tables[0]], DIFF, since=9, is_oldest=True)
