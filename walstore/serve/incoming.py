"""Incoming: the requests of one client that have no answer yet, and whether more is read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from walstore.core.append.budgets import ChannelBudget

SHORT_BYTES: Final = 256 << 10
"""So much each client may send in any case, so that nobody keeps it from small requests."""
REQUEST_BYTES: Final = 6 << 10
"""What a request takes until its answer, in addition to its bytes: mostly its task. A read that waits takes
4.2 KiB in 25 objects, one for a job of a group 4 KiB in 27, and memory has holes."""


class Incoming:
    """Belongs to the event loop of the server."""

    def __init__(
        self, budget: ChannelBudget, credit_bytes: int, on_room: Callable[[], None]
    ) -> None:
        """Take up to ``credit_bytes``, of what ``budget`` has for all; tell ``on_room`` if there is room."""
        self.used_bytes = 0
        """What its requests in progress take."""
        self._budget = budget
        self._credit_bytes = credit_bytes
        self._short_bytes = min(SHORT_BYTES, credit_bytes)
        self._on_room = on_room
        self._share = budget.share(self._admit)
        # Room for the next message, and that for which it waits.
        self._coming_bytes = self._wanted_bytes = 0

    @property
    def holds_room(self) -> bool:
        """Whether the next message is a large one that has its room."""
        return self._coming_bytes > 0

    def begin(self, size_bytes: int) -> int:
        """Note that the next message is a request that begins, and return what it takes."""
        cost_bytes = size_bytes + REQUEST_BYTES
        self.used_bytes += cost_bytes
        if given := self._coming_bytes:
            given, self._coming_bytes = min(given, cost_bytes), 0
        self._share.take(cost_bytes - given)
        return cost_bytes

    def release(self, cost_bytes: int) -> None:
        """Note its answer."""
        self.used_bytes -= cost_bytes
        self._give(cost_bytes)

    def takes(self, coming_bytes: int) -> bool:
        """Whether the next message, of ``coming_bytes`` in all, is read on, and begins.

        A large one has its room before it is read on, so that it comes to its end, and until it begins.
        """
        self._wanted_bytes = 0
        if self.used_bytes < self._short_bytes and coming_bytes <= SHORT_BYTES:
            return True
        if coming_bytes > SHORT_BYTES and not self._coming_bytes:
            if not self._share.has_room(coming_bytes):
                self._wanted_bytes = coming_bytes
                self._share.wait(coming_bytes)
                return False
            self._share.take(coming_bytes)
            self._coming_bytes = coming_bytes
        if self.used_bytes >= self._credit_bytes:
            return False
        if self._coming_bytes or self.used_bytes < SHORT_BYTES:
            return True
        if self._share.has_room(SHORT_BYTES):
            return True
        self._share.wait(SHORT_BYTES)
        return False

    def drop(self) -> None:
        """The next message does not begin; or the connection is lost, and what it began is released later."""
        self._share.leave()
        given, self._coming_bytes, self._wanted_bytes = self._coming_bytes, 0, 0
        self._give(given)

    def _admit(self) -> None:
        if self._wanted_bytes:
            self._coming_bytes, self._wanted_bytes = self._wanted_bytes, 0
            self._share.take(self._coming_bytes)
        self._on_room()

    def _give(self, size_bytes: int) -> None:
        if size_bytes:
            self._share.give(size_bytes)
            self._share.serve()
