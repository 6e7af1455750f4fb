"""Row groups of a batch's file: which keys and times are in each, and their updates. Pure.

A reader of some keys needs the end of a file and the bytes of a few row groups. What the statistics say only
chooses what is read: bounds may be wider than the values, or missing, and no row is taken for in or out of
them without being compared.

A key is a tuple of numbers and bytes, one for each of the first columns of the order; columns of other types
end it. Its order is that of Arrow. Nulls come after all values.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from uploader.fragments.parquet_metadata import (
    Chunk,
    Metadata,
    parsing,
    plan_reading,
    read_metadata,
    read_table,
)
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.schema import HASH, TIME, CollectionSchema, parquet_type
from walstore.errors import CorruptionError

Key: TypeAlias = tuple[int | bytes, ...]
"""A value for each of the first columns of the order; fewer for a place before all that begin so."""

_DECIMAL_KINDS: Final = {1: "little", 2: "little", 6: "big", 7: "big"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group of a batch's file."""

    number: int
    rows: int
    start: int
    """Where its bytes begin in the file."""
    limit: int
    low: Key
    """No row's key is less; empty if that is not known."""
    high: Key
    """No row's key begins with more; empty if that is not known."""
    times: tuple[int, int] | None
    """The least and the greatest time; None if it does not say."""

    def may_have(self, low: Key, high: Key | None) -> bool:
        """Return whether there may be a row whose key is in ``[low, high)``; None for no end."""
        shared = min(len(self.high), len(low))
        if self.high[:shared] < low[:shared]:
            return False
        if high is None or not self.low:
            return True
        shared = min(len(self.low), len(high))
        is_beyond = self.low[:shared] > high[:shared]
        return not is_beyond and not (len(high) <= len(self.low) and self.low[:shared] == high)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedFile:
    """A batch's file by its footer."""

    path: str
    size_bytes: int
    footer: BatchFooter
    groups: tuple[RowGroup, ...]
    end: bytes = field(repr=False)
    """Its last bytes, at least the footer."""
    metadata: Metadata = field(repr=False)

    @classmethod
    def read(
        cls, end: bytes, *, size_bytes: int, schema: CollectionSchema, path: str
    ) -> GroupedFile:
        """Read the last bytes of a file of that length; CorruptionError, FormatVersionError."""
        footer = batch_file.read_footer(end, size_bytes=size_bytes, path=path)
        metadata = read_metadata(end, size_bytes, path=path)
        columns = key_columns(schema)
        groups = tuple(
            _group(number, chunks, columns, path) for number, chunks in enumerate(metadata.groups)
        )
        if sum(group.rows for group in groups) != footer.rows:
            raise CorruptionError("the row groups are not all of the batch", path=path)
        return cls(
            path=path,
            size_bytes=size_bytes,
            footer=footer,
            groups=groups,
            end=end,
            metadata=metadata,
        )

    def decode(self, group: RowGroup, data: bytes, schema: CollectionSchema) -> pa.Table:
        """Return the updates of a row group from its bytes, in the columns of ``schema``.

        Of an ``upsert`` collection ``schema`` may have fewer columns than the file, and the hashes are left
        out: they are 0. CorruptionError for damage; only whole batches have a digest to check.
        """
        has_hashes = schema.kind == "diff"
        wanted = {*schema.stored.names} - ({HASH} if not has_hashes else set())
        chunks = self.metadata.groups[group.number]
        names = [chunk.leaf.name for chunk in chunks if chunk.leaf.name in wanted]
        if len(data) != group.limit - group.start:
            raise CorruptionError("a row group is cut", path=self.path, found=len(data))
        with parsing(self.path):
            moved = tuple(
                chunk._replace(start=chunk.start - group.start, limit=chunk.limit - group.start)
                for chunk in chunks
            )
            alone = Metadata(group.rows, self.metadata.leaves, (moved,), {})
            reading = plan_reading(alone, data, names, path=self.path)
            file = pq.ParquetFile(self._spread(group, data), page_checksum_verification=True)
            table = read_table(file, names, reading, path=self.path, groups=[group.number])
            table.validate(full=True)
        if table.num_rows != group.rows:
            raise CorruptionError("updates are missing in a row group", path=self.path)
        table = table.replace_schema_metadata(None)
        if not has_hashes:
            nothing = pa.repeat(pa.scalar(0, pa.uint64()), table.num_rows)
            table = table.append_column(schema.stored.field(HASH), nothing)
        return updates.upgrade(table, schema, path=self.path)

    def _spread(self, group: RowGroup, data: bytes) -> pa.BufferReader:
        """Return the file with nothing but this row group and the footer; the rest takes no memory."""
        whole = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole[group.start : group.limit] = data
        whole[self.size_bytes - len(self.end) : self.size_bytes] = self.end
        return pa.BufferReader(pa.py_buffer(whole))


def key_columns(schema: CollectionSchema) -> list[pa.Field]:
    """Return the first columns of the order, as far as their values are ordered in Parquet as in Arrow."""
    found = []
    for name in schema.order:
        column = schema.columns.field(name)
        if not _is_ordered(column.type):
            break
        found.append(column)
    return found


def keys_at_least(table: pa.Table, key: Key, columns: Sequence[pa.Field]) -> pa.ChunkedArray:
    """Return for each row whether its key, as far as ``key`` goes, is that or a greater one; null is."""
    found = None
    for column, value in reversed(list(zip(columns, key, strict=False))):
        values = table.column(column.name)
        if _is_bytes(column.type):
            values = values.cast(pa.large_binary())
        bound = _scalar(value, column.type)
        greater = pc.fill_null(pc.greater(values, bound), fill_value=True)
        if found is None:
            found = pc.fill_null(pc.greater_equal(values, bound), fill_value=True)
        else:
            equal = pc.fill_null(pc.equal(values, bound), fill_value=False)
            found = pc.or_(greater, pc.and_(equal, found))
    if found is None:
        return pa.chunked_array([pa.repeat(pa.scalar(value=True), table.num_rows)])
    return found


def _group(
    number: int, chunks: tuple[Chunk, ...], columns: Sequence[pa.Field], path: str
) -> RowGroup:
    by_name = {chunk.leaf.name: chunk for chunk in chunks}
    if not chunks or len({chunk.values for chunk in chunks}) > 1 or len(by_name) < len(chunks):
        raise CorruptionError("a row group does not have the columns of a batch", path=path)
    low, high = _bounds(by_name, columns)
    return RowGroup(
        number=number,
        rows=chunks[0].values,
        start=min(chunk.start for chunk in chunks),
        limit=max(chunk.limit for chunk in chunks),
        low=low,
        high=high,
        times=by_name[TIME].bounds if TIME in by_name else None,
    )


def _bounds(chunks: dict[str, Chunk], columns: Sequence[pa.Field]) -> tuple[Key, Key]:
    """Return the least and the greatest key. Beyond a column with several values nothing is known."""
    low: list[int | bytes] = []
    high: list[int | bytes] = []
    for column in columns:
        chunk = chunks.get(column.name)
        if chunk is None or chunk.statistics is None:
            break
        found = chunk.statistics
        least = _value(found.least, chunk.leaf.kind, column.type)
        most = _value(found.most, chunk.leaf.kind, column.type)
        if least is None or most is None or type(least) is not type(most) or least > most:  # type: ignore[operator]
            break
        has_no_nulls = chunk.leaf.is_required or found.nulls == 0
        low.append(least)
        if not has_no_nulls:
            break
        high.append(most)
        if least != most or not found.are_exact:
            break
    return tuple(low), tuple(high)


def _value(data: bytes, kind: int, column: pa.DataType) -> int | bytes | None:
    """Return the value in a statistic of a stored type, as the column has it; None if it is no such value."""
    if _is_bytes(column):
        return data if kind in {6, 7} else None
    if kinds.is_decimal(column):
        order = _DECIMAL_KINDS.get(kind)
        fits = order == "big" or (order == "little" and len(data) == 4 * kind)
        return int.from_bytes(data, order, signed=True) if order and data and fits else None  # type: ignore[arg-type]
    if kinds.is_boolean(column):
        return data[0] if kind == 0 and len(data) == 1 and data[0] < 2 else None
    if kind not in {1, 2} or len(data) != 4 * kind:
        return None
    signed = not kinds.is_unsigned_integer(column)
    return int.from_bytes(data, "little", signed=signed)


def _is_bytes(column: pa.DataType) -> bool:
    return bool(
        kinds.is_string(column)
        or kinds.is_large_string(column)
        or kinds.is_binary(column)
        or kinds.is_large_binary(column)
        or kinds.is_fixed_size_binary(column)
    )


def _is_ordered(column: pa.DataType) -> bool:
    """Return whether statistics of a column bound it: floats have NaN, and some are stored otherwise."""
    return not kinds.is_floating(column) and parquet_type(column).equals(column)


def _scalar(value: int | bytes, column: pa.DataType) -> pa.Scalar:
    if _is_bytes(column):
        return pa.scalar(value, pa.large_binary())
    if kinds.is_decimal(column):
        assert isinstance(value, int)
        digits = tuple(int(digit) for digit in str(abs(value)))
        return pa.scalar(Decimal((int(value < 0), digits, -column.scale)), column)
    if kinds.is_boolean(column):
        return pa.scalar(bool(value))
    return pa.scalar(value, column)
