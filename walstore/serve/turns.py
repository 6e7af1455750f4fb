"""Turns: the requests of all clients of a server begin in turn, little in each pass of the event loop.

So the loop goes on to answers and timers soon, however much clients have sent, and a client that sends little
begins behind at most 16 requests of each of the others. Short requests begin before long ones, and at least
one of each kind in a pass.

What the heads of requests become counts, too. A byte of a head is an object here, so what was received and
did not begin yet stays packed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

SHORT_HEAD_BYTES: Final = 4 << 10
"""A request with a head of so many bytes is short: it begins in about a millisecond at most."""
_PASS_WORK: Final = 192
"""Requests of one pass. Each takes some 0.05 ms."""
_CLIENT_WORK: Final = 16
"""Requests of one client before it is the turn of the next."""
_HEAD_BYTES: Final = 512
"""So many bytes of a head take as long as a request."""
_OBJECT_FACTOR: Final = 24
"""What a byte of a head takes as objects: 250 bytes for a record with a short key, of 10 bytes here."""
_FEW_PARTS: Final = 64
"""A head of up to so many parts is a few objects, as long as they may be."""
_PART_BYTES: Final = 64
"""What a part takes as an object, in addition to its bytes."""
_FREE_BYTES: Final = 128
"""The head of a request that is mostly payload, or a read; what it takes counts as part of the request."""


class InTurn(Protocol):
    """A client whose requests begin in turn."""

    def take_turn(self) -> None:
        """Begin requests as long as there are some, and :meth:`Turns.begin` allows it."""


class Turns:
    """Belongs to the event loop of the server."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], most_bytes: int = 32 << 20
    ) -> None:
        """Let the heads of requests take about ``most_bytes`` as objects; none counts as more than half."""
        self.held_bytes = 0
        """What they take."""
        self._call_soon = call_soon
        self._most_bytes = most_bytes
        self._short: OrderedDict[InTurn, None] = OrderedDict()
        self._long: OrderedDict[InTurn, None] = OrderedDict()
        self._left = _PASS_WORK
        self._turn: InTurn | None = None
        self._turn_left = 0
        self._is_long_turn = False
        # Whether the first of the long ones waits until others hold less.
        self._is_full = False
        self._is_called = False

    def begin(self, client: InTurn, head_bytes: int, *, is_first: bool) -> int | None:
        """Return what a request holds that may begin now; None if ``client`` has its turn later.

        With ``is_first`` the client holds nothing: then a short request needs no room, and holds next to
        nothing.
        """
        is_short = head_bytes <= SHORT_HEAD_BYTES
        # What it holds as objects. What waits long holds little, so half of it is free at some time.
        cost = 0
        if head_bytes > _FREE_BYTES:
            is_free = is_short and is_first
            cost = 1 if is_free else min(head_bytes * _OBJECT_FACTOR, self._most_bytes // 2)
        has_work = self._has_work(client, is_short=is_short)
        has_room = cost <= 1 or self.held_bytes + cost <= self._most_bytes
        if has_work and has_room:
            work = 1 + head_bytes // _HEAD_BYTES
            self._left -= work
            self._turn_left -= work
            self.held_bytes += cost
            return cost
        is_next = self._turn is client and has_work
        self._wait(client, is_short=is_short and has_room, is_next=is_next)
        return None

    def _has_work(self, client: InTurn, *, is_short: bool) -> bool:
        """Whether it is the turn of a client, or of nobody, and something is left of the pass."""
        if self._turn is client:
            return self._turn_left > 0 and (is_short or self._is_long_turn)
        return self._left > 0 and not self._short and not self._long

    def is_long(self, client: InTurn) -> bool:
        """Whether a client waits for the turn of a long request."""
        return client in self._long

    def settle(self, held_bytes: int, head_bytes: int, parts: int) -> int:
        """Return what a head holds for which so much was held, now that its parts are known.

        One of few parts holds nothing: its bytes count as those of the request.
        """
        needed = 0 if parts <= _FEW_PARTS else min(held_bytes, head_bytes + parts * _PART_BYTES)
        self.release(held_bytes - needed)
        return needed

    def release(self, held_bytes: int) -> None:
        """Note that nothing is left of a head."""
        if held_bytes:
            self.held_bytes -= held_bytes
            if self._is_full:
                self._is_full = False
                self._call()

    def leave(self, client: InTurn) -> None:
        """Forget a client."""
        self._short.pop(client, None)
        self._long.pop(client, None)
        self._is_full = False
        self._call()

    def join(self, client: InTurn) -> None:
        """Let a client have a turn, which has something to begin."""
        if client not in self._long:
            self._wait(client, is_short=True, is_next=False)

    def _wait(self, client: InTurn, *, is_short: bool, is_next: bool) -> None:
        queue, other = (self._short, self._long) if is_short else (self._long, self._short)
        other.pop(client, None)
        queue[client] = None
        if is_next and not is_short:
            # It had its turn, and there was no room: nobody overtakes it.
            queue.move_to_end(client, last=False)
            self._is_full = True
        self._call()

    def _call(self) -> None:
        if not self._is_called and (self._short or (self._long and not self._is_full)):
            self._is_called = True
            self._call_soon(self._pass)

    def _pass(self) -> None:
        self._is_called = False
        self._left = _PASS_WORK
        while self._short and self._left > 0:
            self._give(self._short)
        self._left = max(self._left, 1)
        while self._long and not self._is_full and self._left > 0:
            self._give(self._long)
        self._call()

    def _give(self, queue: OrderedDict[InTurn, None]) -> None:
        self._turn, _ = queue.popitem(last=False)
        self._turn_left, self._is_long_turn = _CLIENT_WORK, queue is self._long
        try:
            self._turn.take_turn()
        finally:
            self._turn = None
