"""Scrub: reads all segments of all copies, slowly, and repairs what is damaged. One task for each primary."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from walstore.errors import CorruptionError, WalError
from walstore.ports import Clock
from walstore.replication.healing import PART_BYTES, Healer
from walstore.replication.position import SegmentExtent

if TYPE_CHECKING:
    from walstore.replication.follower import Follower

logger = logging.getLogger("walstore")


class Scrub:
    """Belongs to the event loop."""

    def __init__(
        self, healer: Healer, followers: Sequence[Follower], clock: Clock, *, seconds: float
    ) -> None:
        """A round takes about so many seconds."""
        self._healer, self._followers = healer, followers
        self._extents = healer.own.written.extents
        self._clock, self._seconds = clock, seconds

    async def run(self) -> None:
        """Read for ever."""
        while True:
            for start in sorted(self._extents):
                begin = 0
                while (extent := self._extents.get(start)) is not None and begin < extent.size:
                    parts = sum(-(-one.size // PART_BYTES) for one in self._extents.values())
                    await self._clock.sleep(self._seconds / parts)
                    begin = await self._check(extent, begin)
            if not self._extents:
                await self._clock.sleep(self._seconds)

    async def _check(self, extent: SegmentExtent, begin: int) -> int:
        """Check a part of a segment at all copies; return where it ends, the segment's end after an error."""
        start, end = extent.start, extent.size
        try:
            try:
                end = await self._healer.own.check(extent, begin, PART_BYTES)
            except CorruptionError:
                if await self._healer.heal(start):
                    end = await self._healer.own.check(extent, begin, PART_BYTES)
        except WalError as error:
            logger.info("a segment is not checked: %s", error)  # retention may have deleted it
        for follower in self._followers:
            copy = follower.reached
            if copy is None or not follower.is_present:
                continue
            try:
                await self._healer.check_copy(follower, copy, start, begin, PART_BYTES)
            except CorruptionError as error:
                logger.warning("the copy at %s stays damaged: %s", follower.address, error)
            except WalError as error:
                logger.info("the copy at %s is not checked: %s", follower.address, error)
        return end
