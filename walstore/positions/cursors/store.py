"""CursorStore: the named cursors of one log, for one process. Makes, lists and deletes them.

Used in the writer's process and, with a view of the log, in others. It never changes a cursor itself; its
:class:`RequestQueue` does, in files or, of a replicated log, in the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from walstore.core.offset_range import OffsetRange
from walstore.core.ports import Clock, FileSystem
from walstore.core.read.reader import Reader
from walstore.core.runtime.statistics import Followers
from walstore.core.runtime.threads import Lane, Worker
from walstore.core.validation.arguments import as_seconds
from walstore.errors import InvalidSettingsError, WalClosedError
from walstore.positions.change import CursorChange
from walstore.positions.cursor import Cursor, CursorBackend
from walstore.positions.cursor_state import TAG_BYTES, CursorInfo, CursorState, check_name
from walstore.positions.cursors.directory import CursorTable, describe_cursor, list_cursors
from walstore.positions.cursors.kept import list_all_cursors, refuse_copy
from walstore.positions.cursors.kept_queue import KeptQueue
from walstore.positions.cursors.queue import Act, CursorQueue
from walstore.records import Start

_MOST_LEASE_SECONDS = 10 * 365 * 86_400


def _make_worker() -> Lane:
    return Worker("cursors")


class CursorLog(Protocol):
    """What cursors need of their log. Belongs to the event loop."""

    @property
    def path(self) -> Path:
        """The log's directory."""

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

    def reader(self, start: Start | str | int | datetime, /, *, follow: bool) -> Reader:
        """Return a reader of durable records."""


class CursorStore(CursorBackend):
    """The cursors of one log, as one process sees them. Belongs to one event loop."""

    def __init__(
        self,
        log: CursorLog,
        *,
        fs: FileSystem,
        clock: Clock,
        owner: str,
        check_home: Callable[[], None],
        make_worker: Callable[[], Lane] = _make_worker,
        make_tag: Callable[[int], bytes] = os.urandom,
        kept: KeptQueue | None = None,
        is_guest: bool = False,
    ) -> None:
        """Work on the directory of ``log``.

        ``owner`` names this process in the files. ``check_home()`` raises where the log refuses to be
        used: in a child process, another thread or another event loop. ``make_worker()`` is called for
        the first blocking call, and its result is closed with the store; nothing else may wait for that
        lane, since commits sync. ``make_tag(8)`` returns a unique name for a handle. ``kept`` changes the
        cursors of a log that keeps them in itself. A guest does not have the log open for writing; it only
        lists the cursors of a replicated one.
        """
        self._log = log
        self._fs = fs
        self._clock = clock
        self._make_worker = make_worker
        self._worker: Lane | None = None
        self._is_closed = False
        self._make_tag = make_tag
        self._owner = owner
        self.check_home = check_home
        self._kept = kept
        self._list = list_all_cursors if is_guest else list_cursors
        self.queue = kept or CursorQueue(
            fs=fs,
            clock=clock,
            worker=self._blocking,
            directory=log.path,
            owner=owner,
            check=partial(refuse_copy, fs, log.path) if is_guest else lambda: None,
        )
        self._handles: Followers[Cursor] = Followers()
        self._watched: dict[str, Cursor] = {}

    async def open(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the cursor ``name``; a new one begins at ``start``.

        ``start`` is ``"earliest"``, ``"latest"`` (after what readers see), an offset, or an aware datetime.
        ``lease_seconds`` (more than 0) gives the cursor a lease of that length, or another length,
        from now; None leaves it unchanged, and gives a new cursor none: then it pins until it is deleted.
        An existing lease is always extended.

        If cancelled, the cursor may still be made. Raises ValueError for a bad name,
        OffsetNotWrittenError or OffsetTrimmedError for a ``start`` outside the log,
        OffsetTrimmedError also for a cursor whose position was removed after its lease ended (delete
        it to begin again), CorruptionError, FormatVersionError, and what a commit raises for the disk.
        """
        self.check_home()
        name = check_name(name)
        lease_us = None if lease_seconds is None else _lease_us(lease_seconds)
        offset = await self._resolve(start)
        known = self._known()
        writer = self._make_tag(TAG_BYTES)

        def open_it(held: CursorTable) -> CursorState:
            found = held.read(name)
            if found is None:
                position = known.offsets(held).head if offset is None else offset
                found = CursorState(position, 1, writer, 0, 0, 0, "")
            elif not (lease_us or found.lease_us):
                known.check_retained(held, name, found.position)
                return found
            known.check_retained(held, name, found.position)
            made = found.renewed(self._clock.now_us(), self._owner, lease_us)
            held.write(name, made)
            return made

        state = await self.queue.perform(open_it)
        found = Cursor(name, state, writer=writer, backend=self)
        self._handles.add(found)
        return found

    def resume(self, name: str, state: CursorState, writer: bytes) -> Cursor:
        """Return the handle of another process again: what it last saw, and the tag of what it wrote.

        ValueError for a bad name or tag. Reads nothing; a change by anybody else is found by the next commit.
        """
        self.check_home()
        if len(writer) != TAG_BYTES:
            raise ValueError(f"a tag has {TAG_BYTES} bytes, not {len(writer)}")
        return Cursor(check_name(name), state, writer=writer, backend=self)

    def watch(self, cursor: Cursor) -> None:
        """Count the cursor of another process for :meth:`lags`, as its last call here left it.

        It counts after that process has ended, too, until its lease ends or it is deleted: what nobody moves
        any more is what an alert is for.
        """
        self._watched.pop(cursor.name, None)
        if not cursor.is_deleted:
            self._watched[cursor.name] = cursor

    def lags(self, limit: int) -> dict[str, int]:
        """Return by name how far the cursors in use here are behind ``limit``. For any thread.

        In use is one with a live handle, and one that :meth:`watch` was told of.
        """
        lags: dict[str, int] = {}
        now_us, watched = self._clock.now_us(), self._watched.copy()
        for handle in (*self._handles.alive(), *watched.values()):
            is_watched = watched.get(handle.name) is handle
            if handle.is_deleted or (is_watched and handle.state.is_expired(now_us)):
                continue
            lag = max(limit - handle.position, 0)
            lags[handle.name] = min(lag, lags.get(handle.name, lag))
        return lags

    def check_position(self, position: int) -> None:
        """As of :class:`CursorBackend`."""
        OffsetRange(self._log.head, self._log.visible_limit).check_tail(
            position, "a cursor may not be beyond what readers see"
        )

    async def wait_durable(self, offset: int) -> None:
        """As of :class:`CursorBackend`."""
        await self._log.wait_durable(offset)

    def swap(self, change: CursorChange) -> Act[CursorState]:
        """As of :class:`CursorBackend`."""
        known = self._known()

        def act(held: CursorTable) -> CursorState:
            found = held.read(change.name)
            made = change.made_of(
                found,
                now_us=self._clock.now_us(),
                owner=self._owner,
                check_retained=partial(known.check_retained, held, change.name),
            )
            if made is None:
                if found is not None:
                    held.remove(change.name)
                return change.seen
            if made is not found:
                held.write(change.name, made)
            return made

        return act

    async def list(self) -> list[CursorInfo]:
        """Return the cursors by name, damaged ones included. Takes no lock."""
        self.check_home()
        if self._kept is not None:
            await self._kept.check_current()
            return self._kept.infos(self._clock.now_us())
        try:
            found = await self._blocking().run(
                self._list, self._fs, self._log.path, self._clock.now_us()
            )
        except OSError as error:
            raise describe_cursor(error, self._log.path, "not_written") from error
        for name in self._watched.keys() - {info.name for info in found}:
            self._forget(name)  # 'walstore cursors' of another process removed it
        return found

    async def delete(self, name: str) -> bool:
        """Remove a cursor and its pin, even if others use it or it is damaged.

        Returns whether there was one. Its handles fail with CursorMovedError from then on.
        """
        self.check_home()
        name = check_name(name)
        was_there: bool = await self.queue.perform(lambda held: held.remove(name))
        self._forget(name)
        return was_there

    def _forget(self, name: str) -> None:
        """Count a cursor that is gone no longer, whoever has handles on it."""
        self._watched.pop(name, None)
        for handle in self._handles.alive():
            if handle.name == name:
                handle.is_deleted = True

    async def aclose(self) -> None:
        """Return when the pending requests are done; refuse further ones."""
        await self.queue.aclose()
        self._is_closed = True
        if self._worker is not None:
            self._worker.close()

    def _blocking(self) -> Lane:
        if self._worker is None:
            if self._is_closed:
                raise WalClosedError("the log is closed")
            self._worker = self._make_worker()
        return self._worker

    async def _resolve(self, start: Start | str | int | datetime) -> int | None:
        """Return the offset of ``start``; None for the head, which is known only under the lock."""
        if isinstance(start, str) and start == Start.EARLIEST:
            return None
        async with self._log.reader(start, follow=False) as reader:
            offset = reader.position
        self.check_position(offset)
        return offset

    def _known(self) -> _KnownLimits:
        return _KnownLimits(self._log.tier_head, self._log.visible_limit)


class _KnownLimits(NamedTuple):
    """The limits of a log that the lock of its cursors does not keep in place, as an act begins.

    A log's limits belong to its event loop, and an act is done on another thread.
    """

    tier_head: int | None
    visible_limit: int

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


def _lease_us(seconds: float) -> int:
    if not 0 < as_seconds(seconds, "lease_seconds") <= _MOST_LEASE_SECONDS:
        raise InvalidSettingsError(
            f"lease_seconds must be more than 0 and at most ten years, not {seconds!r}"
        )
    return max(1, round(seconds * 1e6))
