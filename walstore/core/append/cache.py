"""Cache: the frames of the most recent durable batches in offset order, bounded by what they take in memory.

A frame is one object, which Python's garbage collector does not visit, and is decoded for each reader that
takes it. As batches, 120 000 short records were 694 000 objects, and a full collection took 0.3 s.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from walstore.core.append.budgets import CacheBudget
from walstore.core.batches.batch import Batch
from walstore.core.batches.cost import FRAME_COST_BYTES
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.batches.framer import Framed
from walstore.core.format.frame import parse_header

MOST_BATCHES: Final = 1024
"""Maximum batches read at once, so that very small ones do not block the event loop."""
_NOTHING: Final = bytearray()


class Cache:
    """Consecutive frames ending at the durable limit. Belongs to the event loop.

    Eviction removes the oldest first, so the content is always one interval without gaps; a reader that
    falls behind it reads the segments.
    """

    __slots__ = (
        "_budget",
        "_capacity_bytes",
        "_frames",
        "_gone",
        "_limit",
        "_starts",
        "evictions",
        "hits",
        "size_bytes",
    )

    def __init__(self, capacity_bytes: int, budget: CacheBudget | None = None) -> None:
        """Hold up to ``capacity_bytes``, and at most what ``budget`` allows all logs together."""
        self._capacity_bytes = capacity_bytes
        self._budget = budget
        # Frames are added and removed in order, so two lists suffice: a sorted dict took 3 µs per commit.
        self._starts: list[int] = []
        self._frames: list[bytearray] = []
        self._gone = 0  # number of evicted entries at their beginning
        self._limit = 0  # offset after the last frame
        self.size_bytes = 0
        self.hits = 0
        self.evictions = 0

    @property
    def start(self) -> int | None:
        """First offset held, or None if empty."""
        return self._starts[self._gone] if self._starts else None

    def insert(self, framed: Framed) -> None:
        """Add the next frame, which has records, and evict the oldest ones beyond the capacity."""
        data = framed.plain
        cost = len(data) + FRAME_COST_BYTES
        if cost > self._capacity_bytes:
            self.clear()  # keeping older ones would leave a gap
            return
        self._starts.append(framed.start)
        self._frames.append(data)
        self._limit = framed.limit
        self.size_bytes += cost
        evicted = 0
        while self.size_bytes > self._capacity_bytes:
            evicted += self.evict_oldest()
        if self._budget is not None:
            self._budget.grow(self, cost - evicted)

    def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; an empty list if it is not cached."""
        first = bisect_right(self._starts, position, self._gone) - 1
        if first < self._gone or position >= self._limit:
            return []
        found: list[Batch] = []
        size = 0
        for at in range(first, min(first + MOST_BATCHES, len(self._starts))):
            if self._starts[at] >= limit:
                break
            frame = memoryview(self._frames[at]).toreadonly()
            header = parse_header(frame, 0)
            assert header is not None
            size += header.length
            if found and size > max_bytes:
                break
            batch = FrameBatch(frame, header)
            found.append(batch.slice(max(position, batch.start), min(limit, batch.limit)))
        if found:
            self.hits += 1
            if self._budget is not None:
                self._budget.touch(self)
        return found

    def has(self, position: int) -> bool:
        """Whether :meth:`read` returns anything."""
        first = bisect_right(self._starts, position, self._gone) - 1
        return first >= self._gone and position < self._limit

    def evict_oldest(self) -> int:
        """Evict the oldest frame, of which there must be one, and return its cost."""
        cost = len(self._frames[self._gone]) + FRAME_COST_BYTES
        self._frames[self._gone] = _NOTHING
        self._gone += 1
        if self._gone * 2 >= len(self._starts):  # each frame is moved at most once, on average
            del self._starts[: self._gone], self._frames[: self._gone]
            self._gone = 0
        self.size_bytes -= cost
        self.evictions += 1
        return cost

    def clear(self) -> None:
        """Forget everything."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        self.evictions += len(self._starts) - self._gone
        self._starts, self._frames, self._gone = [], [], 0
        if self._budget is not None:
            self._budget.shrink(self, size_bytes)
