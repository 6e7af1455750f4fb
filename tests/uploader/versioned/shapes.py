"""Collections, versions and heads for tests, made from numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from uploader.versioned.head import Consumed, Head, ReaderHold
from uploader.versioned.schema import CollectionSchema, Kind
from uploader.versioned.version import MergedBatch, Version

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
WRONG: tuple[Any, ...] = (
    None, True, False, -1, 1 << 64, 1.5, "", "x", "\ud800", [], [[]], [1], [None], {}, {"a": {}},
    [{"a": [{}]}], [[[[1]]]],
)  # fmt: skip
"""What a forged document may have in any place."""


def schema_of(kind: Kind = "upsert", columns: pa.Schema = COLUMNS) -> CollectionSchema:
    return CollectionSchema.new(columns, kind=kind, key=("id",))


def merged_key(number: int) -> str:
    return f"merged/{1:016x}/{number:032x}.parquet"


def version_key(n: int) -> str:
    return f"versions/{n:016x}-{n:032x}.json"


def merged(lower: int, upper: int, rows: int = 1, *, since: int = 0) -> MergedBatch:
    keys = (merged_key(lower),) if rows else ()
    return MergedBatch(
        lower=lower, upper=upper, since=since, rows=rows, size_bytes=rows, digest=rows,
        schema_id=0, keys=keys,
    )  # fmt: skip


def version_of(*rows: int, n: int = 1, since: int = 0) -> Version:
    """Return a version with a batch of ten times for each number of rows."""
    batches = tuple(merged(10 * at, 10 * at + 10, count) for at, count in enumerate(rows))
    return Version(n=n, since=since, batches=batches)


def head_of(*rows: int, **changes: Any) -> Head:
    if rows:
        changes = {"version": version_of(*rows), "version_key": version_key(1), **changes}
    return Head(**{"collection": "c" * 32, "schema": schema_of(), **changes})


def full_head() -> Head:
    """Return a head with something in each field."""
    return head_of(
        5, 3, serial=7, commits=("a", "b"), epoch=2, holder="host", holder_expires_us=9, since=4,
        gc_floor=1, purged=10, consumed=(Consumed(writer="w", lower=0, upper=5, digest=1),),
        readers={
            "leased": ReaderHold(handle="h", frontier=4, version=1, expires_us=3),
            "critical": ReaderHold(handle="k", frontier=8, version=None, expires_us=None, token="t"),
        },
    )  # fmt: skip


def damaged(document: Any, values: Sequence[Any] = WRONG) -> Iterator[Any]:
    """Yield the JSON value with each value in it replaced by each of ``values``, or left out."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield {other: kept for other, kept in document.items() if other != name}
            for changed in (*values, *damaged(value, values)):
                yield {**document, name: changed}
    elif isinstance(document, list):
        for at, value in enumerate(document):
            yield document[:at] + document[at + 1 :]
            for changed in (*values, *damaged(value, values)):
                yield [*document[:at], changed, *document[at + 1 :]]
