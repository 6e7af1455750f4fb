"""Followers: the live readers of a log, to see how far behind they are. Keeps none of them alive."""

from __future__ import annotations

import weakref
from typing import Protocol


class Positioned(Protocol):
    """A reader, as far as its lag is concerned."""

    @property
    def position(self) -> int:
        """Offset of the next record to be delivered."""


class Followers:
    """Weak references to readers, which are forgotten when their last user drops them.

    Readers are added on the log's event loop; looking is allowed on any thread. Only readers that follow
    the log without end belong here: the lag of one that stops somewhere would mean nothing.
    """

    __slots__ = ("_forget", "_references")

    def __init__(self) -> None:
        # Keyed by identity of the reference: a dict is copied in one step, a WeakSet is not.
        self._references: dict[int, weakref.ref[Positioned]] = {}
        references = self._references
        self._forget = lambda reference: references.pop(id(reference), None)

    def add(self, reader: Positioned) -> None:
        """Watch a reader for as long as it lives."""
        reference = weakref.ref(reader, self._forget)
        self._references[id(reference)] = reference

    def look(self, limit: int) -> tuple[int, int]:
        """Return how many readers live, and the largest distance from one of them to ``limit``."""
        alive = [found for ref in self._references.copy().values() if (found := ref()) is not None]
        lag = max((limit - reader.position for reader in alive), default=0)
        return len(alive), max(lag, 0)
