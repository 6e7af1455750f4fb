"""A collection with a column of each type, and values of each, for tests of Spark."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from uploader.versioned.schema import CollectionSchema, Kind

KINDS: tuple[pa.DataType, ...] = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float32(), pa.float64(), pa.bool_(),
    pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3),
    pa.date32(), pa.date64(),
    pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, tz="Europe/Berlin") for unit in ("s", "ms", "us", "ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.decimal128(9, 2), pa.decimal128(18, 0), pa.decimal128(38, 10), pa.decimal256(30, 5),
)  # fmt: skip
"""One of each type that Spark can have, with and without parameters."""
EVERY = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *(pa.field(f"c{n}", kind) for n, kind in enumerate(KINDS)),
    ]
)


def every_schema(kind: Kind) -> CollectionSchema:
    return CollectionSchema.new(EVERY, kind=kind, key=("id",))


def value(kind: pa.DataType, rng: random.Random) -> Any:
    """Return a value of a type, often a bound of it, or None."""
    if rng.random() < 0.15:
        return None
    name = str(kind)
    if name.startswith(("int", "uint")):
        bits = int(name.lstrip("uint"))
        least, most = (
            (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        return rng.choice([least, most, 0, 1, rng.randint(least, most)])
    if name in {"float", "double"}:
        return rng.choice([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5])
    if name == "bool":
        return rng.random() < 0.5
    if "string" in name:
        return rng.choice(["", "a", "ä€😀", "x" * 40])
    if name.startswith("fixed"):
        return bytes(rng.choice([0, 127, 255]) for _ in range(kind.byte_width))
    if "binary" in name:
        return rng.choice([b"", b"\x00", b"\xff\x80", b"y" * 40])
    if name.startswith("date"):
        return rng.choice([date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)])
    if name.startswith("time") and not name.startswith("timestamp"):
        return (datetime.min + timedelta(seconds=rng.choice([0, 1, 86_399]))).time()
    if name.startswith("timestamp"):
        return datetime(1970, 1, 1) + timedelta(
            seconds=rng.choice([-86_400 * 365, 0, 1_700_000_000])
        )
    if name.startswith("duration"):
        return timedelta(seconds=rng.choice([-5, 0, 3600]))
    assert name.startswith("decimal")
    digits = 10**kind.precision - 1
    return Decimal(rng.choice([-digits, 0, 1, digits])).scaleb(-kind.scale, Context(prec=80))


def table(rows: int, rng: random.Random, columns: pa.Schema = EVERY, keys: int = 5) -> pa.Table:
    """Return rows with random keys below ``keys``, in the types of ``columns``."""
    arrays = [
        pa.array([rng.randrange(keys) for _ in range(rows)], pa.int64())
        if field.name == "id"
        else _array([value(field.type, rng) for _ in range(rows)], field.type)
        for field in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.array(values, pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)
    return pa.array(values, kind)
