"""GroupPlace: where a group of a stored log is, how it is found, made and removed; and its cursor."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from uploader.format import layout
from uploader.format.group_document import MOST_GROUP_BYTES, GroupDocument
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.root.stored_document import StoredDocument, run_aside
from uploader.root.swapped_document import SwappedDocument
from uploader.runtime.task_groups import BackgroundTask
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.offset_range import OffsetRange
from walstore.core.ports import Clock
from walstore.core.read.reader import Reader
from walstore.errors import CorruptionError, CursorMovedError, OffsetTrimmedError, WalError
from walstore.positions.cursor import Cursor
from walstore.positions.groups.group_settings import GroupSettings

logger = logging.getLogger("walstore.groups")

_SAVE_SECONDS: Final = 1.0
"""How far the cursor, and with it what may be collected, may lag behind the floor."""
_ROW_BYTES: Final = 32


class LetterWriter(Protocol):
    """Where dead letters are appended: a :class:`uploader.CloudWriter`, or an open :class:`walstore.Wal`."""

    @property
    def append(self) -> Callable[..., Any]:
        """Appends one record with its key, stream and headers."""


class GroupRecords(Protocol):
    """What a group needs of its log."""

    @property
    def head(self) -> int:
        """First retained offset."""

    @property
    def tail(self) -> int:
        """Offset after the last one in the manifest that was read last."""

    @property
    def reader(self) -> Callable[..., Reader]:
        """Makes a reader."""

    @property
    def refresh(self) -> Callable[..., Any]:
        """Reads the manifest again."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a group is, and with what it is changed."""

    log: GroupRecords
    store: ObjectStore
    cursors: CloudCursors
    retry: RetryPolicy
    clock: Clock

    async def load(self, name: str) -> StoredDocument[GroupDocument | None]:
        """Return a group, also a removed one; None if there never was one.

        CorruptionError if it is damaged.
        """
        found = await GroupObject(self, name).read()
        if found.damage is not None:
            raise CorruptionError(
                f"group {name!r} is damaged, so nobody knows what is settled ({found.damage}); the log is "
                "unharmed. delete_group() removes the group; start= says where a new one begins",
                path=layout.group_path(name),
            ) from found.damage
        return found


class GroupObject(SwappedDocument[GroupDocument | None]):
    """The object of one group. One that is damaged is of no group: its ``made`` is empty."""

    def __init__(self, place: GroupPlace, name: str, done: str = "changed; try again") -> None:
        """``done`` is what the store may leave open."""
        super().__init__(
            place.store,
            layout.group_path(name),
            partial(GroupDocument.parse, name=name),
            retry=place.retry,
            question=f"group {name!r} was {done}",
            damaged=lambda _: GroupDocument(made="", tag=""),
            most_bytes=MOST_GROUP_BYTES,
        )

    async def _encode(self, value: GroupDocument | None) -> bytes:
        size = len(value.rows) * _ROW_BYTES if value else 0
        return await run_aside(partial(self._serialise, value), size_bytes=size)


def cursor_of(name: str, document: GroupDocument) -> str:
    """Return the name of a group's cursor. A group that is made later has another one."""
    return f"group_{name}_{document.made}"


async def remove(place: GroupPlace, name: str, tag: str, *, only: str | None = None) -> bool:
    """Remove a group, with its cursor; return whether there was one. ``only`` is the one that is meant."""
    found: GroupDocument | None = None

    def removed(document: GroupDocument | None) -> GroupDocument | None:
        nonlocal found
        found = None if document and only not in {None, document.made} else document
        if found is None or found.is_removed:
            return None
        return GroupDocument(made=found.made or tag, tag=tag, is_removed=True)

    await GroupObject(place, name, "removed; call again").change(removed)
    if found is None:
        return False
    # Also of one that was removed before: that call may have ended in between.
    if found.made:
        await remove_cursor(place, name, found)
    else:
        await _delete_cursors(place, name)
    return not found.is_removed


async def remove_cursor(place: GroupPlace, name: str, document: GroupDocument) -> None:
    """Remove the cursor of a group that is removed."""
    await place.cursors.delete(cursor_of(name, document))


async def _delete_cursors(place: GroupPlace, name: str) -> None:
    """Delete the cursors of all groups that had a name: a damaged one does not show which is its own."""
    own = re.compile(rf"group_{name}_[A-Za-z0-9]+")
    for cursor in await place.cursors.list():
        if own.fullmatch(cursor.name):
            await place.cursors.delete(cursor.name)


async def find_or_make(
    place: GroupPlace,
    name: str,
    settings: GroupSettings,
    *,
    make_tag: Callable[[], str],
    next_tag: Callable[[], str],
    check: Callable[[], None],
) -> tuple[StoredDocument[GroupDocument | None], Cursor]:
    """Return a group, and its cursor, which is at its floor or behind it.

    ``make_tag`` names a group that is made, ``next_tag`` each change. ``check`` is called between attempts,
    and raises once nobody wants the group any more. Raises as :meth:`uploader.CloudLog.group`.
    """
    refused = 0
    while True:
        check()
        found = await place.load(name)
        document = found.value
        is_new = document is None or document.is_removed
        if document is None or is_new:
            document = GroupDocument(
                made=make_tag(),
                tag=next_tag(),
                position=await _start(place, settings),
                stream=settings.stream,
                is_ordered=settings.is_ordered,
            )
            made = await GroupObject(place, name, "made; call again").swap(document, found)
            if made.put is None:
                continue
        await _check_position(place, name, document)
        try:
            cursor = await place.cursors.open(cursor_of(name, document), start=document.floor)
        except OffsetTrimmedError as error:
            # A collection came between the group and its cursor. Nobody has a job of a new group.
            if not is_new:
                raise jobs_trimmed(name, error) from error
            await remove(place, name, next_tag(), only=document.made)
            refused += 1
            if settings.start != "earliest" or refused >= place.retry.attempts:
                raise  # also if the collection was interrupted
            await place.retry.clock.sleep(place.retry.wait_seconds(refused))
            continue
        again = await place.load(name)
        if again.value and not again.value.is_removed and again.value.made == document.made:
            return again, cursor
        # It was deleted meanwhile, perhaps before it had this cursor.
        await remove_cursor(place, name, document)


def jobs_trimmed(name: str, error: OffsetTrimmedError) -> OffsetTrimmedError:
    """Return what is raised when the log no longer has jobs of a group."""
    return OffsetRange(error.head, error.tail).trimmed(
        error.requested,
        f"jobs of group {name!r} were removed from the log, so its cursor was deleted or changed by "
        "somebody; delete_group() removes the group, and start= says where a new one begins",
    )


async def _start(place: GroupPlace, settings: GroupSettings) -> int:
    """Return the offset at which a new group begins."""
    log = place.log
    await log.refresh()
    async with log.reader(settings.start) as reader:
        position = reader.position
    why = "the group cannot begin there"
    OffsetRange(log.head, log.tail).check_position(position, why, why)
    return position


async def _check_position(place: GroupPlace, name: str, document: GroupDocument) -> None:
    """Raise OffsetNotWrittenError if the group has seen more of the log than there is."""
    log = place.log
    if document.position > log.tail:
        await log.refresh()
    OffsetRange(log.head, log.tail).check_tail(
        document.position,
        f"group {name!r} has seen records that the log does not have: it is of another log, or the log "
        "is restored as of an earlier time. delete_group() removes it; start= says where a new one begins",
    )


class GroupCursor:
    """The cursor of one group, which keeps what the group needs of its log from being collected.

    It follows the floor of the group's document, a little later: what is between the two is kept for longer
    than needed. Belongs to the event loop.
    """

    def __init__(self, place: GroupPlace, name: str) -> None:
        """Of the group ``name``; call :meth:`begin` once that is known."""
        self._place = place
        self._name = name
        self._saving = BackgroundTask[None]()
        self._saved = 0.0
        self._floor = 0
        self._cursor: Cursor | None = None

    def begin(self, document: GroupDocument, cursor: Cursor) -> None:
        """Go on where a document has its floor: the cursor is there, or behind it."""
        self._cursor = cursor
        self._floor = document.floor
        self._saved = self._place.clock.monotonic()

    def follow(self, document: GroupDocument) -> None:
        """Move the cursor to the floor, at most once a second, and without waiting for it."""
        now = self._place.clock.monotonic()
        if self._saving.is_busy or now < self._saved + _SAVE_SECONDS:
            return
        if document.floor > self._floor:
            self._saved = now
            self._saving.start(self._save(document), f"walstore cursor of group {self._name}")

    async def aclose(self, document: GroupDocument | None) -> None:
        """Move the cursor to the floor of the last document, if there is one."""
        await self._saving.wait()
        if document is not None:
            await self._save(document)

    async def _save(self, document: GroupDocument) -> None:
        cursor = self._cursor
        if cursor is None or document.floor <= self._floor:
            return
        try:
            if await cursor.refresh() < document.floor:
                await cursor.commit(document.floor)
            self._floor = document.floor
        except CursorMovedError:
            return  # by another member, or it is deleted with the group
        except WalError as error:
            logger.warning("the cursor of group %s stays behind: %s", self._name, error)
