"""Schemas of collections: what may be a column or a key, and how they change."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.uploader.versioned.shapes import COLUMNS, damaged, schema_of
from uploader.format.document import read_document, serialise
from uploader.versioned.schema import MOST_COLUMNS, CollectionSchema, Kind, parse_type
from walstore.errors import CorruptionError, InvalidSettingsError

TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(),
    pa.large_binary(), pa.binary(5), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"),
    pa.time64("us"), pa.time64("ns"), pa.decimal128(10, 2), pa.decimal256(50, 5),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("s", "+01:30"),
]  # fmt: skip


def read(data: bytes) -> CollectionSchema:
    return read_document(data, CollectionSchema.read, path="head")


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_each_type_is_read_back(kind: pa.DataType) -> None:
    assert parse_type(str(kind)).equals(kind)
    columns = pa.schema([("key", pa.string()), pa.field("value", kind, nullable=False)])
    schema = CollectionSchema.new(columns, kind="upsert", key=["key"])
    assert read(serialise(schema.serialise())) == schema


@pytest.mark.parametrize(
    "text",
    [
        "", "int65", "halffloat", "null", "list<item: int64>", "timestamp[h]", "timestamp[s, tz=]",
        "timestamp[s, tz=a b]", "decimal128(39, 0)", "decimal128(0, 0)", "decimal256(77, 0)",
        "decimal64(5, 2)", "fixed_size_binary[-1]", "fixed_size_binary[9999999999]", "int64 ",
        "dictionary<values=string, indices=int32, ordered=0>",
    ],
)  # fmt: skip
def test_no_other_type_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_type(text)


@pytest.mark.parametrize(
    ("columns", "kind", "key"),
    [
        ([], "diff", []),
        ([("a", pa.int64())] * 2, "diff", []),
        ([("a", pa.int64())], "other", ["a"]),
        ([("a", pa.int64())], "upsert", []),
        ([("a", pa.decimal128(38, -3))], "diff", []),
        ([("a", pa.decimal128(3, 7))], "diff", []),
        ([("a", pa.binary(0))], "diff", []),
        ([("a" * (256 << 10), pa.int64())], "diff", []),
        ([("a", pa.int64())], "upsert", ["b"]),
        ([("a", pa.int64())], "upsert", ["a", "a"]),
        ([("a", pa.float64())], "upsert", ["a"]),
        ([("_a", pa.int64())], "diff", []),
        ([("", pa.int64())], "diff", []),
        ([("a\n", pa.int64())], "diff", []),
        ([("a", pa.list_(pa.int64()))], "diff", []),
        ([("a", pa.float16())], "diff", []),
        ([("a", pa.dictionary(pa.int32(), pa.string()))], "diff", []),
        ([("a", pa.timestamp("s", "not a zone"))], "diff", []),
        ([(f"c{at}", pa.int64()) for at in range(MOST_COLUMNS + 1)], "diff", []),
    ],
)
def test_a_schema_that_no_collection_can_have(columns: Any, kind: Any, key: list[str]) -> None:
    with pytest.raises(InvalidSettingsError):
        CollectionSchema.new(pa.schema(columns), kind=kind, key=key)


def test_a_schema_is_one_of_arrow() -> None:
    columns: Any = {"a": "int64"}
    with pytest.raises(TypeError, match=r"pyarrow\.Schema"):
        CollectionSchema.new(columns, kind="diff", key=[])
    with pytest.raises(TypeError, match=r"pyarrow\.Schema"):
        schema_of().evolve(columns)


def test_metadata_is_no_part_of_a_schema() -> None:
    noted = COLUMNS.with_metadata({"a": "b"})
    assert schema_of(columns=noted).columns.metadata is None
    schema = schema_of()
    assert schema.evolve(noted) is schema


def test_the_columns_of_updates_and_batches() -> None:
    upsert, diff = schema_of("upsert"), schema_of("diff")
    assert upsert.updates.names == ["id", "name", "_t", "_deleted"]
    assert diff.stored.names == ["id", "name", "_t", "_d", "_h"]
    strict = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("id", "x")])
    assert [field.nullable for field in schema_of("upsert", strict).stored][:2] == [False, True]
    assert not any(field.nullable for field in schema_of("diff", strict).stored)


def test_a_collection_without_a_key_is_ordered_by_all_columns() -> None:
    assert CollectionSchema.new(COLUMNS, kind="diff", key=[]).order == ("id", "name")
    assert CollectionSchema.new(COLUMNS, kind="diff", key=["name"]).order == ("name", "id")
    assert schema_of("upsert").order == ("id",)


WIDER = [
    (pa.int8(), pa.int64()), (pa.uint16(), pa.uint32()), (pa.float32(), pa.float64()),
    (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()),
    (pa.decimal128(5, 2), pa.decimal128(9, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WIDER, ids=str)
def test_types_become_wider_and_never_narrower(old: pa.DataType, new: pa.DataType) -> None:
    first = CollectionSchema.new(pa.schema([("id", pa.int64()), ("v", old)]), kind="diff", key=[])
    columns = pa.schema([("id", pa.int64()), ("v", new)])
    second = first.evolve(columns)
    assert (second.id, second.columns) == (1, columns)
    with pytest.raises(InvalidSettingsError, match="'v'"):
        second.evolve(first.columns)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int32(), pa.uint64()), (pa.uint8(), pa.int64()), (pa.int32(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 3)), (pa.string(), pa.binary()),
        (pa.timestamp("s"), pa.timestamp("us")), (pa.binary(4), pa.binary(8)),
    ],
    ids=str,
)  # fmt: skip
def test_other_types_are_not_wider(old: pa.DataType, new: pa.DataType) -> None:
    first = CollectionSchema.new(pa.schema([("v", old)]), kind="diff", key=[])
    with pytest.raises(InvalidSettingsError, match="'v'"):
        first.evolve(pa.schema([("v", new)]))


NAME, ID = COLUMNS.field("name"), COLUMNS.field("id")


@pytest.mark.parametrize(
    "columns",
    [
        [ID],
        [NAME, ID],
        [ID, NAME.with_name("other")],
        [ID, NAME, pa.field("new", pa.int64(), nullable=False)],
        [ID, pa.field("new", pa.int64()), NAME],
        [ID, NAME.with_nullable(nullable=False)],
        [ID.with_nullable(nullable=True), NAME],
        [ID, NAME, NAME],
        [ID, NAME, pa.field("_new", pa.int64())],
    ],
)
@pytest.mark.parametrize("kind", ["diff", "upsert"])
def test_columns_are_added_at_the_end_and_never_dropped(
    columns: list[pa.Field], kind: Kind
) -> None:
    with pytest.raises(InvalidSettingsError):
        schema_of(kind).evolve(pa.schema(columns))


def test_a_column_that_is_not_of_the_key_may_become_nullable() -> None:
    strict = CollectionSchema.new(
        pa.schema([ID, NAME.with_nullable(nullable=False)]), kind="upsert", key=["id"]
    )
    assert strict.evolve(COLUMNS).columns == COLUMNS


def test_a_forged_schema_is_corruption_or_another_schema() -> None:
    document = json.loads(serialise(schema_of().serialise()))
    for forged in damaged(document):
        try:
            found = read(json.dumps(forged).encode())
        except CorruptionError:
            continue
        assert found.checked() is found
        assert not any(isinstance(number, bool) for number in (found.id,))
