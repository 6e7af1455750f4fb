"""CopyTally: what a round of the scrub found at one copy; OwnTally: at the own one. On the event loop."""

from __future__ import annotations

import logging

from walstore.cluster.replication.healing import PART_BYTES, Healer
from walstore.cluster.replication.known_copy import KnownCopy
from walstore.cluster.replication.position import SegmentExtent
from walstore.core.format import segment
from walstore.core.runtime.statistics import CopyScrub
from walstore.errors import CorruptionError, StorageUnavailableError, WalError

logger = logging.getLogger("walstore.replication")


class OwnTally:
    """Of one round, from its begin."""

    def __init__(self, healer: Healer, address: str = "") -> None:
        self.position = 0
        """Up to where the segment that is read now was checked; its end if no more of it will be."""
        self._healer = healer
        self._address = address
        self._mended_before = self._mended
        self._checked_bytes = 0
        self._damaged: set[int] = set()
        self._left: dict[str, str] = {}
        self._trouble: str | None = None

    def result(self) -> CopyScrub:
        """Return what was found so far."""
        return CopyScrub(
            address=self._address,
            checked_bytes=self._checked_bytes,
            damaged_segments=len(self._damaged),
            mended_bytes=self._mended - self._mended_before,
            left=self._left.copy(),
            trouble=self._trouble,
        )

    async def check(self, extent: SegmentExtent) -> None:
        """Check the next part of a segment, and let damage be replaced. No error of a copy is raised."""
        start, begin, before = extent.start, self.position, self._mended
        self.position = extent.size
        try:
            end = await self._check(extent, begin)
            if end > begin:  # else the copy ends there: the rest is on its way
                self._checked_bytes += end - begin
                self.position = end
        except CorruptionError as error:
            self._damaged.add(start)
            self._left[segment.file_name(start)] = str(error)
        except WalError as error:
            if start in self._healer.own.written.extents:  # else retention deleted it
                self._trouble = str(error)
                logger.info("%s is not checked: %s", self._name, error)
        if self._mended > before:
            self._damaged.add(start)

    async def _check(self, extent: SegmentExtent, begin: int) -> int:
        """Return up to where a part is whole. CorruptionError for damage that stays."""
        try:
            return await self._healer.own.check(extent, begin, PART_BYTES)
        except CorruptionError:
            if not await self._healer.heal(extent.start):
                raise
        return await self._healer.own.check(extent, begin, PART_BYTES)

    @property
    def _mended(self) -> int:
        return self._healer.mended.get(self._address, 0)

    @property
    def _name(self) -> str:
        return f"a segment of {self._healer.own.name}"


class CopyTally(OwnTally):
    """The same of a copy at a node."""

    def __init__(self, healer: Healer, follower: KnownCopy) -> None:
        super().__init__(healer, str(follower.address))
        self._follower = follower

    async def _check(self, extent: SegmentExtent, begin: int) -> int:
        follower = self._follower
        copy, trouble = follower.reached, follower.trouble
        if copy is None or trouble is not None:
            raise StorageUnavailableError(trouble or "it is not connected")
        try:
            return await self._healer.check_copy(follower, copy, extent.start, begin, PART_BYTES)
        except CorruptionError as error:
            logger.warning("%s stays damaged: %s", self._name, error)
            raise

    @property
    def _name(self) -> str:
        return f"the copy at {self._address}"
