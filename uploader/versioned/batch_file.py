"""Batches as Parquet files: a stored table, and a footer entry that says which batch it is. Pure.

Pages have a CRC-32, and the whole table has a digest, so damage shows. What a reader takes in memory is
bounded by the length of the file, as for fragments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from uploader.format.document import Fields, read_document, serialise
from uploader.format.layout import MAX_U64
from uploader.fragments import parquet_metadata
from uploader.fragments.parquet_metadata import (
    END_BYTES,
    DecodingPlan,
    Metadata,
    parsing,
    plan_reading,
    read_metadata,
    read_table,
)
from uploader.versioned import updates
from uploader.versioned.schema import HASH, TIME, CollectionSchema
from walstore.errors import CorruptionError, FormatVersionError

FOOTER_KEY: Final = b"walstore.batch"
FORMAT: Final = 1
ROW_GROUP_ROWS: Final = 128 * 1024
"""A row group has at most so many updates, so that a part of a batch can be read by its statistics."""
TAIL_BYTES: Final = 64 << 10
"""So much of a file's end is read for its footer; more if that is not enough."""
_MOST_ENTRY_BYTES: Final = 4096
_SHORT_BYTES: Final = 16 << 10
"""Of a column that is no longer, zstd and a dictionary take more time than they are worth."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFooter:
    """What a file says of its batch."""

    collection: str
    """Id of the collection."""
    writer: str | None
    """The shard of a pending batch; None for a merged one."""
    lower: int
    upper: int
    since: int
    """Times up to it were advanced to it; 0 for a pending batch."""
    rows: int
    """Updates in the file."""
    digest: int
    """Their digest; see ``updates.digest``."""
    schema_id: int


def encode(table: pa.Table, footer: BatchFooter, *, schema: CollectionSchema) -> bytes:
    """Return a stored table as a file. Equal arguments give equal bytes with the same pyarrow."""
    names = schema.stored.names
    short = {name for name in names if table.column(name).nbytes <= _SHORT_BYTES}
    referring = [
        name
        for name in names
        if name != HASH and name not in short and _repeats(table.column(name))
    ]
    deltas = {
        field.name: "DELTA_BINARY_PACKED"
        for field in schema.stored
        if field.name not in (HASH, *referring) and _is_whole(field.type)
    }
    codecs = {name: "snappy" if name in short else "zstd" for name in names}
    codecs[HASH] = "none"  # hashes do not become shorter
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema.stored,
        compression=codecs,
        compression_level={name: 1 for name, codec in codecs.items() if codec == "zstd"},
        use_dictionary=referring,
        column_encoding=deltas,
        write_statistics=[
            name
            for name in (*schema.order, TIME)
            if name not in short or table.num_rows > ROW_GROUP_ROWS
        ],
        write_page_checksum=True,
    ) as file:
        file.write_table(table, ROW_GROUP_ROWS)
        entry = serialise({"format": FORMAT, **asdict(footer)})
        file.add_key_value_metadata({FOOTER_KEY: entry.decode()})
    return bytes(sink.getvalue().to_pybytes())


def _repeats(column: pa.ChunkedArray) -> bool:
    """Return whether most values of a row group occur in it several times.

    Else a dictionary takes most of the time of writing and of reading, and is longer than the values.
    """
    middle = max(len(column) - ROW_GROUP_ROWS, 0) // 2
    values = column.slice(middle, ROW_GROUP_ROWS)
    return bool(2 * pc.count_distinct(values, mode="all").as_py() <= len(values))


def _is_whole(kind: pa.DataType) -> bool:
    """Return whether Parquet stores the values as whole numbers of 32 or 64 bits."""
    return bool(kinds.is_integer(kind) or kinds.is_temporal(kind))


def footer_bytes(end: bytes, *, path: str) -> int:
    """Return how many bytes of the file's end :func:`read_footer` needs; CorruptionError if it is none."""
    return parquet_metadata.footer_bytes(end[-END_BYTES:], path=path)


async def read_end(
    read: Callable[[int, int], Awaitable[bytes]],
    size_bytes: int,
    *,
    path: str,
    tail_bytes: int = TAIL_BYTES,
) -> bytes:
    """Return the end of a file of that length with all that :func:`read_footer` needs; CorruptionError.

    ``read`` returns the bytes of a range. It is called once, unless the footer is longer than ``tail_bytes``.
    """
    end = await read(max(size_bytes - tail_bytes, 0), size_bytes)
    needed = footer_bytes(end, path=path)
    if needed > size_bytes:
        raise CorruptionError("the footer is longer than the file", path=path, found=needed)
    return end if needed <= len(end) else await read(size_bytes - needed, size_bytes)


def read_footer(end: bytes, *, size_bytes: int, path: str) -> BatchFooter:
    """Return the footer from the last bytes of a file of that length; CorruptionError, FormatVersionError."""
    return _footer_of(read_metadata(end, size_bytes, path=path), path)


def _footer_of(metadata: Metadata, path: str) -> BatchFooter:
    entry = metadata.entries.get(FOOTER_KEY)
    if entry is None:
        raise CorruptionError("the file does not say which batch it is", path=path)
    footer = read_document(entry, _footer(path), path=path, most_bytes=_MOST_ENTRY_BYTES)
    if footer.rows != metadata.rows:
        raise CorruptionError(
            "the file has another number of updates than it says",
            path=path,
            expected=footer.rows,
            found=metadata.rows,
        )
    return footer


def decode(data: bytes, *, path: str) -> tuple[BatchFooter, pa.Table]:
    """Return what :func:`encode` was given, in the schema of the file; CorruptionError if it is damaged."""
    file = _CheckedFile.of(data, path)
    table = file.read()
    _check(table, file.footer, path)
    return file.footer, table


def decode_all(
    files: Sequence[tuple[bytes, str]],
) -> list[tuple[BatchFooter, pa.Table] | CorruptionError]:
    """Return what :func:`decode` returns for each file and its path, or raises: CorruptionError.

    For short files each step is done for all of them before the next one, and most checks at once: that takes
    far less time.
    """
    checked = [_attempt(_CheckedFile.of, data, path) for data, path in files]
    found: list[tuple[BatchFooter, pa.Table] | CorruptionError] = []
    for file in checked:
        table = file if isinstance(file, CorruptionError) else _attempt(file.read)
        if isinstance(file, CorruptionError) or isinstance(table, CorruptionError):
            found.append(table)
        else:
            found.append((file.footer, table))
    if len(found) > 1 and _are_whole([one for one in found if isinstance(one, tuple)]):
        return found
    for number, (one, (_, path)) in enumerate(zip(found, files, strict=True)):
        if not isinstance(one, CorruptionError):
            error = _attempt(_check, one[1], one[0], path)
            found[number] = error or one
    return found


def _attempt(call: Callable[..., _T], *given: Any) -> _T | CorruptionError:
    try:
        return call(*given)
    except CorruptionError as error:
        return error


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A file whose footer and headers were checked."""

    data: bytes
    path: str
    footer: BatchFooter
    names: list[str]
    reading: DecodingPlan

    @classmethod
    def of(cls, data: bytes, path: str) -> _CheckedFile:
        metadata = read_metadata(data, len(data), path=path)
        names = list(dict.fromkeys(leaf.name for leaf in metadata.leaves))
        reading = plan_reading(metadata, data, names, path=path)
        return cls(data, path, _footer_of(metadata, path), names, reading)

    def read(self) -> pa.Table:
        """Return the table, before it is compared with the footer."""
        with parsing(self.path):
            file = pq.ParquetFile(pa.BufferReader(self.data), page_checksum_verification=True)
            table = read_table(file, self.names, self.reading, path=self.path)
        return table.replace_schema_metadata(None)


def _footer(path: str) -> Callable[[Fields], BatchFooter]:
    def build(fields: Fields) -> BatchFooter:
        found = fields.number("format")
        if found > FORMAT:
            raise FormatVersionError(
                "a batch of a newer version", path=path, found=found, supported=FORMAT
            )
        footer = BatchFooter(
            collection=fields.text("collection"),
            writer=fields.text("writer") if fields.has("writer") else None,
            lower=fields.number("lower"),
            upper=fields.number("upper"),
            since=fields.number("since"),
            rows=fields.number("rows"),
            digest=fields.number("digest"),
            schema_id=fields.number("schema_id"),
        )
        if not footer.lower < footer.upper <= MAX_U64:
            raise ValueError(f"the interval [{footer.lower}, {footer.upper}) is empty")
        return footer

    return build


def _are_whole(batches: Sequence[tuple[BatchFooter, pa.Table]]) -> bool:
    """Return whether all tables have the same columns, and are what their footers say, as :func:`_check`."""
    footers = [footer for footer, _ in batches]
    tables = [table for _, table in batches]
    rows = [table.num_rows for table in tables]
    if rows != [footer.rows for footer in footers]:
        return False
    if any(not table.schema.equals(tables[0].schema) for table in tables[1:]):
        return False
    if not sum(rows):
        return False
    whole = pa.concat_tables(tables)
    try:
        _check_columns(whole, "")
    except CorruptionError:
        return False
    limits = pa.array([0, *accumulate(rows)], pa.int64())
    batch_of = pc.list_parent_indices(
        pa.LargeListArray.from_arrays(limits, pa.nulls(whole.num_rows))
    )
    least, most = (
        pa.array(bounds, pa.uint64()).take(batch_of)
        for bounds in zip(*(_times(footer) for footer in footers), strict=True)
    )
    times = whole.column(TIME)
    if pc.any(pc.or_(pc.less(times, least), pc.greater(times, most))).as_py():
        return False
    return updates.digests(whole, limits) == [footer.digest for footer in footers]


def _times(footer: BatchFooter) -> tuple[int, int]:
    """Return the least and the greatest time that an update of the batch may have."""
    return footer.lower, max(footer.upper - 1, footer.since)


def _check(table: pa.Table, footer: BatchFooter, path: str) -> None:
    _check_columns(table, path)
    if table.num_rows != footer.rows:
        raise CorruptionError(
            "updates are missing", path=path, expected=footer.rows, found=table.num_rows
        )
    if footer.rows:
        least, most = (bound.as_py() for bound in pc.min_max(table.column(TIME)).values())
        earliest, latest = _times(footer)
        if least < earliest or most > latest:
            raise CorruptionError(
                "a batch has times outside its interval", path=path, found=(least, most)
            )
    if updates.digest(table) != footer.digest:
        raise CorruptionError(
            "the updates do not have the digest of their batch",
            path=path,
            expected=footer.digest,
            found=updates.digest(table),
        )


def _check_columns(table: pa.Table, path: str) -> None:
    with parsing(path):
        table.validate(full=True)
    names = table.column_names
    own = [name for name in names if name.startswith("_")]
    if len(set(names)) < len(names) or own not in ([TIME, "_d", HASH], [TIME, "_deleted", HASH]):
        raise CorruptionError("the file does not have the columns of a batch", path=path, found=own)
    types = [table.schema.field(name).type for name in own]
    effect = pa.int64() if own[1] == "_d" else pa.bool_()
    if types != [pa.uint64(), effect, pa.uint64()] or any(
        table.column(name).null_count for name in own
    ):
        raise CorruptionError("the columns of a batch have other types, or nulls", path=path)
