"""Cursor: a handle on a named, durable position in a log, moved by compare-and-swap.

A handle remembers what the cursor was when it last read or wrote it, and asks for a :class:`CursorChange`.
Where the cursors are, a :class:`CursorBackend` makes the changes, one at a time for each handle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from walstore.core.runtime.owned import Owned
from walstore.core.validation.arguments import as_int
from walstore.positions.change import CursorChange, CursorVerb
from walstore.positions.cursor_state import CursorInfo, CursorState
from walstore.positions.queue import CursorRequest, RequestQueue
from walstore.records import Start

_MICROSECONDS: Final = 1_000_000


class CursorBackend:
    """The cursors of one log, wherever they are: opens, lists and deletes them, and changes them for handles.

    Files and the registers of a replicated log (:class:`walstore.positions.cursors.store.CursorStore`), or a
    served log (:class:`walstore.net.remote.cursors.RemoteCursors`). Belongs to one event loop.
    """

    check_home: Callable[[], None]
    """Raises in a child process, another thread or another event loop."""
    queue: RequestQueue
    """Does what :meth:`swap` returns, one after the other for each handle."""

    @abstractmethod
    async def open(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the cursor ``name``; a new one begins at ``start``."""

    @abstractmethod
    async def list(self) -> list[CursorInfo]:
        """Return the cursors by name, damaged ones included."""

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Remove a cursor and its pin, even if others use it; return whether there was one."""

    @abstractmethod
    def swap(self, change: CursorChange) -> Callable[..., Any]:
        """Return what the queue is to do for a change; its result is the cursor's new state."""

    def check_position(self, position: int) -> None:
        """Raise OffsetNotWrittenError for a position beyond what readers see, if that is known here."""

    async def wait_durable(self, offset: int) -> None:
        """Return when no crash can lose the record, if this process can ensure that."""


@dataclass(slots=True)
class _Move:
    """A requested move that has not begun."""

    request: CursorRequest[CursorState]
    verb: CursorVerb
    position: int


class Cursor(Owned):
    """A named position: the offset of the next record to read. Made by :meth:`walstore.Wal.cursor`.

    Retention keeps everything from there on, unless the cursor has a lease that ended. A cursor may
    have any number of handles, also in other processes; a commit fails if another handle committed
    since this one last read the cursor. All methods belong to the event loop of the log: from another
    thread or event loop they raise WrongLoopError. The properties may be read on any thread.
    """

    def __init__(
        self, name: str, state: CursorState, *, writer: bytes, backend: CursorBackend
    ) -> None:
        """Not for callers; see :meth:`walstore.Wal.cursor`."""
        self.name = name
        """Its name; unique in the log."""
        self._backend = backend
        self._writer = writer
        # What the cursor was when this handle last read or wrote it.
        self._seen = state
        self.is_deleted = False
        """Not for callers: whether the cursor is known to be gone."""
        # The move that has not begun, and the target of the one in progress.
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
        await self._move("commit", offset)

    async def rewind(self, offset: int) -> None:
        """Move to ``offset``, also backwards, so that records are read again. Otherwise as
        :meth:`commit`."""
        await self._move("rewind", self._check(offset))

    async def renew(self) -> None:
        """Extend the lease to its full length from now; does nothing without one.

        Raises CursorMovedError if another handle committed since, OffsetTrimmedError if the lease had
        ended and the position was removed meanwhile, and what :meth:`commit` raises for the disk.
        """
        if self._seen.lease_us:
            await self._perform("renew")

    async def refresh(self) -> int:
        """Read the cursor again, which others may have moved, and return its position.

        The returned position is durable. The next commit fails only if another handle commits after
        this. Raises CursorMovedError if the cursor was deleted, and what :meth:`commit` raises for the
        disk; of a replicated log StorageUnavailableError if another machine may lead it.
        """
        await self._backend.queue.check_current()
        await self._perform("refresh")
        return self.position

    async def delete(self) -> None:
        """Remove the cursor and its pin; does nothing if it is deleted already.

        Raises CursorMovedError if another handle committed since. The handle cannot be used afterwards.
        """
        await self._perform("delete")
        self.is_deleted = True

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._backend.check_home()

    def __repr__(self) -> str:
        return f"<Cursor {self.name!r} at {self.position}>"

    # -- inside ------------------------------------------------------------------------------

    def _check(self, given: int) -> int:
        offset = as_int(given, "the position of a cursor")
        self._backend.check_position(offset)
        return offset

    async def _move(self, verb: CursorVerb, offset: int) -> None:
        if offset > 1:
            await self._backend.wait_durable(offset - 1)
        queue, move = self._backend.queue, self._waiting
        if move is None:
            request: CursorRequest[CursorState]
            request = CursorRequest(self, self._begin_move, self._end)
            move = self._waiting = _Move(request, verb, offset)
            try:
                queue.put(request)  # which may begin it
            except BaseException:
                self._waiting = None
                raise
        else:
            move.position = offset
            if verb == "rewind":
                move.verb = verb
        await queue.wait(move.request)

    def _begin_move(self) -> Callable[..., Any]:
        move, self._waiting = self._waiting, None
        assert move is not None
        self._underway = move.position
        return self._begin(move.verb, move.position)

    def _begin(self, verb: CursorVerb, position: int) -> Callable[..., Any]:
        change = CursorChange(verb, self.name, position, self._seen, self._writer)
        return self._backend.swap(change)

    async def _perform(self, verb: CursorVerb) -> None:
        request = CursorRequest(self, lambda: self._begin(verb, self.position), self._end)
        self._backend.queue.put(request)
        await self._backend.queue.wait(request)

    def _end(self, outcome: CursorState | BaseException) -> None:
        """Record the outcome of a request, whether or not a caller waits for it."""
        self._underway = None
        if isinstance(outcome, CursorState):
            self._seen = outcome
