"""Row groups: their bounds hold, whatever the keys are, and each is read by itself."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import first_seed
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.batch_groups import GroupedFile, RowGroup, key_columns, keys_at_least
from uploader.versioned.schema import CollectionSchema
from walstore.errors import CorruptionError

ROWS = 20
DAY = dt.date(2026, 1, 1)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int64(): [-(2**63), -5, 0, 7, 2**63 - 1],
    pa.uint8(): [0, 1, 127, 128, 255],
    pa.uint32(): [0, 2**31 - 1, 2**31, 2**32 - 1],
    pa.uint64(): [0, 2**63 - 1, 2**63, 2**64 - 1],
    pa.bool_(): [False, True],
    pa.string(): ["", "a", "ab", "b", "é", "\U0001f600", "￿"],
    pa.large_string(): ["", "a", "z" * 100],
    pa.binary(): [b"", b"\x00", b"\x7f", b"\x80", b"\xff\xff"],
    pa.binary(2): [b"\x00\x00", b"\x7f\xff", b"\x80\x00"],
    pa.date32(): [DAY, DAY + dt.timedelta(1), dt.date(1900, 1, 1)],
    pa.timestamp("us"): [dt.datetime(1960, 1, 1), dt.datetime(2026, 1, 1)],
    pa.timestamp("ns", tz="UTC"): [-5, 0, 5],
    pa.time64("us"): [dt.time(0), dt.time(23, 59)],
    pa.duration("ms"): [dt.timedelta(-1), dt.timedelta(1)],
    pa.decimal128(5, 2): [Decimal("-1.25"), Decimal("0.00"), Decimal("999.99")],
    pa.decimal128(30, 2): [Decimal("-1.25"), Decimal(10) ** 25],
    pa.decimal256(60, 0): [Decimal(-(10**50)), Decimal(7), Decimal(10**50)],
    pa.timestamp("s"): [0, 10],
    pa.float64(): [float("nan"), 0.0, -1.0],
}
UNORDERED = {pa.timestamp("s"), pa.float64()}


def grouped(
    table: pa.Table, schema: CollectionSchema, monkeypatch: pytest.MonkeyPatch
) -> tuple[GroupedFile, bytes]:
    """Return updates as a file with row groups of three."""
    monkeypatch.setattr(batch_file, "ROW_GROUP_ROWS", 3)
    stored = updates.conform(table, schema, lower=0, upper=100)
    footer = BatchFooter(
        collection="c", writer="w", lower=0, upper=100, since=0, rows=stored.num_rows,
        digest=updates.digest(stored), schema_id=0,
    )  # fmt: skip
    data = batch_file.encode(stored, footer, schema=schema)
    end = data[-batch_file.footer_bytes(data[-8:], path="f") :]  # without any row group
    return GroupedFile.read(end, size_bytes=len(data), schema=schema, path="f"), data


def decoded(file: GroupedFile, group: RowGroup, data: bytes, schema: CollectionSchema) -> pa.Table:
    return file.decode(group, data[group.start : group.limit], schema)


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("has_nulls", [False, True])
def test_bounds_hold(kind: pa.DataType, has_nulls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is outside the bounds of its row group, and row groups that may have a key are enough."""
    chance = random.Random(first_seed("bounds"))
    columns = pa.schema([("k", kind), ("j", pa.int16())])
    schema = CollectionSchema.new(columns, kind="diff", key=())
    values = [None, *VALUES[kind]] if has_nulls else VALUES[kind]
    table = pa.table(
        {
            "k": pa.array([chance.choice(values) for _ in range(ROWS)], kind),
            "j": pa.array([chance.choice([1, 2, 3]) for _ in range(ROWS)], pa.int16()),
            "_t": pa.array(range(ROWS), pa.uint64()),
        }
    )
    file, data = grouped(table, schema, monkeypatch)
    ordered = key_columns(schema)
    assert len(ordered) == (0 if kind in UNORDERED else 2)
    assert sum(group.rows for group in file.groups) == ROWS
    if ordered and not has_nulls:
        assert all(group.low and group.high for group in file.groups)
    cuts = sorted({group.low for group in file.groups} | {group.high for group in file.groups})
    tables = [decoded(file, group, data, schema) for group in file.groups]
    for group, rows in zip(file.groups, tables, strict=True):
        after = [keys_at_least(rows, cut, ordered).to_pylist() for cut in cuts]
        for at, low in enumerate(cuts):
            for to in range(at + 1, len(cuts)):
                has_some = any(a and not b for a, b in zip(after[at], after[to], strict=True))
                assert not has_some or group.may_have(low, cuts[to])
            assert not any(after[at]) or group.may_have(low, None)
    for group, rows in zip(file.groups, tables, strict=True):
        assert rows.filter(keys_at_least(rows, group.low, ordered)).num_rows == group.rows


def test_row_groups_that_cannot_have_a_key_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = CollectionSchema.new(
        pa.schema([("k", pa.int64()), ("j", pa.string())]), kind="upsert", key=("k", "j")
    )
    table = pa.table({"k": [1, 1, 1, 1, 1, 1, 2, 2, 3], "j": list("abcdefghi")})
    file, _ = grouped(table, schema, monkeypatch)
    bounds = [(group.low, group.high) for group in file.groups]
    assert bounds == [((1, b"a"), (1, b"c")), ((1, b"d"), (1, b"f")), ((2,), (3,))]
    assert [group.may_have((1, b"d"), (2,)) for group in file.groups] == [False, True, False]
    assert [group.may_have((1,), (1, b"d")) for group in file.groups] == [True, False, False]
    assert [group.may_have((), None) for group in file.groups] == [True] * 3


def test_some_columns_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    schema = CollectionSchema.new(columns, kind="upsert", key=("k",))
    table = pa.table({"k": [1, 2], "a": ["x", "y"], "b": ["p", "q"]})
    file, data = grouped(table, schema, monkeypatch)
    some = CollectionSchema.new(columns.remove(1), kind="upsert", key=("k",))
    rows = decoded(file, file.groups[0], data, some)
    assert rows.schema.equals(some.stored)
    assert rows.column("b").to_pylist() == ["p", "q"]


def test_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = CollectionSchema.new(pa.schema([("k", pa.int64())]), kind="diff", key=())
    file, data = grouped(pa.table({"k": [1, 2, 3, 4]}), schema, monkeypatch)
    group = file.groups[0]
    part = data[group.start : group.limit]
    whole = file.decode(group, part, schema)
    noticed = 0
    for at in range(len(part)):
        damaged = part[:at] + bytes([part[at] ^ 0x55]) + part[at + 1 :]
        try:
            assert file.decode(group, damaged, schema).equals(whole), "in what no reader uses"
        except CorruptionError:
            noticed += 1
    assert noticed > 100
    with pytest.raises(CorruptionError, match="is cut"):
        file.decode(group, part[:-1], schema)
