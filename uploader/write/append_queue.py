"""AppendQueue: appends that wait to be cut into fragments. Bounded by bytes and records.

Everything here belongs to the event loop; only room is awaited. Offsets are not final before the commit: the
queue knows the offset that a record gets if no other writer appends meanwhile.

Invariants (tests/uploader/write/test_append_queue.py)
  I1  Records leave in the order in which they were accepted; an append's records stay together.
  I2  Accepted and not released bytes and records stay within the budget, but for one larger append.
  I3  Room is given in the order in which callers asked; nobody overtakes a waiting caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from uploader.format.layout import MAX_U64
from uploader.write.pending_fragment import PendingFragment, mismatch, used_up
from uploader.write.writer_settings import WriterSettings
from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES, AppendRequest
from walstore.core.runtime.admissions import Admissions
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import LoopGuard
from walstore.errors import RecordTooLargeError, WalError

EARLY_BYTES = 1 << 20
"""From this size on, building a fragment takes too long to wait until the last moment."""

Ticket = asyncio.Future[int]
"""Resolves to the append's first offset once it is committed."""


class AppendQueue:
    """Bounded queue of appends, gathered into pending fragments."""

    def __init__(
        self,
        settings: WriterSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        tail: int,
        notify: Callable[[], None],
    ) -> None:
        """``notify`` is called when there may be something to cut."""
        self._settings = settings
        self._loop = loop
        self._guard = LoopGuard("log", loop)
        self._notify = notify
        self._fragments: deque[PendingFragment] = deque()
        self._admissions: Admissions[tuple[AppendRequest, int | None], Ticket] = Admissions(
            loop,
            has_room=lambda request: self._has_room(request[0]),
            accept=lambda request: self._accept(*request),
        )
        self._closed: WalError | None = None
        self.tail = tail
        """Offset of the next record to be accepted, if no other writer appends before it."""
        self.waiting_bytes = 0
        """Accepted and not released."""
        self.waiting_records = 0

    # -- appends -----------------------------------------------------------------------------

    async def add(self, group: AppendRequest, expect_offset: int | None = None) -> Ticket:
        """Accept a whole append, as soon as there is room.

        OffsetMismatchError if it would not begin at ``expect_offset`` by what is known, LimitExceededError
        if no offsets are left. Cancelled while it waits, nothing was accepted.
        """
        self._check(group)
        if not self._admissions.waiting and self._has_room(group):
            return self._accept(group, expect_offset)
        return await self._admissions.wait((group, expect_offset))

    @property
    def blocked(self) -> int:
        """How many appends wait for room."""
        return len(self._admissions.waiting)

    def close(self, error: WalError) -> None:
        """Refuse further appends, and those that wait for room; what was accepted can be taken.

        The first error counts: a log that was closed does not fail later.
        """
        self._closed = self._closed or error
        self._admissions.fail(error)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is accepted. The writer keeps this fact nowhere else."""
        return self._closed is not None

    def check_open(self) -> None:
        """Raise what :meth:`close` was given, if it was called."""
        if self._closed is not None:
            raise copy_error(self._closed)

    def check_home(self) -> None:
        """Raise WrongLoopError unless the caller runs on the writer's own event loop; WalClosedError instead
        if the writer is closed."""
        if not self._guard.is_home:
            self.check_open()
            self._guard.check()

    def abandon(self, error: WalError) -> None:
        """Refuse everything in a child process, waking nobody; see :mod:`walstore.core.runtime.resource`."""
        self._closed = error

    # -- the other end -----------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._fragments

    @property
    def is_full(self) -> bool:
        """Whether a whole fragment waits to be taken: nothing will be added to it."""
        if len(self._fragments) > 1:
            return True
        return (
            bool(self._fragments) and self._fragments[0].size_bytes >= self._settings.fragment_bytes
        )

    @property
    def is_large(self) -> bool:
        """Whether the records that wait take a while to be built into a fragment."""
        return bool(self._fragments) and self._fragments[0].size_bytes >= EARLY_BYTES

    @property
    def fragments(self) -> list[PendingFragment]:
        """What waits to be taken, oldest first."""
        return list(self._fragments)

    def take(self) -> PendingFragment:
        """Remove and return the oldest records, about a fragment at most; there must be some."""
        pending = self._fragments.popleft()
        pending.builder.pad()
        return pending

    def release(self, size_bytes: int, records: int) -> None:
        """Give back the room of records that are decided, and admit appends that wait for it."""
        self.waiting_bytes -= size_bytes
        self.waiting_records -= records
        self._admissions.admit()

    # -- inside ------------------------------------------------------------------------------

    def _check(self, group: AppendRequest) -> None:
        self.check_open()
        size_bytes = group.size_bytes - RECORD_OVERHEAD_BYTES * group.count
        settings = self._settings
        name, limit = "pending_bytes", settings.pending_bytes
        if group.count == 1:
            name, limit = "max_record_bytes", settings.max_record_bytes
        if size_bytes > limit:
            what = "record" if group.count == 1 else "atomic group"
            raise RecordTooLargeError(
                f"the {what} has {size_bytes} bytes; {name} is {limit}",
                size_bytes=size_bytes,
                limit_bytes=limit,
            )

    def _has_room(self, group: AppendRequest) -> bool:
        if not self.waiting_records:
            return True
        settings = self._settings
        return (
            self.waiting_bytes + group.size_bytes <= settings.pending_bytes
            and self.waiting_records + group.count <= settings.pending_records
        )

    def _accept(self, group: AppendRequest, expect_offset: int | None) -> Ticket:
        if expect_offset is not None and expect_offset != self.tail:
            raise mismatch(expect_offset, self.tail)
        if self.tail + group.count > MAX_U64:
            raise used_up()
        fragments, most = self._fragments, self._settings.fragment_bytes
        was_empty = not fragments
        before = 0 if was_empty else fragments[-1].size_bytes
        if was_empty or (before and before + group.size_bytes > most):
            fragments.append(PendingFragment())
            before = 0
        ticket: Ticket = self._loop.create_future()
        fragments[-1].add(group, ticket, expect_offset)
        self.tail += group.count
        self.waiting_bytes += group.size_bytes
        self.waiting_records += group.count
        after = before + group.size_bytes
        if was_empty or before < EARLY_BYTES <= after or after >= most or before == 0:
            self._notify()
        return ticket
