"""Teller: tells appends that they are committed, some at a time.

A commit may be of thousands of appends. Waking them all at once would keep the event loop busy for many
milliseconds, in which the next change of the root, which all that follow wait for, could not begin.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from uploader.writing.parcel import Parcel

AT_ONCE: Final = 64
"""Appends told in one turn of the event loop."""


class Teller:
    """Resolves the appends of committed parcels, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parcels: deque[Parcel] = deque()
        self._told = 0  # of the first parcel's appends

    def tell(self, parcel: Parcel) -> None:
        """Tell the appends of a parcel, behind those of parcels before it."""
        self._parcels.append(parcel)
        if len(self._parcels) == 1:
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        if self._parcels[0].resolve(self._told, AT_ONCE):
            self._parcels.popleft()
            self._told = 0
        else:
            self._told += AT_ONCE
        if self._parcels:
            self._loop.call_soon(self._step)
