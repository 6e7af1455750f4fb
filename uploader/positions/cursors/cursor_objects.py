"""CursorObjects: the objects of a log's cursors in a store. Loads, lists and swaps them.

Owns the objects under ``cursor/``: created if absent, swapped by ETag, read back when an answer is lost.
Never deletes one, reads records or touches the manifest.

A cursor that is new, moves back, or may have expired asks for records that a collector may be about to drop.
So the cursor is written first and checks for a collection afterwards, while a collector announces a
collection first and checks for cursors afterwards: one of the two sees the other (docs/collection.md). If the
cursor came too late, the change is undone and the caller gets an error.

Until then the object is marked unchecked, and contains the cursor before the change. So a process that dies
in between leaves nothing that others would rely on: the next change of the cursor checks first, and undoes
the earlier one if needed.

Every change, including an undo or a removal, is a swap of what was read. A late one finds another object and
does nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.document import MOST_SMALL_BYTES
from uploader.format.manifest import Manifest
from uploader.root.garbage_file import announced_head
from uploader.root.stored_document import StoredDocument
from uploader.root.swapped_document import SwappedDocument
from uploader.runtime.task_groups import settle_all
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.offset_range import OffsetRange
from walstore.core.ports import Clock
from walstore.core.runtime.owned import Owned
from walstore.errors import CorruptionError

logger = logging.getLogger("walstore.cursors")

_AT_ONCE: Final = 10

Make = Callable[[CloudCursor | None], CloudCursor]
"""Returns what a cursor, or none, becomes. Called again if another change comes first."""


class CursorObjects(Owned):
    """The cursors of one log, as objects. Any number of tasks may call it; see the module."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        newest: Callable[[], Awaitable[Manifest]],
        retry: RetryPolicy,
        clock: Clock,
        writer: str,
        check_home: Callable[[], None] = lambda: None,
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        """``newest`` reads the log's newest manifest; ``writer`` names this program in the objects;
        ``check_home`` raises for a caller on another event loop than that of the log; ``known`` returns the
        log's tail as the caller read it last, which saves requests."""
        self.url = store.url
        """Not for callers: the location of the log."""
        self.check_home = check_home
        """Not for callers: raises for a caller on another event loop than that of the log."""
        self._store = store
        self._read_newest = newest
        self._known = known
        self._tail = 0
        self._retry = retry
        self.clock = clock
        """Not for callers: the clock of the objects."""
        self.writer = writer
        """Not for callers: names this program in the objects."""

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self.check_home()

    async def load(self, name: str) -> CloudCursor | None:
        """Return a cursor, or None if there is none of that name.

        InvalidSettingsError for an invalid name, CorruptionError if the object is damaged.
        """
        found = await self._find(name)
        return None if found is None or found.is_removed else found

    async def list(self, *, strict: bool = False) -> list[CloudCursor]:
        """Return all cursors, by name.

        Objects in the folder that are not cursors are left out with a warning; with ``strict`` they are a
        CorruptionError, as in wal3, since one of them might be a cursor that a program relies on. Objects in
        folders below belong to another log, since cursors have no folders.
        """
        names: list[str] = []
        async for listed in self._store.list(layout.CURSOR_FOLDER):
            if "/" in listed.key.removeprefix(layout.CURSOR_FOLDER):
                continue
            try:
                names.append(layout.parse_cursor_path(listed.key))
            except ValueError as error:
                if strict:
                    raise CorruptionError(
                        "this is not the key of a cursor; remove the object", path=listed.key
                    ) from error
                logger.warning("%s is not a cursor", listed.key)
        names.sort()
        found: list[CloudCursor] = []
        for low in range(0, len(names), _AT_ONCE):
            loading = (
                self._load_listed(name, strict=strict) for name in names[low : low + _AT_ONCE]
            )
            found += [loaded for loaded in await settle_all(loading) if loaded is not None]
        return found

    async def swap(self, name: str, make: Make) -> CloudCursor:
        """Not for callers: replace a cursor with what ``make`` makes of it, and return that, durable.

        OffsetTrimmedError, and it is as before, if what it asks for is collected, or being collected;
        OutcomeUnknownError if the store does not report the outcome, and what ``make`` raises.
        """
        lost = 0
        while True:
            left = await self._find(name)
            if left is not None and left.is_unchecked:
                await self._settle(left)
            else:
                found = None if left is None or left.is_removed else left
                made = make(found)
                if made is found or (found is None and made.is_removed):
                    return made
                written = await self._write(left, made)
                if written is not None:
                    return written
            lost += 1
            await self._document(name).pause(lost)

    async def delete(self, name: str) -> bool:
        """Remove a cursor, so that it no longer holds anything, damaged or not; return whether there was one.

        Its object stays, as an expired pin. OutcomeUnknownError if the store does not report the outcome;
        call again.
        """
        was_there = False

        def make(found: CloudCursor | None) -> CloudCursor | None:
            nonlocal was_there
            was_there = found is not None and not found.is_removed
            return self.removed(name, found.position) if found and was_there else None

        await self._document(name).change(make)
        return was_there

    async def delete_damaged(self, name: str) -> bool:
        """Remove a cursor's object if it cannot be read, and only that object; False if there is none.

        OutcomeUnknownError if the store does not report the outcome; call again.
        """
        document = self._document(name)
        stored = await document.read()
        if stored.damage is None:
            return False
        removed = self.removed(name, layout.FIRST_OFFSET)
        return (await document.swap(removed, stored)).put is not None

    def new(
        self, name: str, position: int, offsets: OffsetRange, *, expires_us: int | None = None
    ) -> CloudCursor:
        """Not for callers: return a cursor to be written now; OffsetTrimmedError below the ``offsets``."""
        offsets.check_head(position, f"what cursor {name!r} asks for was collected")
        return CloudCursor(
            name=name,
            position=position,
            epoch_us=self.clock.now_us(),
            writer=self.writer,
            expires_us=expires_us,
        )

    async def offsets(self, position: int) -> OffsetRange:
        """Not for callers: return offsets that refuse a position below 1; :meth:`swap` looks at the head.

        Reads the manifest only if the position is not in what is known; OffsetNotWrittenError if it is beyond
        the tail then.
        """
        if isinstance(position, bool) or not isinstance(position, int):
            raise TypeError(f"an offset is an int, not {type(position).__name__}")
        known = OffsetRange(layout.FIRST_OFFSET, max(self._tail, self._known()))
        if known.head <= position <= known.tail:
            return known
        newest = (await self.newest()).offsets
        newest.check_tail(position, "a cursor may not be beyond what readers see")
        return newest if position < known.head else known

    async def newest(self) -> Manifest:
        """Not for callers: return the newest manifest."""
        manifest = await self._read_newest()
        self._tail = max(self._tail, manifest.next_offset)
        return manifest

    # -- inside ------------------------------------------------------------------------------

    def _document(self, name: str) -> SwappedDocument[CloudCursor | None]:
        """Return the object of a cursor; a damaged one stands at the log's first offset."""
        held = CloudCursor(name=name, position=layout.FIRST_OFFSET, epoch_us=0, writer="")
        return SwappedDocument(
            self._store,
            layout.cursor_path(name),
            partial(CloudCursor.parse, name=name),
            retry=self._retry,
            question=f"cursor {name!r} was written; call again",
            damaged=lambda _: held,
            most_bytes=MOST_SMALL_BYTES,
        )

    async def _find(self, name: str) -> CloudCursor | None:
        """Return the cursor in the object, even a removed one; None if there is no object."""
        stored = await self._document(name).read()
        if stored.damage is not None:
            raise stored.damage
        return stored.value and dataclasses.replace(stored.value, etag=stored.etag)

    async def _settle(self, found: CloudCursor) -> None:
        """End a change that another call left unchecked."""
        head = (await self._kept())[0].head
        if found.position >= head:
            await self._put(found.etag, found.checked())
        else:
            await self._undo(found, head)

    async def _load_listed(self, name: str, *, strict: bool) -> CloudCursor | None:
        try:
            return await self.load(name)
        except CorruptionError as error:
            if strict:
                raise
            logger.warning("cursor %s is damaged: %s", name, error)
            return None

    async def _write(self, left: CloudCursor | None, made: CloudCursor) -> CloudCursor | None:
        """Replace ``left``, which is settled, with a cursor; None if another change came first."""
        before = None if left is None or left.is_removed else left
        if before is not None and (made.is_removed or _holds(before, made)):
            if (before.position, before.expires_us) == (made.position, made.expires_us):
                return before
        else:
            made = dataclasses.replace(made, is_unchecked=True, before=before)
        if left is None:
            # Otherwise each call would leave a cursor in a destroyed log: none is ever deleted.
            await self.newest()
        put = await self._put(None if left is None else left.etag, made)
        return await self._check(put) if put is not None and put.is_unchecked else put

    async def _check(self, made: CloudCursor) -> CloudCursor | None:
        """Check for a collection, then mark the object as checked; None to begin again.

        OffsetTrimmedError, and the change is undone, if a collection came first. None if another program has
        settled the change meanwhile, or made its own: then only the object shows the outcome of this one,
        since what was found here may be older than what that program found.
        """
        kept, is_pending = await self._kept()
        if made.position >= kept.head:
            return await self._put(made.etag, made.checked())
        if not await self._undo(made, kept.head):
            return None
        why = f"what cursor {made.name!r} asks for was collected"
        if is_pending:
            why = (
                f"what cursor {made.name!r} asks for is being collected: begin at {kept.head}, or try again "
                "when the collection is done; if none runs, one was interrupted: "
                f"'walstore gc apply {self.url} --confirm' ends it"
            )
        raise kept.trimmed(made.position, why)

    async def _kept(self) -> tuple[OffsetRange, bool]:
        """Return the offsets that no announced collection takes, and whether there is one to be carried out.

        Reads the announcement first, then the manifest, which shows a collection carried out in between.
        """
        head = await announced_head(self._store)
        offsets = (await self.newest()).offsets
        return OffsetRange(max(head, offsets.head), offsets.tail), head > offsets.head

    async def _undo(self, made: CloudCursor, head: int) -> bool:
        """Put back what was there before; False if another program has changed it since."""
        before = made.before or self.removed(made.name, head)
        return await self._put(made.etag, before) is not None

    async def _put(self, etag: str | None, made: CloudCursor) -> CloudCursor | None:
        """Replace the object that has this ETag, or create it without one; None if that is not there.

        OutcomeUnknownError if the store does not report the outcome.
        """
        swap = await self._document(made.name).swap(made, StoredDocument(None, etag))
        return swap.put and dataclasses.replace(swap.put, etag=swap.newest.etag)

    def removed(self, name: str, position: int) -> CloudCursor:
        """Not for callers: return what replaces a cursor that is removed."""
        now_us = self.clock.now_us()
        return CloudCursor.removed(name, position, epoch_us=now_us, writer=self.writer)


def _holds(before: CloudCursor, made: CloudCursor) -> bool:
    """Return whether a checked cursor always holds what another one asks for, at any time."""
    return before.expires_us is None and made.position >= before.position
