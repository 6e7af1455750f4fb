"""Budgets that the logs of a store share. No I/O; everything belongs to the event loop.

Invariants (tests/walstore/core/append/test_budgets.py)
  B1  The caches of all logs together hold at most the budget; the least recently used log evicts first,
      its oldest batches first.
  B2  Bytes accepted by all channels and not yet durable stay within the budget, except for one larger
      group, which is accepted when nothing else is pending.
  B3  Logs that wait for room are served in turn, one group each, and no log overtakes them.
  B4  With room kept for those that are first, others never take it; of these the newest is served first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

LEASE_BYTES: Final = 64 << 10
"""Maximum room that one log holds unused."""


class Evictable(Protocol):
    """A cache that can evict its oldest batch."""

    @property
    def size_bytes(self) -> int:
        """Bytes it holds."""

    def evict_oldest(self) -> int:
        """Evict the oldest batch and return its size. Called only if there is one."""


class CacheBudget:
    """Bytes that the caches of many logs may hold together."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        # Caches that are not empty, the least recently used first.
        self._caches: OrderedDict[Evictable, None] = OrderedDict()
        self.size_bytes = 0

    def touch(self, cache: Evictable) -> None:
        """Record that a cache was read."""
        if cache in self._caches:
            self._caches.move_to_end(cache)

    def grow(self, cache: Evictable, size_bytes: int) -> None:
        """Record that a cache grew by ``size_bytes``, and evict the excess over the budget."""
        self._caches[cache] = None
        self._caches.move_to_end(cache)
        self.size_bytes += size_bytes
        while self.size_bytes > self._capacity_bytes:
            oldest = next(iter(self._caches))
            self.size_bytes -= oldest.evict_oldest()
            if not oldest.size_bytes:
                del self._caches[oldest]

    def shrink(self, cache: Evictable, size_bytes: int) -> None:
        """Record that a cache itself dropped ``size_bytes``."""
        self.size_bytes -= size_bytes
        if not cache.size_bytes:
            self._caches.pop(cache, None)


class ChannelBudget:
    """Bytes that the channels of many logs may hold together: accepted and not yet durable."""

    def __init__(self, capacity_bytes: int, *, first_bytes: int = 0) -> None:
        """Keep ``first_bytes`` of it for those that are first. Who just came then does not wait for many who
        came before and keep what they got."""
        self.capacity_bytes = capacity_bytes
        self._first_bytes = first_bytes
        self.used_bytes = 0
        """Bytes accepted and not yet durable, and room leased to logs that are accepting some."""
        # Waiting shares and their sizes, in the order of their turns: those that go first, and the others.
        self._queues: tuple[OrderedDict[ChannelShare, int], ...] = (OrderedDict(), OrderedDict())

    @property
    def waiting(self) -> int:
        """How many logs wait for room."""
        return sum(map(len, self._queues))

    def share(self, admit: Callable[[], None]) -> ChannelShare:
        """Return the share of another log. ``admit()`` is called on that log's turn: it takes the room it
        waited for, and waits again if it needs more."""
        return ChannelShare(self, admit)

    def fits(self, size_bytes: int, *, is_first: bool = False) -> bool:
        """Whether the share with the turn may take this much."""
        most = self.capacity_bytes - (0 if is_first else self._first_bytes)
        return not self.used_bytes or self.used_bytes + size_bytes <= most

    def enqueue(self, share: ChannelShare, size_bytes: int, *, is_first: bool = False) -> None:
        """Let a share wait for ``size_bytes``; a waiting share keeps its place.

        With ``is_first`` before all that wait without it.
        """
        self._queues[not is_first][share] = size_bytes

    def dequeue(self, share: ChannelShare) -> None:
        """Remove a share from the waiting ones."""
        for queue in self._queues:
            queue.pop(share, None)

    def serve(self) -> None:
        """Give the turn to waiting shares, in order, while there is room for the first."""
        first, others = self._queues
        while queue := first or others:
            is_first = queue is first
            newest_first = self._first_bytes and not is_first
            share, size_bytes = next(
                reversed(queue.items()) if newest_first else iter(queue.items())
            )
            if not self.fits(size_bytes, is_first=is_first):
                return
            del queue[share]
            share.take_turn()


class ChannelShare:
    """The part of a :class:`ChannelBudget` that one log holds."""

    __slots__ = ("_admit", "_budget", "_has_turn", "_held_bytes", "_lease_bytes")

    def __init__(self, budget: ChannelBudget, admit: Callable[[], None]) -> None:
        self._budget = budget
        self._admit = admit
        self._has_turn = False
        self._held_bytes = 0  # taken and not returned
        self._lease_bytes = 0  # promised and not yet taken

    def has_room(self, size_bytes: int, *, is_first: bool = False) -> bool:
        """Whether this much may be taken now without overtaking another log."""
        budget = self._budget
        if self._has_turn or not budget.waiting:
            return budget.fits(size_bytes - self._lease_bytes, is_first=is_first) or (
                budget.used_bytes == self._lease_bytes
            )
        return False

    def take(self, size_bytes: int) -> None:
        """Take room; the caller has checked :meth:`has_room`. This ends the log's turn."""
        leased_bytes = 0
        if self._lease_bytes:
            leased_bytes = min(size_bytes, self._lease_bytes)
            self._lease_bytes -= leased_bytes
        self._budget.used_bytes += size_bytes - leased_bytes
        self._held_bytes += size_bytes
        self._has_turn = False

    def lease(self, most_bytes: int) -> int:
        """Hold up to ``most_bytes`` in advance, replacing an earlier lease; return how much.

        Nothing while another log waits.
        """
        budget = self._budget
        self.end_lease()
        if not budget.waiting:
            free_bytes = max(budget.capacity_bytes - budget.used_bytes, 0)
            self._lease_bytes = min(most_bytes, LEASE_BYTES, free_bytes)
            budget.used_bytes += self._lease_bytes
        return self._lease_bytes

    def end_lease(self) -> None:
        """Hold nothing in advance."""
        if self._lease_bytes:
            self._budget.used_bytes -= self._lease_bytes
            self._lease_bytes = 0

    def give(self, size_bytes: int) -> None:
        """Return the room of durable records, at most what is held; call :meth:`serve` afterwards."""
        size_bytes = min(size_bytes, self._held_bytes)
        self._held_bytes -= size_bytes
        self._budget.used_bytes -= size_bytes

    def wait(self, size_bytes: int, *, is_first: bool = False) -> None:
        """Wait for room: ``admit`` is called when there is room and the earlier waiters were served.

        With ``is_first`` before all that wait without it; call :meth:`serve` afterwards.
        """
        self._budget.enqueue(self, size_bytes, is_first=is_first)

    def leave(self) -> None:
        """Stop waiting."""
        self._budget.dequeue(self)

    def serve(self) -> None:
        """Serve the waiting logs, including this one."""
        self._budget.serve()

    def close(self) -> None:
        """Return everything and stop waiting, permanently; serves the waiting logs."""
        self.leave()
        self.end_lease()
        self.give(self._held_bytes)
        self._budget.serve()

    def take_turn(self) -> None:
        """For the budget: let the log take the room it waited for."""
        self._has_turn = True
        try:
            self._admit()
        finally:
            self._has_turn = False


def answer_budget(capacity_bytes: int) -> ChannelBudget:
    """Return the budget of answers of a server: half of it is only for clients that take theirs."""
    return ChannelBudget(capacity_bytes, first_bytes=capacity_bytes // 2)
