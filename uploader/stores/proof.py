"""Proof: which of the promises that logs depend on one place, such as a bucket, has proven to this process.

All stores at a place share one; ``probe.py`` sets it. Never does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from weakref import WeakKeyDictionary


class Proof:
    """Whether conditional puts were found to be enforced. Tasks of several event loops may share it."""

    def __init__(self, *, wants_mark: bool = True) -> None:
        """``wants_mark``: whether a mark in the store spares later processes the probe."""
        self.wants_mark = wants_mark
        self._creates = self._swaps = False
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def covers(self, *, with_swaps: bool) -> bool:
        """Return whether put-if-absent, and put-if-match if that is needed, are known to be enforced."""
        return self._swaps if with_swaps else self._creates

    def note(self, *, with_swaps: bool) -> None:
        """Record a passed probe."""
        self._creates = True
        self._swaps |= with_swaps

    def turn(self) -> asyncio.Lock:
        """Return the lock that is held while this loop probes, so that others wait for the result."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


_PROOFS: dict[Hashable, Proof] = {}


def proof_of(*place: Hashable, wants_mark: bool = True) -> Proof:
    """Return the one proof of the place that these values name."""
    return _PROOFS.setdefault(place, Proof(wants_mark=wants_mark))
