"""What Parquet files say of themselves, in footers and in headers of pages, as checked values; and how much
memory they may take. Pure.

Read here rather than by Arrow, whose Python functions for footers end the process when a footer contradicts
itself, and which keeps the headers of pages to itself. Only what readers of fragments need is looked at:
names, places, lengths, statistics of numbers. Everything raises CorruptionError that is not as the format
says; every count is bounded by the bytes that it is counted in.

A thousand bytes of Parquet can become gigabytes: pages that compress well, one long value that a dictionary
repeats, a row group that is named many times. What a footer says of sizes is only a claim. So the headers of
all pages to be read are added up before anything is decoded: a reader makes the memory that they ask for, and
no more.

  * A page never becomes longer than its header says, or the reader refuses it.
  * Values that are stored whole take no more than their pages. Those that refer to others, by a dictionary
    or by a common beginning, take at most as much as the longest of those, each.
  * No byte of the file is read twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from walstore.errors import CorruptionError, FormatVersionError

END_BYTES: Final = 8
"""The last bytes of a file: the length of its footer, and a magic."""
MOST_FOOTER_BYTES: Final = 4 << 20
"""Longest footer that is read; that of a fragment of 512 MiB has less than a quarter of it."""
BYTE_ARRAY: Final = 6
"""The stored type of values of any length."""

_MAGIC: Final = b"PAR1"
_SHORTAGES: Final = ("not enough memory", "Resource temporarily unavailable")
"""What codecs and the system say that Arrow reports as if the file could not be read."""
_INT64: Final = 2
_REQUIRED: Final = 0
_CODECS: Final = ("", "snappy", "gzip", "lzo", "brotli", "lz4_raw", "zstd", "lz4_raw")
_MOST_DEPTH: Final = 12
_HEADER_BYTES: Final = 512
"""So much is looked at for the header of a page; more if it is longer."""
_MALFORMED: Final = (KeyError, IndexError, ValueError, TypeError, AttributeError)


class Leaf(NamedTuple):
    """A column as it is stored."""

    name: str
    """Name of the column of the table that it is, or is a part of."""
    is_whole: bool
    """Whether it is all of that column."""
    kind: int
    """Stored type, as the format numbers them."""
    is_required: bool
    """Whether it has a value in each row, and no null."""


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """What the footer says of the values of a chunk, as bytes."""

    least: bytes
    """No value is less."""
    most: bytes
    """No value is greater."""
    are_exact: bool
    """Whether both are values; else they may be cut."""
    nulls: int | None
    """None if it does not say."""


class Chunk(NamedTuple):
    """The part of a column that is in one row group."""

    leaf: Leaf
    codec: str
    """Name of the compression; empty for none."""
    values: int
    start: int
    """Where its first page begins."""
    limit: int
    """Where its last page ends."""
    bounds: tuple[int, int] | None
    """Least and greatest number; None if it does not say, or has no unsigned numbers."""
    statistics: ChunkStatistics | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """A footer."""

    rows: int
    leaves: tuple[Leaf, ...]
    groups: tuple[tuple[Chunk, ...], ...]
    """Row groups, each with a chunk for each leaf."""
    entries: dict[bytes, bytes]
    """What writers noted."""


class PageKind(IntEnum):
    """Kinds of pages, as the format numbers them."""

    DATA = 0
    INDEX = 1
    DICTIONARY = 2
    DATA_V2 = 3


_DATA_KINDS: Final = (PageKind.DATA, PageKind.DATA_V2)
_PAGE_KINDS: Final = {int(kind): kind for kind in PageKind}
_OWN_FIELDS: Final = (5, 6, 7, 8)
"""Where the header of a page of each kind has what only that kind has."""


class Page(NamedTuple):
    """A page by its header."""

    kind: PageKind
    start: int
    """Where what is stored of it begins."""
    limit: int
    """Where that ends."""
    decoded_bytes: int
    """How long it is once it is decompressed."""
    values: int
    encoding: int


def footer_bytes(end: bytes, *, path: str) -> int:
    """Return how long the footer is, from the last 8 bytes of a file; CorruptionError if there is none."""
    if len(end) < END_BYTES or end[-4:] != _MAGIC:
        raise CorruptionError("not a Parquet file (no magic at its end)", path=path)
    length = END_BYTES + int.from_bytes(end[-8:-4], "little")
    if length > MOST_FOOTER_BYTES:
        raise CorruptionError(
            "not a Parquet file (its footer is too long)",
            path=path,
            expected=MOST_FOOTER_BYTES,
            found=length,
        )
    return length


def read_metadata(end: bytes | bytearray, size_bytes: int, *, path: str) -> Metadata:
    """Return the footer of a file of so many bytes, of which ``end`` is the last part."""
    length = footer_bytes(bytes(end[-END_BYTES:]), path=path)
    if length > len(end):
        raise CorruptionError("not a Parquet file (its footer is cut)", path=path)
    try:
        fields, _ = _struct(bytes(end[len(end) - length : len(end) - END_BYTES]), 0)
        leaves = tuple(_leaves(fields[2]))
        groups = tuple(_group(group, leaves, size_bytes) for group in fields.get(4, ()))
        entries = {pair[1]: pair.get(2, b"") for pair in fields.get(5, ())}
        rows = _count(fields[3])
    except _MALFORMED as error:
        raise CorruptionError(f"not a Parquet file ({error!r:.80})", path=path) from error
    return Metadata(rows, leaves, groups, entries)


def pages(chunk: Chunk, data: bytes | bytearray, *, path: str) -> Iterator[Page]:
    """Yield the pages of a chunk as every reader finds them: one behind the other, up to its last value."""
    at, left = chunk.start, chunk.values
    while at < chunk.limit and left > 0:
        try:
            page = _page(data, at, chunk.limit)
        except _MALFORMED as error:
            raise CorruptionError("a page has no header", path=path, position=at) from error
        if page.kind in _DATA_KINDS:
            left -= page.values
        yield page
        at = page.limit


def _leaves(schema: list[dict[int, Any]]) -> Iterator[Leaf]:
    """Yield the leaves of a schema, which is a tree in the order of a walk through it."""
    # How many children of each level are still to come, the root's first.
    left = [_count(schema[0].get(5, 0))]
    name = b""
    for element in schema[1:]:
        while not left[-1]:
            left.pop()
        left[-1] -= 1
        is_top, children = len(left) == 1, _count(element.get(5, 0))
        if is_top:
            name = element[4]
        if children:
            left.append(children)
            if len(left) > 64:
                raise ValueError("columns in columns")
        else:
            yield Leaf(name.decode(), is_top, element[1], is_top and element[3] == _REQUIRED)
    if any(left):
        raise ValueError("the schema ends too early")


def _group(group: dict[int, Any], leaves: tuple[Leaf, ...], size_bytes: int) -> tuple[Chunk, ...]:
    return tuple(
        _chunk(column[3], leaf, size_bytes)
        for column, leaf in zip(group[1], leaves, strict=True)
        if _is_plain(column)
    )


def _is_plain(column: dict[int, Any]) -> bool:
    """Return True; ValueError for a column that is encrypted."""
    if 8 in column or 9 in column:
        raise ValueError("encrypted")
    return True


def _chunk(meta: dict[int, Any], leaf: Leaf, size_bytes: int) -> Chunk:
    start, first = _count(meta[9]), meta.get(11, 0)
    if 0 < first < start:
        start = first
    limit = start + _count(meta[7])
    if limit > size_bytes:
        raise ValueError("a column is outside of the file")
    found = meta.get(12) or {}
    bounds = _bounds(found) if leaf.kind == _INT64 else None
    codec, values = _CODECS[_count(meta[4])], _count(meta[5])
    return Chunk(leaf, codec, values, start, limit, bounds, _statistics(found))


def _statistics(found: dict[int, Any]) -> ChunkStatistics | None:
    least, most, nulls = found.get(6), found.get(5), found.get(3)
    if not isinstance(least, bytes) or not isinstance(most, bytes):
        return None
    are_exact = found.get(7) is not False and found.get(8) is not False
    return ChunkStatistics(least, most, are_exact, nulls if isinstance(nulls, int) else None)


def _bounds(statistics: dict[int, Any]) -> tuple[int, int] | None:
    low, high = statistics.get(6), statistics.get(5)
    if low is None or high is None or len(low) != 8 or len(high) != 8:
        return None
    return int.from_bytes(low, "little"), int.from_bytes(high, "little")


def _page(data: bytes | bytearray, at: int, limit: int) -> Page:
    fields, length = _header(data, at, limit)
    kind = _PAGE_KINDS[fields[1]]
    own = fields[_OWN_FIELDS[kind]]
    start = at + length
    end = start + _count(fields[3])
    if end > limit:
        raise ValueError("a page ends outside of its column")
    encoding = own.get(4 if kind is PageKind.DATA_V2 else 2, 0)
    return Page(kind, start, end, _count(fields[2]), _count(own.get(1, 0)), encoding)


def _header(data: bytes | bytearray, at: int, limit: int) -> tuple[dict[int, Any], int]:
    """Return the struct at the beginning of a part of the data, and its length."""
    size = _HEADER_BYTES
    while at + size < limit:
        try:
            return _struct(bytes(data[at : at + size]), 0)
        except IndexError:
            size *= 8
    return _struct(bytes(data[at:limit]), 0)


def _count(number: int) -> int:
    if number < 0:
        raise ValueError("less than none")
    return number


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct in Thrift's compact form by their numbers, and where it ends.

    IndexError if the data ends too early, ValueError where it is no struct. Written for speed: a footer has
    hundreds of fields.
    """
    if depth > _MOST_DEPTH:
        raise ValueError("too deep")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if not head:
            return fields, at
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if 4 <= kind <= 6:
            found = data[at]
            at += 1
            if found > 127:
                found, at = _varint(data, at - 1)
            fields[number] = (found >> 1) ^ -(found & 1)
        elif kind == 8:
            fields[number], at = _text(data, at)
        elif kind == 12:
            fields[number], at = _struct(data, at, depth + 1)
        elif kind == 9:
            fields[number], at = _list(data, at, depth + 1)
        elif kind in {1, 2}:
            fields[number] = kind == 1
        else:
            fields[number], at = _rare(kind, data, at)


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > _MOST_DEPTH:
        raise ValueError("too deep")
    head = data[at]
    at += 1
    count, kind = head >> 4, head & 15
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:
        raise IndexError
    items: list[Any] = []
    for _ in range(count):
        item: Any
        if kind == 12:
            item, at = _struct(data, at, depth + 1)
        elif 4 <= kind <= 6:
            item, at = _integer(data, at)
        elif kind == 8:
            item, at = _text(data, at)
        elif kind == 9:
            item, at = _list(data, at, depth + 1)
        elif kind in {1, 2}:  # in a list each has a byte of its own
            item, at = data[at] == 1, at + 1
        else:
            item, at = _rare(kind, data, at)
        items.append(item)
    return items, at


def _rare(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    """Return a byte, or the bytes of a float, and where it ends."""
    if kind == 3:
        return data[at], at + 1
    if kind == 7:
        return _bytes(data, at, 8)
    raise ValueError("a field of a kind that Parquet has not")


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    count = data[at]
    at += 1
    if count > 127:
        count, at = _varint(data, at - 1)
    return _bytes(data, at, count)


def _bytes(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    limit = at + count
    if limit > len(data):
        raise IndexError
    return data[at:limit], limit


def _integer(data: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(data, at)
    return (found >> 1) ^ -(found & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7
        if shift > 63:
            raise ValueError("too long a number")


FREE_BYTES: Final = 256 << 20
"""Any file may take so much memory."""
BYTES_PER_BYTE: Final = 16 << 10
"""A longer one takes so much for each of its bytes: about what a writer makes of zeros."""
MOST_BYTES: Final = 4 << 30
"""But no more than this, or four times its length. Writers are set to fragments of at most 512 MiB."""
VALUE_BYTES: Final = 8
"""What each value of each column takes in addition to its own bytes."""
STEP_BYTES: Final = 64 << 20
"""How much is decoded at once of a file of which only decoding shows how much it becomes."""
THREADED_BYTES: Final = 1 << 20
"""Columns that become longer are decoded on several threads."""

_REFERRING: Final = frozenset((2, 8))
"""Encodings that refer to a dictionary."""
_PREFIXES: Final = 7
"""The encoding in which values begin as the one before them does."""


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """How a file is to be decoded."""

    budget: int
    """Bytes that the decoded columns may take."""
    rows_at_once: int | None
    """None if it can be decoded at once. Else so many rows at a time, adding up what they became."""
    use_threads: bool = False
    """Whether to decode columns on several threads, which takes longer for short files."""


def plan_reading(
    metadata: Metadata, data: bytes | bytearray, columns: Collection[str], *, path: str
) -> DecodingPlan:
    """Return how the columns of a whole file can be decoded within the budget.

    CorruptionError if they would become larger than that, or share bytes.
    """
    size = len(data)
    budget = min(FREE_BYTES + BYTES_PER_BYTE * size, max(MOST_BYTES, 4 * size))
    total = _Size(certain=VALUE_BYTES * metadata.rows)
    stored = 0
    for group in metadata.groups:
        for chunk in group:
            if chunk.leaf.name in columns:
                stored += chunk.limit - chunk.start
                found = _measure(chunk, data, path)
                if not chunk.leaf.is_whole and found.possible > budget:
                    _refuse(path, budget, found.possible)  # one row may have all of it
                total.add(found)
        if stored > size:
            raise CorruptionError("the columns overlap", path=path, expected=size, found=stored)
        if total.certain > budget:
            _refuse(path, budget, total.certain)
    is_certain = total.certain + total.possible <= budget
    rows_at_once = None if is_certain else max(1, STEP_BYTES // total.longest)
    return DecodingPlan(budget, rows_at_once, total.certain > THREADED_BYTES)


def read_table(
    file: pq.ParquetFile,
    columns: list[str],
    reading: DecodingPlan,
    *,
    path: str,
    groups: Sequence[int] | None = None,
) -> pa.Table:
    """Return the columns of a file, or of some row groups, decoded as was planned.

    CorruptionError if they exceed the budget.
    """
    numbers = list(range(file.num_row_groups)) if groups is None else list(groups)
    if reading.rows_at_once is None:
        return file.read_row_groups(numbers, columns=columns, use_threads=reading.use_threads)
    found: list[pa.RecordBatch] = []
    taken = 0
    batches = file.iter_batches(
        reading.rows_at_once, row_groups=numbers, columns=columns, use_threads=False
    )
    for batch in batches:
        taken += batch.nbytes
        if taken > reading.budget:
            _refuse(path, reading.budget, taken)
        found.append(batch)
    if not found:
        return file.read_row_groups(numbers, columns=columns)
    return pa.Table.from_batches(found)


@contextlib.contextmanager
def parsing(path: str) -> Iterator[None]:
    """Translate Arrow's errors for a file that is not ours into CorruptionError.

    MemoryError is passed on: a lack of memory, or of threads, is not a fault of the file.
    """
    try:
        yield
    except (MemoryError, CorruptionError, FormatVersionError):
        raise  # Arrow's own MemoryError is one of its other exceptions, too
    except (pa.ArrowException, OSError, ValueError) as error:
        if any(shortage in str(error) for shortage in _SHORTAGES):
            raise MemoryError(f"no memory to read {path}: {error}") from error
        raise CorruptionError(f"not a readable Parquet file ({error})", path=path) from error


def _refuse(path: str, budget: int, found: int) -> NoReturn:
    raise CorruptionError(
        f"a file would take more memory than {budget} bytes",
        path=path,
        expected=budget,
        found=found,
    )


@dataclass(slots=True)
class _Size:
    """What columns become."""

    certain: int = 0
    """So many bytes, or a little less."""
    possible: int = 0
    """At most so many more, for values that refer to others."""
    longest: int = 1
    """At most so many bytes for one value that refers to others."""

    def add(self, other: _Size) -> None:
        """Take what another column becomes into account."""
        self.certain += other.certain
        self.possible += other.possible
        self.longest = max(self.longest, other.longest)


def _measure(chunk: Chunk, data: bytes | bytearray, path: str) -> _Size:
    # Memory is made for as many values as the footer claims before pages are read.
    size = _Size(certain=VALUE_BYTES * chunk.values)
    shortest = longest = 0
    for page in pages(chunk, data, path=path):
        size.certain += page.decoded_bytes
        if chunk.leaf.kind != BYTE_ARRAY:
            continue
        if page.kind is PageKind.DICTIONARY:
            shortest, longest = _lengths(chunk, page, data, path)
        elif page.encoding in _REFERRING:
            size.certain += shortest * page.values if chunk.leaf.is_required else 0
            size.possible += longest * page.values
            size.longest = max(size.longest, longest)
        elif page.encoding == _PREFIXES:
            size.possible += page.decoded_bytes * page.values
            size.longest = max(size.longest, page.decoded_bytes)
    return size


def _lengths(chunk: Chunk, page: Page, data: bytes | bytearray, path: str) -> tuple[int, int]:
    """Return the lengths of the shortest value of a dictionary, or less, and of the longest, or more."""
    if page.decoded_bytes > FREE_BYTES:
        _refuse(path, FREE_BYTES, page.decoded_bytes)
    if page.decoded_bytes * chunk.values <= STEP_BYTES:
        return 0, page.decoded_bytes
    stored = memoryview(data)[page.start : page.limit]
    whole: Any = stored
    if chunk.codec:
        whole = memoryview(pa.Codec(chunk.codec).decompress(stored, page.decoded_bytes))
    shortest, longest, at = page.decoded_bytes, 0, 0
    while at + 4 <= len(whole):
        length = int.from_bytes(whole[at : at + 4], "little")
        shortest, longest = min(shortest, length), max(longest, length)
        at += 4 + length
    return shortest, min(longest, page.decoded_bytes)
