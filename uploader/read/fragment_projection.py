"""Some columns of a fragment, read by ranged requests without the others.

A file's footer contains the position of each column. The wanted ranges are put at their positions in
memory that is otherwise empty, and Parquet reads that as if it were the file: it never looks at pages of
other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from uploader.format.entries import Fragment
from uploader.fragments.fragment import decode_columns
from uploader.fragments.fragment_batch import FragmentBatch
from uploader.fragments.fragment_file import column_ranges
from uploader.runtime.task_groups import gather_all
from walstore.errors import CorruptionError
from walstore.runtime.threads import Worker

GAP_BYTES: Final = 64 << 10
"""Ranges closer than this are read as one: a request costs more than the bytes between."""

FetchRange = Callable[[Fragment, int, int], Coroutine[Any, Any, bytes]]
"""Reads the bytes ``[start, limit)`` of a fragment."""


async def read_columns(
    entry: Fragment,
    end: bytes,
    names: Collection[str],
    *,
    fetch: FetchRange,
    worker: Worker,
) -> FragmentBatch | None:
    """Return a fragment's records with only the columns ``names`` of ``arrow.SCHEMA``, and offsets.

    The others are null. ``end`` is the fragment's last part, including the whole footer. None if they take
    half of the object or more, so that reading it whole is better.

    CorruptionError unless the offsets are those of ``entry``, and for damage of the columns that are read.
    """
    size = entry.num_bytes
    start = size - len(end)
    wanted = await worker.run(column_ranges, end, size, names, entry.path)
    missing = merge([(low, min(high, start)) for low, high in wanted if low < start])
    if 2 * sum(high - low for low, high in missing) >= size:
        return None
    found = await gather_all(fetch(entry, low, high) for low, high in missing)
    pieces = [*zip((low for low, _ in missing), found, strict=True), (start, end)]
    for (low, high), data in zip(missing, found, strict=True):
        if len(data) != high - low:
            raise CorruptionError(
                "a fragment is shorter than its manifest says", path=entry.path, expected=size
            )
    return await worker.run(_decode, pieces, entry, names)


def merge(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that overlap or are close to each other are joined."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low - merged[-1][1] <= GAP_BYTES:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return merged


def _decode(
    pieces: Sequence[tuple[int, bytes]], entry: Fragment, names: Collection[str]
) -> FragmentBatch:
    sparse = bytearray(entry.num_bytes)  # takes no memory where nothing is written
    for low, data in pieces:
        sparse[low : low + len(data)] = data
    return decode_columns(sparse, entry, names)
