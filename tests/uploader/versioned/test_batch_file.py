"""Batches as files: every type survives, damage is found, and nothing takes unbounded memory."""

from __future__ import annotations

import dataclasses
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.uploader.versioned.collections import SCHEMA
from uploader.format.document import serialise
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import FOOTER_KEY, BatchFooter
from uploader.versioned.schema import CollectionSchema, parse_type
from walstore.errors import CorruptionError, FormatVersionError

DIFF = CollectionSchema.new(SCHEMA, kind="diff", key=("k",))
UPSERT = CollectionSchema.new(SCHEMA, kind="upsert", key=("k",))
TYPES = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float", "double", "bool", "string", "large_string", "binary", "large_binary",
    "fixed_size_binary[3]", "date32[day]", "date64[ms]", "time32[s]", "time32[ms]", "time64[us]",
    "time64[ns]", *(f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")),
    "timestamp[us, tz=Europe/Berlin]", *(f"duration[{unit}]" for unit in ("s", "ms", "us", "ns")),
    "decimal128(9, 2)", "decimal256(50, 3)",
]  # fmt: skip


def made(table: pa.Table, schema: CollectionSchema, *, upper: int = 10) -> bytes:
    """Return the file of a caller's updates."""
    stored = updates.conform(table, schema, lower=0, upper=upper)
    return batch_file.encode(stored, footer_of(stored, schema, upper), schema=schema)


def footer_of(stored: pa.Table, schema: CollectionSchema, upper: int = 10) -> BatchFooter:
    return BatchFooter(
        collection="c",
        writer="w",
        lower=0,
        upper=upper,
        since=0,
        rows=stored.num_rows,
        digest=updates.digest(stored),
        schema_id=schema.id,
    )


def some(rows: int = 20) -> pa.Table:
    return pa.table({"k": list(range(rows)), "v": [f"value {row}" for row in range(rows)]})


@pytest.mark.parametrize("name", TYPES)
def test_every_type_survives(name: str) -> None:
    kind = parse_type(name)
    whole = pa.array([1, 2, None], pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        values = pa.array([b"abc", b"\x00\x01\x02", None], kind)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = pa.array([b"a", b"", None], kind)
    elif pa.types.is_date64(kind):
        values = pa.array([86_400_000, 172_800_000, None], pa.int64()).cast(kind)
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = whole.cast(pa.int32()).cast(kind)
    elif pa.types.is_decimal(kind):
        values = pa.array([Decimal("1.25"), Decimal("-2.5"), None], kind)
    else:
        values = pa.array([1000, 2000, None] if name.endswith("[ns]") else [1, 2, None]).cast(kind)
    columns = pa.schema([("id", pa.int64()), ("x", kind)])
    schema = CollectionSchema.new(columns, kind="diff", key=("id",))
    stored = updates.conform(pa.table({"id": [1, 2, 3], "x": values}), schema, lower=0, upper=10)
    data = batch_file.encode(stored, footer_of(stored, schema), schema=schema)
    footer, found = batch_file.decode(data, path="p")
    assert updates.upgrade(found, schema, path="p").equals(stored)
    assert footer == footer_of(stored, schema)
    merged = updates.consolidate(
        [stored, found.cast(schema.stored)], schema, since=0, is_oldest=True
    )
    assert merged["_d"].to_pylist() == [2, 2, 2]
    assert updates.snapshot([merged], schema, as_of=5)["x"].to_pylist() == values.to_pylist()


@pytest.mark.parametrize("schema", [DIFF, UPSERT], ids=["diff", "upsert"])
def test_the_same_updates_give_the_same_bytes(schema: CollectionSchema) -> None:
    assert made(some(), schema) == made(some(), schema)
    shuffled = some().take(random.Random(1).sample(range(20), 20))
    assert made(shuffled, schema) == made(some(), schema)


def test_a_batch_without_updates() -> None:
    footer, found = batch_file.decode(made(some(0), DIFF), path="p")
    assert (footer.rows, found.num_rows, footer.digest) == (0, 0, 0)


@pytest.mark.slow
def test_a_changed_byte_is_found_or_harmless() -> None:
    data = made(some(), DIFF)
    expected = batch_file.decode(data, path="p")
    for position in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        try:
            footer, found = batch_file.decode(bytes(damaged), path="p")
            found = updates.upgrade(found, DIFF, path="p")
        except (CorruptionError, FormatVersionError):
            continue
        kept = dataclasses.replace(
            footer, collection="c", writer="w", lower=0, upper=10, since=0, schema_id=0
        )
        assert (kept, found.to_pylist()) == (expected[0], expected[1].to_pylist()), position


def test_what_was_cut_off_is_found() -> None:
    data = made(some(), DIFF)
    for length in (*range(0, len(data), 97), len(data) - 1):
        with pytest.raises(CorruptionError):
            batch_file.decode(data[:length], path="p")
    with pytest.raises(CorruptionError):
        batch_file.decode(random.Random(3).randbytes(500), path="p")


def test_the_footer_is_read_from_the_end_alone() -> None:
    data = made(some(5000), DIFF)
    needed = batch_file.footer_bytes(data[-8:], path="p")
    assert needed < len(data)
    footer = batch_file.read_footer(data[-needed:], size_bytes=len(data), path="p")
    assert footer == batch_file.decode(data, path="p")[0]
    with pytest.raises(CorruptionError):
        batch_file.read_footer(data[-needed + 1 :], size_bytes=len(data), path="p")


def forged(table: pa.Table, entry: bytes | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as file:
        file.write_table(table)
        if entry is not None:
            file.add_key_value_metadata({FOOTER_KEY: entry.decode()})
    return sink.getvalue().to_pybytes()


def entry(**changes: object) -> bytes:
    stored = updates.conform(some(), DIFF, lower=0, upper=10)
    return serialise({"format": 1, **dataclasses.asdict(footer_of(stored, DIFF)), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 19}, {"rows": 1 << 40}, {"digest": 7}, {"digest": -1}, {"lower": 10}, {"upper": 0},
        {"upper": 1 << 65}, {"lower": 1}, {"since": True}, {"collection": 5}, {"format": "1"}, {"writer": []},
    ],
)  # fmt: skip
def test_a_forged_footer_is_found(changes: dict[str, object]) -> None:
    stored = updates.conform(some(), DIFF, lower=0, upper=10)
    assert batch_file.decode(forged(stored, entry()), path="p")[0].rows == 20
    with pytest.raises(CorruptionError):
        batch_file.decode(forged(stored, entry(**changes)), path="p")


def test_forged_columns_are_found() -> None:
    stored = updates.conform(some(), DIFF, lower=0, upper=10)
    tables = [
        stored.drop_columns(["_h"]),
        stored.drop_columns(["_t"]),
        stored.set_column(3, "_d", pa.array([1.0] * 20)),
        stored.set_column(2, "_t", pa.array([None] * 20, pa.uint64())),
        stored.append_column("_x", pa.array([1] * 20)),
        stored.append_column("k", stored["k"]),
    ]
    for table in tables:
        with pytest.raises(CorruptionError):
            batch_file.decode(forged(table, entry()), path="p")
    with pytest.raises(CorruptionError, match="which batch"):
        batch_file.decode(forged(stored, None), path="p")
    with pytest.raises(FormatVersionError):
        batch_file.decode(forged(stored, entry(format=2)), path="p")
    other = stored.set_column(1, "v", pa.array([1] * 20))
    with pytest.raises(CorruptionError):
        updates.upgrade(batch_file.decode(forged(other, entry()), path="p")[1], DIFF, path="p")


@pytest.mark.slow
def test_a_file_that_would_take_gigabytes_is_refused() -> None:
    rows, value = 1 << 17, "x" * (1 << 16)
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows), pa.array([value]))
    table = pa.table({"k": [0] * rows, "v": values})
    stored = pa.table(
        {
            **{name: table[name] for name in ("k", "v")},
            "_t": pa.array([0] * rows, pa.uint64()),
            "_d": pa.array([1] * rows, pa.int64()),
            "_h": pa.array([0] * rows, pa.uint64()),
        }
    )
    data = forged(stored, entry(rows=rows, digest=0))
    assert len(data) < 1 << 13
    with pytest.raises(CorruptionError, match="memory"):
        batch_file.decode(data, path="p")


def test_a_dictionary_is_made_only_for_columns_whose_values_repeat() -> None:
    chance = random.Random(1)
    columns = pa.schema([("k", pa.int64()), ("v", pa.string()), ("w", pa.string())])
    schema = CollectionSchema.new(columns, kind="upsert", key=("k",))
    count = 3000
    table = pa.table(
        {
            "k": list(range(count)),
            "v": [f"{chance.random()}" for _ in range(count)],
            "w": [f"place {row % 10}" for row in range(count)],
        }
    )
    data = made(table, schema)
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    encodings = {
        group.column(at).path_in_schema: set(group.column(at).encodings)
        for at in range(group.num_columns)
    }
    assert encodings["k"] == {"RLE", "DELTA_BINARY_PACKED"}
    assert encodings["v"] == encodings["_h"] == {"PLAIN", "RLE"}
    assert all("RLE_DICTIONARY" in encodings[name] for name in ("w", "_t"))
    found = batch_file.decode(data, path="x")[1]
    assert found.select(["k", "v", "w"]).equals(table)


def chunks_of(data: bytes) -> dict[str, pq.ColumnChunkMetaData]:
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    found = [group.column(at) for at in range(group.num_columns)]
    return {chunk.path_in_schema: chunk for chunk in found}


def test_short_columns_are_encoded_so_that_they_are_soon_read() -> None:
    long = pa.table({"k": list(range(100)), "v": [f"{'value' * 100} {row}" for row in range(100)]})
    codecs = {name: chunk.compression for name, chunk in chunks_of(made(long, DIFF)).items()}
    assert codecs == {
        "k": "SNAPPY", "v": "ZSTD", "_t": "SNAPPY", "_d": "SNAPPY", "_h": "UNCOMPRESSED"
    }  # fmt: skip
    same = pa.table({"k": [1] * 100, "v": ["same"] * 100, "_t": pa.array([5] * 100, pa.uint64())})
    for chunk in chunks_of(made(same, DIFF)).values():
        assert "RLE_DICTIONARY" not in chunk.encodings
        assert not chunk.has_dictionary_page


def test_files_that_are_decoded_together_are_what_they_are_alone() -> None:
    good = [made(some(rows), DIFF) for rows in (20, 0, 3, 100)]
    files = [(data, f"p{number}") for number, data in enumerate(good)]
    for (footer, table), (data, path) in zip(batch_file.decode_all(files), files, strict=True):
        alone = batch_file.decode(data, path=path)
        assert (footer, table.to_pylist()) == (alone[0], alone[1].to_pylist())
        assert table.schema.equals(alone[1].schema)
    assert batch_file.decode_all([]) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"digest": 7}, "digest"), ({"lower": 5}, "outside"), ({"rows": 21}, "updates")],
)
def test_a_damaged_file_among_others_is_told_apart(changes: dict[str, int], message: str) -> None:
    stored = updates.conform(some(), DIFF, lower=0, upper=10)
    forged_footer = dataclasses.replace(footer_of(stored, DIFF), **changes)
    damaged = batch_file.encode(stored, forged_footer, schema=DIFF)
    good = made(some(7), DIFF)
    other = made(pa.table({"k": [1], "v": ["a"]}), UPSERT)
    for beside in (good, other):
        found = batch_file.decode_all([(good, "a"), (damaged, "b"), (b"PAR1", "c"), (beside, "d")])
        errors = [str(one) for one in found if isinstance(one, CorruptionError)]
        assert [isinstance(one, CorruptionError) for one in found] == [False, True, True, False]
        assert message in errors[0]


def test_a_file_with_a_dictionary_for_each_column_is_read() -> None:
    """As files were made before dictionaries were chosen."""
    stored = updates.conform(some(3000), UPSERT, lower=0, upper=10)
    entry = serialise({"format": 1, **dataclasses.asdict(footer_of(stored, UPSERT))})
    sink = pa.BufferOutputStream()
    names = [name for name in UPSERT.stored.names if name != "_h"]
    with pq.ParquetWriter(
        sink, UPSERT.stored, compression="zstd", use_dictionary=names, write_page_checksum=True
    ) as file:
        file.write_table(stored, batch_file.ROW_GROUP_ROWS)
        file.add_key_value_metadata({FOOTER_KEY: entry.decode()})
    footer, table = batch_file.decode(sink.getvalue().to_pybytes(), path="x")
    assert footer == footer_of(stored, UPSERT)
    assert table.equals(stored)
