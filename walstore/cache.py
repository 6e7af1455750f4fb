"""Cache: the most recent durable batches in offset order, bounded by bytes."""

from __future__ import annotations

from sortedcontainers import SortedDict

from walstore.batch import Batch, FrameBatch


class Cache:
    """Consecutive batches ending at the durable limit. Belongs to the event loop.

    Eviction removes the oldest first, so what is held is always one interval without gaps; a reader
    that falls behind it finds the rest in the segments.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._batches: SortedDict = SortedDict()  # start → FrameBatch
        self.size_bytes = 0
        self.hits = 0
        self.evictions = 0

    @property
    def start(self) -> int | None:
        """First offset held, or None if empty."""
        return self._batches.keys()[0] if self._batches else None

    def insert(self, batch: FrameBatch) -> None:
        """Add the next batch and evict the oldest ones beyond the capacity."""
        if batch.nbytes > self._capacity_bytes:
            self.clear()  # keeping older ones would leave a gap
            return
        self._batches[batch.start] = batch
        self.size_bytes += batch.nbytes
        while self.size_bytes > self._capacity_bytes:
            _, oldest = self._batches.popitem(0)
            self.size_bytes -= oldest.nbytes
            self.evictions += 1

    def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``, or nothing if it is not held."""
        at = self._batches.bisect_right(position) - 1
        if at < 0:
            return []
        found: list[Batch] = []
        size = 0
        for start in self._batches.islice(at):
            batch: FrameBatch = self._batches[start]
            if start >= limit or (found and size + batch.nbytes > max_bytes):
                break
            if batch.limit > position:
                found.append(batch.slice(max(position, start), min(limit, batch.limit)))
                size += batch.nbytes
        if found:
            self.hits += 1
        return found

    def clear(self) -> None:
        """Forget everything."""
        self.evictions += len(self._batches)
        self._batches.clear()
        self.size_bytes = 0
