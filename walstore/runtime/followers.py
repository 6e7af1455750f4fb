"""Followers: weak references to the readers or cursors of a log, to measure how far behind they are."""

from __future__ import annotations

import weakref
from typing import Generic, Protocol, TypeVar


class Positioned(Protocol):
    """A reader or cursor with a lag."""

    @property
    def position(self) -> int:
        """Offset of the next record to be read."""


_F = TypeVar("_F", bound=Positioned)


class Followers(Generic[_F]):
    """Weak references to readers or cursors, which disappear with their last user.

    They are added on the log's event loop; reading is allowed on any thread. Only readers that follow
    the log without end belong here: the lag of a reader with a stop means nothing.
    """

    __slots__ = ("_forget", "_references")

    def __init__(self) -> None:
        # Keyed by identity of the reference: a dict is copied in one step, a WeakSet is not.
        self._references: dict[int, weakref.ref[_F]] = {}
        references = self._references
        self._forget = lambda reference: references.pop(id(reference), None)

    def add(self, follower: _F) -> None:
        """Track a follower while it is alive."""
        reference = weakref.ref(follower, self._forget)
        self._references[id(reference)] = reference

    def alive(self) -> list[_F]:
        """Return those that are alive."""
        return [found for ref in self._references.copy().values() if (found := ref()) is not None]

    def look(self, limit: int) -> tuple[int, int]:
        """Return how many are alive, and the largest distance from one of them to ``limit``."""
        alive = self.alive()
        lag = max((limit - follower.position for follower in alive), default=0)
        return len(alive), max(lag, 0)
