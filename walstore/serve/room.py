"""Room: bytes of a budget that one client, answer or request holds."""

from __future__ import annotations

import asyncio

from walstore.core.append.budgets import ChannelBudget


class Room:
    """Bytes of a budget that clients share; nothing is held once it is closed. Belongs to the event loop."""

    def __init__(self, budget: ChannelBudget) -> None:
        self.held_bytes = 0
        """What is held."""
        self._most_bytes = budget.capacity_bytes // 2  # there is soon room for that
        self._share = budget.share(self._admit)
        self._admission: tuple[asyncio.Future[None], int] | None = None
        self._is_closed = False

    def has(self, size_bytes: int, *, is_first: bool = False) -> bool:
        """Whether there is so much more, and nobody waits for it."""
        return self._share.has_room(size_bytes, is_first=is_first)

    def hold(self, size_bytes: int) -> None:
        """Hold so much in all, whether there is room or not."""
        if self._is_closed:
            return
        change, self.held_bytes = size_bytes - self.held_bytes, size_bytes
        if change > 0:
            self._share.take(change)
        elif change < 0:
            self._share.give(-change)
            self._share.serve()

    async def wait(self, size_bytes: int, *, is_first: bool = False) -> None:
        """Hold so much more once there is room, in turn; with ``is_first`` before others.

        Half of the budget is enough for more than that. Returns at once if it is closed meanwhile.
        """
        wanted = min(size_bytes, self._most_bytes)
        if self._is_closed or self.has(wanted, is_first=is_first):
            self.hold(self.held_bytes + size_bytes)
            return
        future = asyncio.get_running_loop().create_future()
        self._admission = future, size_bytes
        self._share.wait(wanted, is_first=is_first)
        self._share.serve()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it was admitted just now
                self.hold(self.held_bytes - size_bytes)
            raise
        finally:
            self._admission = None
            self._share.leave()

    def close(self) -> None:
        """Hold nothing any more; whoever waits goes on."""
        self._is_closed, self.held_bytes = True, 0
        self._share.close()
        self._resolve()

    def _admit(self) -> None:
        """There is the room that was waited for."""
        if self._admission is not None and not self._admission[0].done():
            self.hold(self.held_bytes + self._admission[1])
        self._resolve()

    def _resolve(self) -> None:
        if self._admission is not None and not self._admission[0].done():
            self._admission[0].set_result(None)
