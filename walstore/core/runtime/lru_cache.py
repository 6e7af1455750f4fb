"""LruCache: what was used last, as much as fits into a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Values by key. Those used longest ago go when the others need their room. One task at a time.

    Owners call :meth:`clear` when they are closed: an owner is often part of a reference cycle, and a
    program that serves looks for those rarely (:mod:`walstore.core.runtime.memory`).
    """

    def __init__(self, max_bytes: int) -> None:
        """Hold values of at most ``max_bytes`` together; a larger one is not kept at all."""
        self.max_bytes: Final = max_bytes
        """As given."""
        self.nbytes = 0
        """Memory of the values that are held, as their owner counted it."""
        self._held: OrderedDict[_K, tuple[int, _V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: _K) -> _V | None:
        """Return a value, which counts as used now; None if it is not held."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[1]

    def put(self, key: _K, value: _V, size_bytes: int) -> None:
        """Hold a value of that size instead of what is held under its key."""
        self.pop(key)
        if size_bytes > self.max_bytes:
            return
        self._held[key] = size_bytes, value
        self.nbytes += size_bytes
        while self.nbytes > self.max_bytes:
            _, (oldest_bytes, _) = self._held.popitem(last=False)
            self.nbytes -= oldest_bytes

    def pop(self, key: _K) -> _V | None:
        """Hold a value no longer, and return it; None if it was not held."""
        found = self._held.pop(key, None)
        if found is None:
            return None
        self.nbytes -= found[0]
        return found[1]

    def clear(self) -> None:
        """Hold nothing."""
        self._held.clear()
        self.nbytes = 0
