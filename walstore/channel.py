"""Channel: where appends enter the log. Bounded by bytes and records; assigns the offsets.

Offsets are assigned in the order in which records enter, never before there is room, so a caller that
is refused or cancelled while it waits burns none. The writer task takes whole drafts from the other end.
Everything here belongs to the event loop; nothing blocks and nothing is awaited but room.

Invariants (tests/walstore/test_channel.py)
  C1  Offsets leave ``take`` in order and without gaps.
  C2  Accepted and not released bytes stay within the budget, but for one group larger than it.
  C3  Room is given in the order in which callers asked; ``put`` never overtakes a waiting caller.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final

from walstore.draft import RECORD_OVERHEAD_BYTES, Draft, Group
from walstore.errors import (
    OffsetNotWrittenError,
    RecordTooLargeError,
    WalError,
    WouldBlock,
)
from walstore.faults import fresh
from walstore.settings import Settings

BATCH_RECORDS: Final = 16_384
"""Most records of one batch, but for a larger group: readers take a batch apart at one go, and tiny
records would otherwise make that a long stop of the event loop."""


class Channel:
    """Bounded queue of records between appenders and the writer."""

    def __init__(
        self, next_offset: int, settings: Settings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._bytes_budget = settings.channel_bytes
        self._records_budget = settings.channel_records
        # Batches stay well below a segment, so that segments keep near their size.
        self._batch_bytes = min(settings.batch_bytes, settings.segment_bytes // 4)
        self._max_record_bytes = settings.max_record_bytes
        self.tail = next_offset
        """Next offset to be assigned."""
        self._released = next_offset
        self._used_bytes = 0  # of closed drafts, waiting or being written
        self._ready: deque[Draft] = deque()
        # Who waits for room, in order.
        self._admissions: OrderedDict[asyncio.Future[int], Group] = OrderedDict()
        self._closed: WalError | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._poked = False
        self._room = self._room_given = 0
        self._begin_draft()

    # -- appenders ---------------------------------------------------------------------------

    def put_value(self, value: bytes) -> int:
        """Accept one plain value and return its offset; raise WouldBlock if there is no room.

        The fast path: one list append and one comparison. ``_room`` is what may be taken without
        looking at any limit, and 0 whenever anything at all stands in the way.
        """
        size = len(value) + RECORD_OVERHEAD_BYTES
        room = self._room - size
        if room < 0:
            return self.put(Group((value,), None, None, None, None, size))
        self._room = room
        self._append_value(value)
        offset = self.tail
        self.tail = offset + 1
        if self._sleeper is not None:
            self._wake()
        return offset

    def put(self, group: Group) -> int:
        """Accept a group whole and return its first offset; raise WouldBlock if there is no room."""
        self._check(group)
        if self._admissions or not self._has_room(group):
            raise WouldBlock(
                f"{self._waiting_bytes()} bytes and {self.tail - self._released} records wait for "
                "the disk; await append(), or try again later"
            )
        return self._accept(group)

    async def put_wait(self, group: Group) -> int:
        """Accept a group whole as soon as there is room, and return its first offset.

        Cancelled while it waits, nothing was accepted; cancelled as it is being accepted, the
        records are in the log although the caller sees the cancellation.
        """
        self._check(group)
        if not self._admissions and self._has_room(group):
            return self._accept(group)
        future: asyncio.Future[int] = self._loop.create_future()
        self._admissions[future] = group
        self._set_room()
        try:
            return await future
        except asyncio.CancelledError:
            self._admissions.pop(future, None)
            self._admit()  # those behind may be smaller
            raise

    # -- writer ------------------------------------------------------------------------------

    async def wait_ready(self) -> None:
        """Return when there is something to take, or after :meth:`poke`."""
        if self._ready or self._draft.values or self._poked:
            self._poked = False
            return
        sleeper = self._sleeper = self._loop.create_future()
        try:
            await sleeper
        finally:
            self._sleeper = None
            self._poked = False

    def take(self, max_bytes: int) -> list[Draft]:
        """Remove and return the oldest drafts: at least one if any, about ``max_bytes`` at most."""
        if len(self._ready) * self._batch_bytes < max_bytes and self._draft.values:
            self._close_draft()
            self._begin_draft()
        taken: list[Draft] = []
        size = 0
        while self._ready and (not taken or size + self._ready[0].size_bytes <= max_bytes):
            taken.append(self._ready.popleft())
            size += taken[-1].size_bytes
        return taken

    def release(self, drafts: list[Draft]) -> None:
        """Give back the room of drafts that are on disk, and admit who waits for it."""
        self._used_bytes -= sum(draft.size_bytes for draft in drafts)
        if drafts:
            self._released = drafts[-1].limit
        self._admit()

    def poke(self) -> None:
        """Make ``wait_ready`` return although there may be nothing to take."""
        self._poked = True
        if self._sleeper is not None:
            self._wake()

    def close(self, error: WalError) -> None:
        """Refuse further records with ``error``; those accepted can still be taken."""
        if self._closed is None:
            self._closed = error
        for future in self._admissions:
            if not future.done():
                future.set_exception(fresh(self._closed))
                future.exception()  # a caller cancelled at this moment never looks
        self._admissions.clear()
        self._set_room()
        self.poke()

    def drop(self) -> None:
        """Forget everything accepted, after a failure: nobody will take it."""
        self._ready.clear()
        self._draft.values.clear()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._ready and not self._draft.values

    @property
    def waiting(self) -> tuple[int, int]:
        """Bytes and records accepted and not yet on disk."""
        return self._waiting_bytes(), self.tail - self._released

    def check_assigned(self, offset: int) -> None:
        """Raise OffsetNotWrittenError unless ``offset`` has been assigned to a record."""
        if not 0 < offset < self.tail:
            raise OffsetNotWrittenError(
                "no record has this offset yet", requested=offset, head=1, tail=self.tail
            )

    # -- inside ------------------------------------------------------------------------------

    def _check(self, group: Group) -> None:
        if self._closed is not None:
            raise fresh(self._closed)
        overhead = RECORD_OVERHEAD_BYTES * len(group.values)
        limit = self._max_record_bytes if len(group.values) == 1 else self._bytes_budget
        if group.size_bytes - overhead > limit:
            what = "record" if len(group.values) == 1 else "atomic group"
            name = "max_record_bytes" if len(group.values) == 1 else "channel_bytes"
            raise RecordTooLargeError(
                f"the {what} has {group.size_bytes - overhead} bytes; {name} is {limit}",
                size_bytes=group.size_bytes - overhead,
                limit_bytes=limit,
            )

    def _has_room(self, group: Group) -> bool:
        waiting = self._waiting_bytes()
        if not waiting:
            return True
        records = self.tail - self._released + len(group.values)
        return waiting + group.size_bytes <= self._bytes_budget and records <= self._records_budget

    def _accept(self, group: Group) -> int:
        open_bytes = self._draft.size_bytes + self._room_given - self._room
        is_full = (
            open_bytes + group.size_bytes > self._batch_bytes
            or len(self._draft.values) + len(group.values) > BATCH_RECORDS
        )
        if self._draft.values and is_full:
            self._close_draft()
            self._begin_draft()
        offset = self.tail
        self._fold_room()
        self._draft.extend(group)
        self._draft.size_bytes += group.size_bytes
        self.tail = offset + len(group.values)
        self._set_room()
        self._wake()
        return offset

    def _admit(self) -> None:
        while self._admissions:
            future, group = next(iter(self._admissions.items()))
            if not future.done():
                if not self._has_room(group):
                    break
                future.set_result(self._accept(group))
            del self._admissions[future]
        self._set_room()

    def _begin_draft(self) -> None:
        self._draft = Draft(self.tail)
        self._append_value = self._draft.values.append
        self._room = self._room_given = 0
        self._set_room()

    def _close_draft(self) -> None:
        self._fold_room()
        self._draft.pad()
        self._used_bytes += self._draft.size_bytes
        self._ready.append(self._draft)

    def _fold_room(self) -> None:
        """Add what the fast path took from the room to the open draft's size."""
        self._draft.size_bytes += self._room_given - self._room
        self._room_given = self._room

    def _set_room(self) -> None:
        self._fold_room()
        room = (
            min(self._batch_bytes, self._bytes_budget - self._used_bytes) - self._draft.size_bytes
        )
        # Within this room no record can be too large, nor can there be too many.
        records = min(
            self._records_budget - (self.tail - self._released),
            BATCH_RECORDS - len(self._draft.values),
        )
        largest = self._max_record_bytes + RECORD_OVERHEAD_BYTES
        room = min(room, records * RECORD_OVERHEAD_BYTES, largest)
        if self._closed is not None or self._admissions or room < 0:
            room = 0
        self._room = self._room_given = room

    def _waiting_bytes(self) -> int:
        return self._used_bytes + self._draft.size_bytes + self._room_given - self._room

    def _wake(self) -> None:
        sleeper, self._sleeper = self._sleeper, None  # once is enough: the fast path looks here
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)
