"""Cursor: a handle on a named, durable position in a log, moved by compare-and-swap.

A handle remembers the content of the file when it last read or wrote it, and changes the file only
while that is unchanged. The log's :class:`RequestQueue` makes the changes, one at a time for each
handle. A replicated log keeps the same content in itself (``kept.py``); here that is called a file, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from walstore.cursors.directory import CursorState, CursorTable
from walstore.cursors.queue import Act, CursorRequest, RequestQueue
from walstore.errors import CursorMovedError, WalError
from walstore.offset_range import OffsetRange
from walstore.ports import Clock
from walstore.runtime.owned import Owned
from walstore.validation.arguments import as_int

_MICROSECONDS: Final = 1_000_000


class CursorLimits(Protocol):
    """The limits of a log's cursors. Belongs to the event loop."""

    @property
    def head(self) -> int:
        """First retained offset, in any tier."""

    @property
    def tier_head(self) -> int | None:
        """First offset that can be read from a tier below the local head; None if there is none."""

    @property
    def visible_limit(self) -> int:
        """Offset after the last record that readers see; no cursor may be above it."""

    async def wait_durable(self, offset: int) -> None:
        """Return when no crash can lose the record, if this process can ensure that: a durable cursor must
        not be beyond the durable limit."""


@dataclass(frozen=True, slots=True)
class CursorContext:
    """What the cursors of a log share in one process."""

    limits: CursorLimits
    queue: RequestQueue
    clock: Clock
    owner: str
    """Names this process in the files."""
    check_home: Callable[[], None]
    """Raises in a child process, another thread or another event loop."""


@dataclass(slots=True)
class _Move:
    """A requested move that no round has taken yet."""

    request: CursorRequest[CursorState]
    position: int
    is_checked: bool
    """Whether this is a rewind, whose position may be below the head."""


class Cursor(Owned):
    """A named position: the offset of the next record to read. Made by :meth:`walstore.Wal.cursor`.

    Retention keeps everything from there on, unless the cursor has a lease that ended. A cursor may
    have any number of handles, also in other processes; a commit fails if another handle committed
    since this one last read the cursor. All methods belong to the event loop of the log: from another
    thread or event loop they raise WrongLoopError. The properties may be read on any thread.
    """

    def __init__(
        self,
        *,
        name: str,
        state: CursorState,
        context: CursorContext,
        writer: bytes,
        is_unsure: bool = False,
    ) -> None:
        """Not for callers; see :meth:`walstore.Wal.cursor`."""
        # Set once; the methods below read them on the worker's thread.
        self.name = name
        """Its name; unique in the log."""
        self._context = context
        self._writer = writer
        # Content of the file when this handle last read or wrote it. Changes only between rounds.
        self._seen = state
        # Whether a change by this handle ended with an unknown outcome.
        self._is_unsure = is_unsure
        self.is_deleted = False
        """Not for callers: whether the cursor is known to be gone."""
        # The move that the next round takes, and the target of the one in progress.
        self._waiting: _Move | None = None
        self._underway: int | None = None

    @property
    def position(self) -> int:
        """Offset of the next record to read, as this handle last read or committed it."""
        return self._seen.position

    @property
    def state(self) -> CursorState:
        """Not for callers: the content of the cursor when this handle last read or wrote it."""
        return self._seen

    @property
    def writer(self) -> bytes:
        """Not for callers: the tag by which this handle knows what it wrote."""
        return self._writer

    @property
    def target(self) -> int:
        """Where the cursor will be once the commits in progress have succeeded."""
        if self._waiting is not None:
            return self._waiting.position
        return self.position if self._underway is None else self._underway

    @property
    def lease_seconds(self) -> float | None:
        """How long a commit or :meth:`renew` keeps the pin; None: without end."""
        return self._seen.lease_us / _MICROSECONDS or None

    async def commit(self, offset: int) -> None:
        """Move to ``offset``, the offset of the next record to read; durable when it returns.

        Also extends the lease. Commits made while another is being written share one write; the latest
        wins. A commit to the cursor's present position only checks that it is unchanged, unless there
        is a lease to extend. Of a replicated log it returns when enough machines have it, and all commits
        made at one moment share one change of the log.

        If cancelled, the move may still happen. Raises CursorMovedError if another handle committed
        since (see :meth:`refresh`) or the cursor was deleted, ValueError if ``offset`` is before the
        position (see :meth:`rewind`), OffsetNotWrittenError beyond what readers see, OffsetTrimmedError
        if a commit whose outcome was unknown let the head pass ``offset``, WalLockedError if another
        process holds the cursors for half a minute, DiskFullError, StorageUnavailableError, and
        OutcomeUnknownError. After the last four the commit may be retried. Of a replicated log also
        FencedError, and LimitExceededError for what a log remembers.
        """
        offset = self._check(offset)
        target = self.target
        if offset < target:
            raise ValueError(
                f"commit({offset}) would move cursor {self.name!r} back from {target}; "
                "to read records again, use Cursor.rewind() or Consumer.seek()"
            )
        if offset > 1:
            await self._context.limits.wait_durable(offset - 1)
        if offset == self._seen.position == target and not self._is_unsure:
            known = KnownLimits.of(self._context.limits)
            await self._perform(lambda held: self._renew(held, known))
        else:
            await self._move(offset, is_checked=False)

    async def rewind(self, offset: int) -> None:
        """Move to ``offset``, also backwards, so that records are read again. Otherwise as
        :meth:`commit`."""
        offset = self._check(offset)
        if offset > 1:
            await self._context.limits.wait_durable(offset - 1)
        await self._move(offset, is_checked=True)

    async def renew(self) -> None:
        """Extend the lease to its full length from now; does nothing without one.

        Raises CursorMovedError if another handle committed since, OffsetTrimmedError if the lease had
        ended and the position was removed meanwhile, and what :meth:`commit` raises for the disk.
        """
        if self._seen.lease_us:
            known = KnownLimits.of(self._context.limits)
            await self._perform(lambda held: self._renew(held, known))

    async def refresh(self) -> int:
        """Read the cursor again, which others may have moved, and return its position.

        The returned position is durable. The next commit fails only if another handle commits after
        this. Raises CursorMovedError if the cursor was deleted, and what :meth:`commit` raises for the
        disk; of a replicated log StorageUnavailableError if another machine may lead it.
        """
        await self._context.queue.check_current()
        await self._perform(self._present)
        return self.position

    async def delete(self) -> None:
        """Remove the cursor and its pin; does nothing if it is deleted already.

        Raises CursorMovedError if another handle committed since. The handle cannot be used afterwards.
        """
        await self._perform(self._remove)
        self.is_deleted = True

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._context.check_home()

    def __repr__(self) -> str:
        return f"<Cursor {self.name!r} at {self.position}>"

    # -- on the event loop -------------------------------------------------------------------

    def _check(self, given: int) -> int:
        offset = as_int(given, "the position of a cursor")
        check_visible(self._context.limits, offset)
        return offset

    async def _move(self, offset: int, *, is_checked: bool) -> None:
        move = self._waiting
        if move is None:
            request = CursorRequest(self, self._begin_move, self._end)
            move = self._waiting = _Move(request, offset, is_checked)
            try:
                self._context.queue.put(request)  # which may begin it
            except BaseException:
                self._waiting = None
                raise
        else:
            move.position = offset
            move.is_checked |= is_checked
        await self._context.queue.wait(move.request)

    def _begin_move(self) -> Act[CursorState]:
        move, self._waiting = self._waiting, None
        assert move is not None
        self._underway = move.position
        known = KnownLimits.of(self._context.limits)
        return lambda held: self._write(held, move, known)

    async def _perform(self, act: Act[CursorState]) -> None:
        request = CursorRequest(self, lambda: act, self._end)
        self._context.queue.put(request)
        await self._context.queue.wait(request)

    def _end(self, outcome: CursorState | BaseException) -> None:
        """Record the outcome of a request, whether or not a caller waits for it."""
        self._underway = None
        if isinstance(outcome, CursorState):
            self._seen = outcome
            self._is_unsure = False
        elif not isinstance(outcome, WalError) or outcome.outcome == "unknown":
            self._is_unsure = True

    # -- on the queue's thread, while nothing else changes the cursors -------------------------------

    def _write(self, held: CursorTable, move: _Move, known: KnownLimits) -> CursorState:
        found = self._known(held)
        now_us = self._context.clock.now_us()
        # A commit may also move back, if an earlier one of unknown outcome has moved the cursor.
        goes_back = move.is_checked or move.position < found.position
        if goes_back or found.is_expired(now_us):
            known.check_retained(held, self.name, move.position)
        made = dataclasses.replace(
            found.renewed(now_us, self._context.owner),
            position=move.position,
            revision=found.revision + 1,
            writer=self._writer,
        )
        held.write(self.name, made)
        return made

    def _renew(self, held: CursorTable, known: KnownLimits) -> CursorState:
        found = self._known(held)
        if not found.lease_us:
            return found
        now_us = self._context.clock.now_us()
        if found.is_expired(now_us):
            known.check_retained(held, self.name, found.position)
        made = found.renewed(now_us, self._context.owner)
        held.write(self.name, made)
        return made

    def _remove(self, held: CursorTable) -> CursorState:
        if held.read(self.name) is not None:
            self._known(held)
            held.remove(self.name)
        return self._seen

    def _present(self, held: CursorTable) -> CursorState:
        found = held.read(self.name)
        if found is None:
            raise CursorMovedError(
                f"cursor {self.name!r} was deleted",
                expected=self._seen.position,
                actual=None,
                cursor=self.name,
            )
        return found

    def _known(self, held: CursorTable) -> CursorState:
        """Return the content of the file; CursorMovedError unless this handle wrote or read it."""
        found, seen = self._present(held), self._seen
        if found.tag == seen.tag:
            return found
        if found.writer == self._writer and found.revision > seen.revision:
            return found  # written by this handle, although the call failed
        raise CursorMovedError(
            f"cursor {self.name!r} was moved from {seen.position} to {found.position} "
            f"by {found.owner}; open it again, or call Cursor.refresh(), to continue from there",
            expected=seen.position,
            actual=found.position,
            cursor=self.name,
        )


def check_visible(limits: CursorLimits, position: int) -> None:
    """Raise OffsetNotWrittenError if a position is beyond the visible limit."""
    OffsetRange(limits.head, limits.visible_limit).check_tail(
        position, "a cursor may not be beyond what readers see"
    )


class KnownLimits(NamedTuple):
    """The limits of a log that the lock of its cursors does not keep in place, as an act begins.

    A log's limits belong to its event loop, and an act is done on another thread.
    """

    tier_head: int | None
    visible_limit: int

    @classmethod
    def of(cls, limits: CursorLimits) -> KnownLimits:
        """Return the limits as they are now."""
        return cls(limits.tier_head, limits.visible_limit)

    def offsets(self, held: CursorTable) -> OffsetRange:
        """Return the offsets that can be read: from the local head on, or the tier's if that is lower."""
        local = held.head()
        head = local if self.tier_head is None else min(local, self.tier_head)
        return OffsetRange(head, max(head, self.visible_limit))

    def check_retained(self, held: CursorTable, name: str, position: int) -> None:
        """Raise OffsetTrimmedError if a position is below the head, which the lock keeps in place."""
        self.offsets(held).check_head(
            position,
            f"the position of cursor {name!r} was removed from the log; commit the head to continue "
            "there, or delete the cursor",
        )
