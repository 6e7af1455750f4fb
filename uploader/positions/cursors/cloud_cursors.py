"""CloudCursors: the named cursors and pins of a log in object storage. A cursor keeps the records from it on.

:class:`uploader.positions.cursors.cursor_objects.CursorObjects` has the objects. A handle, made by
:meth:`CloudCursors.open`, asks for its changes by the rule of all cursors, as the cursors of a
:class:`walstore.Wal` do. The methods that name the cursor instead are older, and live for one version more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

from uploader.format.cloud_cursor import CloudCursor
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import find_root
from uploader.positions.cursors.cursor_objects import CursorObjects
from uploader.positions.cursors.object_backend import ObjectBackend, hold_us
from uploader.root.write_guard import missing
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.files.locks import this_process
from walstore.core.ports import Clock
from walstore.core.runtime.old_names import warn_old
from walstore.core.runtime.threads import Worker
from walstore.errors import CursorMovedError, InvalidSettingsError
from walstore.positions.cursor import Cursor
from walstore.records import Start


class CloudCursors(CursorObjects):
    """The cursors of one log, as one program sees them. Any number of tasks may call it.

    All methods pass on the store's errors; those that change a cursor raise ContentionError if other
    programs' changes come first 200 times. When one of them is cancelled, the change may still happen. The
    next call that changes the cursor checks for a collection, and may undo it.
    """

    @classmethod
    def of_store(
        cls,
        store: ObjectStore,
        *,
        retry: RetryPolicy,
        clock: Clock,
        worker: Worker,
        check_home: Callable[[], None] = lambda: None,
        known: Callable[[], int] = lambda: 0,
    ) -> CloudCursors:
        """Return the cursors of the log in ``store``, written in the name of this process.

        The callables are as in the constructor.
        """

        async def newest() -> Manifest:
            root = await find_root(store, retry=retry, worker=worker)
            if not root.is_known:
                raise missing(store.url)
            return root.manifest

        return cls(
            store,
            newest=newest,
            retry=retry,
            clock=clock,
            writer=this_process(),
            check_home=check_home,
            known=known,
        )

    async def open(
        self,
        name: str,
        *,
        start: Start | str | int = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on a cursor: its commits fail if another program moved the cursor since.

        A new cursor begins at ``start``: ``"earliest"``, ``"latest"`` or an offset. With ``lease_seconds`` it
        is a pin, and each change by the handle extends it. Without, an existing pin keeps its expiry.
        InvalidSettingsError for a lease on a cursor that is not a pin; otherwise as :meth:`commit`.
        """
        return await self._handles.open(name, start=start, lease_seconds=lease_seconds)

    async def create(self, name: str, position: int) -> CloudCursor:
        """Old: return the cursor of that name, creating it at ``position`` if needed; durable by then.

        Errors as :meth:`commit`.
        """
        warn_old("CloudCursors.create(name, position) is open(name, start=position) now")
        offsets = await self.offsets(position)

        def make(found: CloudCursor | None) -> CloudCursor:
            return found or self.new(name, position, offsets)

        return await self.swap(name, make)

    async def commit(
        self, name: str, position: int, *, seen: CloudCursor | None = None
    ) -> CloudCursor:
        """Old: move a cursor forward to ``position``, or create it there; durable when it returns.

        ``position`` is the offset of the next record that its reader wants, 1 or more. With ``seen``, only
        if no other program moved it since. A pin keeps its expiry. ValueError if the cursor is already
        further on (see :meth:`rewind`), CursorMovedError if it is not as seen, OffsetTrimmedError if it is
        new and the records it asks for are collected, or being collected: then it is as it was before;
        OffsetNotWrittenError beyond the log's tail.
        LogNotFoundError if the log was destroyed.
        OutcomeUnknownError if the store does not report the outcome; call again.
        """
        warn_old(
            "CloudCursors.commit() is (await cursors.open(name, start=position)).commit(position) now"
        )
        return await self.move(name, position, seen=seen)

    async def rewind(
        self, name: str, position: int, *, seen: CloudCursor | None = None
    ) -> CloudCursor:
        """Old: move a cursor to ``position``, forward or back. Otherwise as :meth:`commit`."""
        warn_old(
            "CloudCursors.rewind() is (await cursors.open(name, start=position)).rewind(position) now"
        )
        return await self.move(name, position, seen=seen, is_rewind=True)

    async def pin(self, name: str, position: int, *, seconds: float) -> CloudCursor:
        """Old: keep everything from ``position`` on for ``seconds`` from now; more than 0, at most 100 years.

        Creates the pin, or moves it forward or back. InvalidSettingsError if there is a cursor of that
        name that is not a pin; otherwise as :meth:`commit`.
        """
        warn_old("CloudCursors.pin() is open(name, start=position, lease_seconds=seconds) now")
        return await self.move(name, position, expires_us=self._expiry(seconds), is_rewind=True)

    async def renew(self, name: str, *, seconds: float) -> CloudCursor:
        """Old: let a pin hold for ``seconds`` from now, at its position.

        CursorMovedError if it is gone; InvalidSettingsError if it is not a pin; OffsetTrimmedError if it had
        expired and its records were collected. Otherwise as :meth:`commit`.
        """
        warn_old(
            "CloudCursors.renew() is (await cursors.open(name, lease_seconds=seconds)).renew() now"
        )
        expires_us = self._expiry(seconds)

        def make(found: CloudCursor | None) -> CloudCursor:
            if found is None:
                raise _moved(name, expected=None, found=None)
            if found.expires_us is None:
                raise InvalidSettingsError(f"cursor {name!r} holds for good; it is no pin")
            return self._signed(found, expires_us)

        return await self.swap(name, make)

    async def settle(self) -> None:
        """Not for callers: return when the changes that handles have begun are done."""
        await self._handles.queue.settle()

    @cached_property
    def _handles(self) -> ObjectBackend:
        return ObjectBackend(self)

    async def move(
        self,
        name: str,
        position: int,
        *,
        seen: CloudCursor | None = None,
        expires_us: int | None = None,
        is_rewind: bool = False,
    ) -> CloudCursor:
        """Not for callers: move a cursor by its name, as :meth:`commit`; handles are for everybody else."""
        if seen is not None and not isinstance(seen, CloudCursor):
            raise TypeError(f"seen must be a CloudCursor, not {type(seen).__name__}")
        offsets = await self.offsets(position)

        def make(found: CloudCursor | None) -> CloudCursor:
            if seen is not None and not _is_as_seen(found, seen):
                raise _moved(name, expected=seen, found=found)
            if found is not None and position < found.position and not is_rewind:
                raise ValueError(
                    f"commit({position}) would move cursor {name!r} back from {found.position}; "
                    "use rewind() if that is meant"
                )
            if expires_us is not None and found is not None and found.expires_us is None:
                raise InvalidSettingsError(
                    f"cursor {name!r} holds for good; give the pin another name"
                )
            kept_us = found.expires_us if found and expires_us is None else expires_us
            return self.new(name, position, offsets, expires_us=kept_us)

        return await self.swap(name, make)

    # -- inside ------------------------------------------------------------------------------

    def _expiry(self, seconds: float) -> int:
        return self.clock.now_us() + hold_us(seconds)

    def _signed(self, found: CloudCursor, expires_us: int) -> CloudCursor:
        now_us = self.clock.now_us()
        return dataclasses.replace(
            found, expires_us=expires_us, epoch_us=now_us, writer=self.writer
        )


def _is_as_seen(found: CloudCursor | None, seen: CloudCursor) -> bool:
    """Return whether a cursor is the one that was read earlier; a check since then is not a move."""
    return found is not None and (found.etag == seen.etag or found == seen.checked())


def _moved(
    name: str, *, expected: CloudCursor | None, found: CloudCursor | None
) -> CursorMovedError:
    return CursorMovedError(
        f"cursor {name!r} was " + ("deleted" if found is None else "moved by another program"),
        expected=None if expected is None else expected.position,
        actual=None if found is None else found.position,
        cursor=name,
    )
