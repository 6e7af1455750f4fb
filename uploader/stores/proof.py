"""Proof: what one place, such as a bucket, has proven to this process of the promises that logs rest on.

All stores at a place share one; ``probe.py`` asks for it. Never does I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from weakref import WeakKeyDictionary


class Proof:
    """Whether conditional puts were found to be enforced. Tasks of several event loops may share it."""

    def __init__(self, *, wants_mark: bool = True) -> None:
        """``wants_mark`` says whether later processes are to be spared the probe by a mark in the store."""
        self.wants_mark = wants_mark
        self._creates = self._swaps = False
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def covers(self, *, with_swaps: bool) -> bool:
        """Return whether put-if-absent, and put-if-match if that is needed, are known to be enforced."""
        return self._swaps if with_swaps else self._creates

    def note(self, *, with_swaps: bool) -> None:
        """Take note of a probe that was passed."""
        self._creates = True
        self._swaps |= with_swaps

    def turn(self) -> asyncio.Lock:
        """Return the lock that is held while this loop finds out, so that others wait for the answer."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


_PROOFS: dict[Hashable, Proof] = {}


def proof_of(*place: Hashable, wants_mark: bool = True) -> Proof:
    """Return the one proof of a place that is named by these values."""
    return _PROOFS.setdefault(place, Proof(wants_mark=wants_mark))
