"""Teller: tells the appends of committed parcels where their records are."""

from __future__ import annotations

import asyncio
from collections import deque

from uploader.write.pending_fragment import PendingFragment
from uploader.write.telling import AT_ONCE, Telling


class Teller:
    """Resolves the appends of committed parcels, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._parcels: deque[PendingFragment] = deque()
        self._told = 0  # of the first parcel's appends
        self._telling = Telling(loop, self._step)

    def tell(self, parcel: PendingFragment) -> None:
        """Tell the appends of a parcel, behind those of parcels before it."""
        self._parcels.append(parcel)
        self._telling.begin()

    def _step(self) -> bool:
        if self._parcels[0].resolve(self._told, AT_ONCE):
            self._parcels.popleft()
            self._told = 0
        else:
            self._told += AT_ONCE
        return bool(self._parcels)
