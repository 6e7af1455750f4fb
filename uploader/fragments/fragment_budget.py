"""How much memory a Parquet file may take once it is decoded, added up before anything is. Pure.

A thousand bytes of Parquet can become gigabytes: pages that compress well, one long value that a dictionary
repeats, a row group that is named many times. What a footer says of sizes is only a claim. So the headers of
all pages that are to be read are looked at: a reader makes the memory that they ask for, and no more.

  * A page never becomes longer than its header says, or the reader refuses it.
  * Values that are stored whole take no more than their pages. Those that refer to others, by a dictionary
    or by a common beginning, take at most as much as the longest of those, each.
  * No byte of the file is read twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from uploader.fragments.parquet_metadata import (
    BYTE_ARRAY,
    Chunk,
    Metadata,
    Page,
    PageKind,
    pages,
)
from walstore.errors import CorruptionError

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
    return DecodingPlan(budget, None if is_certain else max(1, STEP_BYTES // total.longest))


def read_table(
    file: pq.ParquetFile, columns: list[str], reading: DecodingPlan, *, path: str
) -> pa.Table:
    """Return the columns of a file, decoded as was planned; CorruptionError if they exceed the budget."""
    if reading.rows_at_once is None:
        return file.read(columns=columns)
    found: list[pa.RecordBatch] = []
    taken = 0
    batches = file.iter_batches(reading.rows_at_once, columns=columns, use_threads=False)
    for batch in batches:
        taken += batch.nbytes
        if taken > reading.budget:
            _refuse(path, reading.budget, taken)
        found.append(batch)
    if not found:
        return file.read(columns=columns)
    return pa.Table.from_batches(found)


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
