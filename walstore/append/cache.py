"""Cache: the most recent durable batches in offset order, bounded by what they take in memory."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Final

from walstore.append.budgets import CacheBudget
from walstore.batches.batch import Batch, FrameBatch

MOST_BATCHES: Final = 1024
"""Maximum batches read at once, so that very small ones do not block the event loop."""


class Cache:
    """Consecutive batches ending at the durable limit. Belongs to the event loop.

    Eviction removes the oldest first, so the content is always one interval without gaps; a reader that
    falls behind it reads the segments.
    """

    __slots__ = (
        "_batches",
        "_budget",
        "_capacity_bytes",
        "_gone",
        "_starts",
        "evictions",
        "hits",
        "size_bytes",
    )

    def __init__(self, capacity_bytes: int, budget: CacheBudget | None = None) -> None:
        """Hold up to ``capacity_bytes``, and at most what ``budget`` allows all logs together."""
        self._capacity_bytes = capacity_bytes
        self._budget = budget
        # Batches are added and removed in order, so two lists suffice: a sorted dict took 3 µs per commit.
        self._starts: list[int] = []
        self._batches: list[FrameBatch | None] = []
        self._gone = 0  # number of evicted entries at their beginning
        self.size_bytes = 0
        self.hits = 0
        self.evictions = 0

    @property
    def start(self) -> int | None:
        """First offset held, or None if empty."""
        return self._starts[self._gone] if self._starts else None

    def insert(self, batch: FrameBatch) -> None:
        """Add the next batch and evict the oldest ones beyond the capacity."""
        if not len(batch):
            return  # it contains only marks, and the next batch begins at the same offset
        cost = batch.cost_bytes
        if cost > self._capacity_bytes:
            self.clear()  # keeping older ones would leave a gap
            return
        self._starts.append(batch.start)
        self._batches.append(batch)
        self.size_bytes += cost
        evicted = 0
        while self.size_bytes > self._capacity_bytes:
            evicted += self.evict_oldest()
        if self._budget is not None:
            self._budget.grow(self, cost - evicted)

    def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; an empty list if it is not cached."""
        first = bisect_right(self._starts, position, self._gone) - 1
        if first < self._gone:
            return []
        found: list[Batch] = []
        size = 0
        for batch in islice(self._batches, first, first + MOST_BATCHES):
            assert batch is not None
            start, end, nbytes = batch.start, batch.limit, batch.nbytes
            if start >= limit or (found and size + nbytes > max_bytes):
                break
            if end > position:
                # A view: columns decoded by readers are not counted here, so they must not stay here.
                found.append(batch.view(max(position, start), min(limit, end)))
                size += nbytes
        if found:
            self.hits += 1
            if self._budget is not None:
                self._budget.touch(self)
        return found

    def has(self, position: int) -> bool:
        """Whether :meth:`read` returns anything."""
        first = bisect_right(self._starts, position, self._gone) - 1
        if first < self._gone:
            return False
        batch = self._batches[first]
        return batch is not None and position < batch.limit

    def evict_oldest(self) -> int:
        """Evict the oldest batch, of which there must be one, and return its size."""
        oldest = self._batches[self._gone]
        assert oldest is not None
        self._batches[self._gone] = None
        self._gone += 1
        if self._gone * 2 >= len(self._starts):  # each batch is moved at most once, on average
            del self._starts[: self._gone], self._batches[: self._gone]
            self._gone = 0
        cost = oldest.cost_bytes
        self.size_bytes -= cost
        self.evictions += 1
        return cost

    def clear(self) -> None:
        """Forget everything."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        self.evictions += len(self._starts) - self._gone
        self._starts, self._batches, self._gone = [], [], 0
        if self._budget is not None:
            self._budget.shrink(self, size_bytes)
