"""Cache: the most recent durable batches in offset order, bounded by bytes."""

from __future__ import annotations

from typing import Final

from sortedcontainers import SortedDict

from walstore.batch import Batch, FrameBatch
from walstore.budgets import CacheBudget

MOST_BATCHES: Final = 1024
"""Read at once, so that very small batches do not hold up the event loop."""


class Cache:
    """Consecutive batches ending at the durable limit. Belongs to the event loop.

    Eviction removes the oldest first, so what is held is always one interval without gaps; a reader
    that falls behind it finds the rest in the segments.
    """

    __slots__ = ("_batches", "_budget", "_capacity_bytes", "evictions", "hits", "size_bytes")

    def __init__(self, capacity_bytes: int, budget: CacheBudget | None = None) -> None:
        """Hold up to ``capacity_bytes``, and no more than ``budget`` allows all logs together."""
        self._capacity_bytes = capacity_bytes
        self._budget = budget
        # start → FrameBatch. Made when there is one: an empty one takes 2 KiB.
        self._batches: SortedDict | None = None
        self.size_bytes = 0
        self.hits = 0
        self.evictions = 0

    @property
    def start(self) -> int | None:
        """First offset held, or None if empty."""
        return self._batches.keys()[0] if self._batches else None

    def insert(self, batch: FrameBatch) -> None:
        """Add the next batch and evict the oldest ones beyond the capacity."""
        if not len(batch):
            return  # it carries marks only, and the next batch begins at the same offset
        if batch.nbytes > self._capacity_bytes:
            self.clear()  # keeping older ones would leave a gap
            return
        if self._batches is None:
            self._batches = SortedDict()
        self._batches[batch.start] = batch
        self.size_bytes += batch.nbytes
        evicted = 0
        while self.size_bytes > self._capacity_bytes:
            evicted += self.evict_oldest()
        if self._budget is not None:
            self._budget.grow(self, batch.nbytes - evicted)

    def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``, or nothing if it is not held."""
        batches = self._batches
        if batches is None:
            return []
        at = batches.bisect_right(position) - 1
        if at < 0:
            return []
        found: list[Batch] = []
        size = 0
        for start in batches.islice(at):
            batch: FrameBatch = batches[start]
            if start >= limit or (found and size + batch.nbytes > max_bytes):
                break
            if len(found) == MOST_BATCHES:
                break
            if batch.limit > position:
                # A view: what readers decode is not counted here, so it must not stay here.
                found.append(batch.view(max(position, start), min(limit, batch.limit)))
                size += batch.nbytes
        if found:
            self.hits += 1
            if self._budget is not None:
                self._budget.touch(self)
        return found

    def evict_oldest(self) -> int:
        """Give up the oldest batch, of which there must be one, and return its size."""
        assert self._batches is not None
        _, oldest = self._batches.popitem(0)
        if not self._batches:
            self._batches = None
        size_bytes: int = oldest.nbytes
        self.size_bytes -= size_bytes
        self.evictions += 1
        return size_bytes

    def clear(self) -> None:
        """Forget everything."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        self.evictions += len(self._batches or ())
        self._batches = None
        if self._budget is not None:
            self._budget.shrink(self, size_bytes)
