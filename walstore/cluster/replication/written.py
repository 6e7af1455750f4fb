"""WrittenBytes: what a primary has written, for the copies that follow it.

The writer's thread reports what it writes, in order, and each write gets a number, its *serial*. The last
writes are kept in memory; what is older is read from the files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from walstore.cluster.replication.copies import READ_BYTES
from walstore.cluster.replication.position import Place, SegmentExtent
from walstore.core.ports import Buffer
from walstore.errors import StorageUnavailableError

_RECENT_BYTES: Final = 8 << 20
_MOST_MARKS: Final = 1 << 16


class _WrittenMark(NamedTuple):
    """Where a write ended."""

    serial: int
    place: Place
    limit: int


class _ToldWrite(NamedTuple):
    """A write as the writer's thread reported it."""

    place: Place
    """Where it ends."""
    pieces: Sequence[Buffer] | None
    """The bytes before that; None for a segment that is complete."""
    limit: int


class SentHint(NamedTuple):
    """A checkpoint of the log up to a place."""

    place: Place
    data: bytes


class Piece(NamedTuple):
    """Bytes that follow a place."""

    place: Place
    size: int
    pieces: Sequence[Buffer] | None
    """None if they have to be read."""
    seals: bool
    """Whether they end with the segment's footer."""


class WrittenBytes:
    """Implements :class:`walstore.core.replication_port.SegmentTee`. All else belongs to the event loop."""

    def __init__(self, on_told: Callable[[], None], on_removed: Callable[[int], None]) -> None:
        """``on_told`` is called on the event loop after something was written or synced."""
        self._on_told = on_told
        self._on_removed = on_removed
        self._loop = asyncio.get_running_loop()
        self.serial = 0
        """Of the last write."""
        self.synced_serial = 0
        """Everything up to it is durable here."""
        self.hint: SentHint | None = None
        """The newest checkpoint."""
        self.extents: dict[int, SegmentExtent] = {}
        """The segments, by their first offsets. Where the salt is 0, only the header has it."""
        self._marks: deque[_WrittenMark] = deque()
        self._forgotten = Place(0, 0, 0)
        """Where the last mark ended that is not kept."""
        self._forgotten_limit = 0
        self._recent: deque[tuple[Place, int]] = deque()
        self._recent_at: dict[Place, tuple[Sequence[Buffer], int]] = {}
        self._recent_bytes = 0
        # From the writer's thread.
        self._told: deque[_ToldWrite | SentHint | int | None] = deque()
        self._is_awake = False

    # -- on the writer's thread --------------------------------------------------------------

    def wrote(
        self, start: int, created_us: int, position: int, pieces: Sequence[Buffer], limit: int
    ) -> None:
        """As the port says."""
        end = position + sum(map(len, pieces))
        self._tell(_ToldWrite(Place(start, created_us, end), list(pieces), limit))

    def sealed(self, start: int, created_us: int, size: int, limit: int) -> None:
        """As the port says."""
        self._tell(_ToldWrite(Place(start, created_us, size), None, limit))

    def synced(self) -> None:
        """As the port says."""
        self._tell(None)

    def removed(self, head: int) -> None:
        """As the port says."""
        self._tell(head)

    def checkpointed(self, start: int, created_us: int, position: int, data: bytes) -> None:
        """As the port says."""
        self._tell(SentHint(Place(start, created_us, position), data))

    def _tell(self, event: _ToldWrite | SentHint | int | None) -> None:
        self._told.append(event)
        if not self._is_awake and not self._loop.is_closed():
            self._is_awake = True
            self._loop.call_soon_threadsafe(self.take_told)

    # -- on the event loop -------------------------------------------------------------------

    def begin(self, extents: Iterable[tuple[int, int, int, int, bool]]) -> None:
        """Begin with the segments that are there before anything is reported."""
        self.extents = {extent[0]: SegmentExtent(*extent) for extent in extents}

    def take_told(self) -> None:
        """Adopt what the writer's thread reported."""
        self._is_awake = False  # before looking: what is reported from here on wakes again
        while self._told:
            event = self._told.popleft()
            if event is None:
                self.synced_serial = self.serial
            elif isinstance(event, int):
                self._drop_below(event)
            elif isinstance(event, SentHint):
                self.hint = event
            else:
                self._note(event)
        self._on_told()

    def mark_at(self, place: Place) -> tuple[int, int]:
        """Return the last serial whose bytes end at or before a place, and the offset after its records.

        Less if that is not known any more.
        """
        if place < self._forgotten:
            return 0, place.segment
        found = self._marks[0].serial - 1 if self._marks else self.serial
        limit = max(self._forgotten_limit, place.segment)
        for mark in self._marks:
            if mark.place > place:
                break
            found, limit = mark.serial, mark.limit
        return found, limit

    def forget(self, serial: int) -> int:
        """Forget where writes up to a serial ended; return the last one's limit, 0 if there is none."""
        limit = 0
        while self._marks and self._marks[0].serial <= serial:
            _, self._forgotten, limit = self._marks.popleft()
            self._forgotten_limit = limit
        return limit

    def next_piece(self, place: Place) -> Piece | None:
        """Return what follows a place; None if there is nothing yet.

        StorageUnavailableError if the place is not there any more.
        """
        extent = self.extents.get(place.segment)
        if extent is None:
            raise StorageUnavailableError("the copy is too far behind, and is made again")
        if extent.created_us != place.created_us:
            place = Place(extent.start, extent.created_us, 0)
        elif place.position >= extent.size and extent.is_sealed:
            later = [start for start in self.extents if start > place.segment]
            if not later:
                return None
            extent = self.extents[min(later)]
            place = Place(extent.start, extent.created_us, 0)
        left = extent.size - place.position
        if left <= 0:
            return None
        pieces, size = self._recent_at.get(place, (None, READ_BYTES))
        if size > left:
            pieces, size = None, left
        return Piece(place, size, pieces, extent.is_sealed and size == left)

    # -- inside ------------------------------------------------------------------------------

    def _note(self, event: _ToldWrite) -> None:
        place = event.place
        self.serial += 1
        self._marks.append(_WrittenMark(self.serial, place, event.limit))
        if len(self._marks) > _MOST_MARKS:  # too few copies: less will be known of where they are
            self._marks = deque(mark for mark in self._marks if mark.serial % 2 == self.serial % 2)
        known = self.extents.get(place.segment)
        is_same = known is not None and known.created_us == place.created_us
        salt = known.salt if known is not None and is_same else 0
        self.extents[place.segment] = SegmentExtent(
            place.segment, salt, place.created_us, place.position, event.pieces is None
        )
        if event.pieces is not None:
            self._remember(place, event.pieces)

    def _remember(self, end: Place, pieces: Sequence[Buffer]) -> None:
        size = sum(map(len, pieces))
        begin = end._replace(position=end.position - size)
        self._recent.append((begin, size))
        self._recent_at[begin] = (pieces, size)
        self._recent_bytes += size
        while self._recent_bytes > _RECENT_BYTES:
            oldest, oldest_size = self._recent.popleft()
            self._recent_at.pop(oldest, None)
            self._recent_bytes -= oldest_size

    def _drop_below(self, head: int) -> None:
        for start, following in pairwise(sorted(self.extents)):
            if following <= head:
                del self.extents[start]
        self._on_removed(head)
