"""Parts of fragments, read by ranged requests: footers, which are cached, and some columns alone.

A footer contains the times of a fragment's records and their streams, so that a search by time, or a reader
of one stream, need not fetch what it will not read. It also contains the position of each column. To read
some columns, their ranges are put at their positions in memory that is otherwise empty, and Parquet reads
that as if it were the file: it never looks at pages of other columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Sequence,
)
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from uploader.format.entries import Fragment
from uploader.fragments.fragment import FragmentBatch, decode_columns
from uploader.fragments.fragment_file import Footer, column_ranges, read_footer
from uploader.fragments.parquet_metadata import END_BYTES, footer_bytes
from uploader.runtime.task_groups import gather_all
from walstore.core.runtime.lru_cache import LruCache
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, WalError

_FOOTER_BYTES: Final = 2 << 10
"""Memory of a footer beside the set of its streams, measured with 8000."""
CACHE_BYTES: Final = 32 << 20
"""Memory for footers that were read and may be wanted again: some fifteen thousand."""
PARALLEL: Final = 16
"""Footers that one search of a stream requests at the same time."""

_FIRST_BYTES: Final = 4 << 10
"""How much of a fragment's end is requested until a longer footer is seen; most have less than 3 KiB."""
_MOST_BYTES: Final = 64 << 10
_GRAIN_BYTES: Final = 4 << 10
_WHOLES_BYTES: Final = 4 << 20
"""Memory for fragments so short that the request for their ends fetched them whole."""
GAP_BYTES: Final = 64 << 10
"""Ranges closer than this are read as one: a request costs more than the bytes between."""

FetchRange = Callable[[Fragment, int, int], Coroutine[Any, Any, bytes]]
"""Reads the bytes ``[start, limit)`` of a fragment."""


class FragmentFooters:
    """Footers of one log's fragments. Belongs to one event loop; any number of tasks may call it."""

    def __init__(
        self,
        fetch: FetchRange,
        fetch_other: Callable[[Fragment], Awaitable[bytes]],
        worker: Worker,
    ) -> None:
        """Both fetch functions ask the store, and describe what is missing.

        ``fetch_other`` returns all of a fragment whose length differs from its entry, if its records are
        the right ones.
        """
        self._fetch = fetch
        self._fetch_other = fetch_other
        self._worker = worker
        self._cached: LruCache[str, tuple[int, Footer]] = LruCache(CACHE_BYTES)
        # Tasks that want the same footer at the same time share one request.
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._wholes: LruCache[str, tuple[Fragment, bytes]] = LruCache(_WHOLES_BYTES)
        self._guess_bytes = _FIRST_BYTES

    @property
    def cached_bytes(self) -> int:
        """Approximate memory of the cached footers."""
        return self._cached.nbytes

    async def get(self, entry: Fragment) -> Footer:
        """Return a fragment's footer; one request, or two if it is unusually long.

        A fragment whose length differs from its entry is fetched whole, and its records are hashed.
        CorruptionError if there is no footer, or if these are not the records; else the store's errors.
        """
        lock = self._fetching.setdefault(entry.path, asyncio.Lock())
        async with lock:
            cached = self._cached.get(entry.path)
            if cached is not None and cached[0] == entry.limit:
                return cached[1]
            end = await self.end(entry)
            if end is None:
                end = await self._fetch_other(entry)
                self._wholes.put(entry.path, (entry, end), len(end))
            footer = await self._worker.run(partial(read_footer, end, path=entry.path))
            self._cached.put(entry.path, (entry.limit, footer), _memory_bytes(footer))
            return footer

    async def holding(
        self,
        runs: AsyncIterable[Sequence[Fragment]],
        stream: str,
        *,
        at_once: int = 1,
        most_in_row: int | None = None,
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments that may contain records of a stream.

        Requests ``at_once`` footers at first, then more and more, up to :data:`PARALLEL`. A fragment
        whose footer cannot be read may contain any stream: reading it shows what is wrong. Ends after
        ``most_in_row`` consecutive fragments without the stream.
        """
        missed = 0
        async for run in runs:
            low = 0
            while low < len(run):
                window = run[low : low + at_once]
                answers = await gather_all(self._may_hold(entry, stream) for entry in window)
                for entry, may_hold in zip(window, answers, strict=True):
                    missed = 0 if may_hold else missed + 1
                    if may_hold:
                        yield entry
                    elif missed == most_in_row:
                        return
                low += len(window)
                at_once = min(2 * at_once, PARALLEL)

    async def end(self, entry: Fragment) -> bytes | None:
        """Return the last part of a fragment, including the whole footer; one or two requests. Not cached.

        None if the object does not have the length in its entry: its end is then unknown.
        """
        size = entry.num_bytes
        length = min(size, self._guess_bytes)
        # Request one byte more than there should be, to detect a longer object.
        end = await self._fetch(entry, size - length, size + 1)
        if len(end) != length:
            return None
        needed = footer_bytes(end[-END_BYTES:], path=entry.path)
        if needed > size:
            raise CorruptionError(
                "a fragment's footer does not fit its length", path=entry.path, expected=size
            )
        if needed > length:
            self._guess_bytes = min(_MOST_BYTES, -(-needed // _GRAIN_BYTES) * _GRAIN_BYTES)
            return await self._fetch(entry, size - needed, size)
        if length == size:
            self._wholes.put(entry.path, (entry, end), size)
        return end

    def take_whole(self, entry: Fragment) -> bytes | None:
        """Return the bytes of a fragment if the request for its end fetched all of it; once."""
        found = self._wholes.pop(entry.path)
        return found[1] if found is not None and found[0] == entry else None

    def clear(self) -> None:
        """Keep nothing."""
        self._cached.clear()
        self._wholes.clear()

    # -- inside ------------------------------------------------------------------------------

    async def _may_hold(self, entry: Fragment, stream: str) -> bool:
        try:
            return (await self.get(entry)).streams.may_hold(stream)
        except WalError:
            return True


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


def _memory_bytes(footer: Footer) -> int:
    return _FOOTER_BYTES + footer.streams.nbytes
