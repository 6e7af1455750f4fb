"""Followers: the live readers or cursors of a log, to see how far behind they are. Keeps none alive."""

from __future__ import annotations

import weakref
from typing import Generic, Protocol, TypeVar


class Positioned(Protocol):
    """A reader or cursor, as far as its lag is concerned."""

    @property
    def position(self) -> int:
        """Offset of the next record to be read."""


_F = TypeVar("_F", bound=Positioned)


class Followers(Generic[_F]):
    """Weak references to readers or cursors, which are forgotten when their last user drops them.

    They are added on the log's event loop; looking is allowed on any thread. Only what follows the log
    without end belongs here: the lag of a reader that stops somewhere would mean nothing.
    """

    __slots__ = ("_forget", "_references")

    def __init__(self) -> None:
        # Keyed by identity of the reference: a dict is copied in one step, a WeakSet is not.
        self._references: dict[int, weakref.ref[_F]] = {}
        references = self._references
        self._forget = lambda reference: references.pop(id(reference), None)

    def add(self, follower: _F) -> None:
        """Watch it for as long as it lives."""
        reference = weakref.ref(follower, self._forget)
        self._references[id(reference)] = reference

    def alive(self) -> list[_F]:
        """Return those that live."""
        return [found for ref in self._references.copy().values() if (found := ref()) is not None]

    def look(self, limit: int) -> tuple[int, int]:
        """Return how many live, and the largest distance from one of them to ``limit``."""
        alive = self.alive()
        lag = max((limit - follower.position for follower in alive), default=0)
        return len(alive), max(lag, 0)
