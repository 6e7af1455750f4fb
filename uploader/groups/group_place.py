"""GroupPlace: where a group of a stored log is: its object, its cursor, and the log's records."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from uploader.cursors.cloud_cursors import CloudCursors
from uploader.format import layout
from uploader.format.group_document import MOST_GROUP_BYTES, GroupDocument
from uploader.root import cas
from uploader.root.stored_document import StoredDocument, find_stored_or_damaged, run_aside
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import CorruptionError
from walstore.groups.settings import GroupSettings
from walstore.ports import Clock
from walstore.read.reader import Reader
from walstore.records import Record

_ROW_BYTES: Final = 32
_READ_RECORDS: Final = 512
_READ_BYTES: Final = 1 << 20


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

    async def load(self, name: str) -> tuple[GroupDocument, str] | None:
        """Return a group and the ETag of its object, also a removed one; None if there never was one.

        CorruptionError if it is damaged.
        """
        found = await self.find(name)
        if found is None:
            return None
        if found.value is None:
            raise CorruptionError(
                f"group {name!r} is damaged, so nobody knows what is settled ({found.damage}); the log is "
                "unharmed. delete_group() removes the group; start= says where a new one begins",
                path=layout.group_path(name),
            ) from found.damage
        return found.value, found.etag

    async def find(self, name: str) -> StoredDocument[GroupDocument | None] | None:
        """Return the object of a group, with None as the value of a damaged one."""
        return await find_stored_or_damaged(
            self.store,
            layout.group_path(name),
            partial(GroupDocument.parse, name=name),
            most_bytes=MOST_GROUP_BYTES,
        )

    async def put(self, name: str, document: GroupDocument, etag: str | None) -> cas.PutResult:
        """Replace the object that has this ETag, or create it; OutcomeUnknownError without an answer."""
        size = len(document.rows) * _ROW_BYTES
        data = await run_aside(document.serialise, size_bytes=size)
        return await cas.put(self.store, layout.group_path(name), data, etag, retry=self.retry)


def cursor_of(name: str, document: GroupDocument) -> str:
    """Return the name of a group's cursor. A group that is made later has another one."""
    return f"group_{name}_{document.made}"


async def remove(place: GroupPlace, name: str, tag: str, *, only: str | None = None) -> bool:
    """Remove a group, with its cursor; return whether there was one. ``only`` is the one that is meant."""
    while True:
        found = await place.find(name)
        if found is None:
            return False
        document = found.value
        if only is not None and (document is None or document.made != only):
            return False
        if document is None or not document.is_removed:
            made = tag if document is None else document.made
            removed = GroupDocument(made=made, tag=tag, is_removed=True)
            result = await place.put(name, removed, found.etag)
            result.decided(place.store.url, f"group {name!r} was removed; call again")
            if result.outcome is not cas.PutOutcome.COMMITTED:
                continue
        # Also of one that was removed before: that call may have ended in between.
        if document is None:
            await _delete_cursors(place, name)
        else:
            await remove_cursor(place, name, document)
        return document is None or not document.is_removed


async def remove_cursor(place: GroupPlace, name: str, document: GroupDocument) -> None:
    """Remove the cursor of a group that is removed."""
    await place.cursors.delete(cursor_of(name, document))


async def _delete_cursors(place: GroupPlace, name: str) -> None:
    """Delete the cursors of all groups that had a name: a damaged one does not show which is its own."""
    own = re.compile(rf"group_{name}_[A-Za-z0-9]+")
    for cursor in await place.cursors.list():
        if own.fullmatch(cursor.name):
            await place.cursors.delete(cursor.name)


class JobReader:
    """The records of a group's jobs: those that follow, read ahead, and single ones."""

    def __init__(self, place: GroupPlace, name: str, settings: GroupSettings) -> None:
        """For the group ``name``; a group of all streams does not read its own dead letters."""
        self._place = place
        self._name = name
        self._settings = settings
        self._skipped = settings.letters_of(name) if settings.stream is None else None
        self._reader: Reader | None = None
        self.ahead: deque[Record] = deque()
        """The next records of the log that are jobs."""
        self.limit = 0
        """They are all there are below it."""

    async def read_ahead(self, document: GroupDocument, wanted: int) -> None:
        """Read the next records of the log, as many as may be wanted."""
        position = document.position
        await self._see_up_to(position)
        self.pass_by(position)
        if self._reader is None:
            self._reader = self._place.log.reader(position, stream=document.stream)
            self.limit = position
        if self.limit < position:  # another process was there
            self.ahead.clear()
            self._reader.seek(position)
            self.limit = position
        room = max(0, self._settings.most_unsettled - len(document.rows))
        wanted = room if document.is_ordered else min(wanted, room)
        while len(self.ahead) < wanted and self.limit < self._place.log.tail:
            batch = await self._reader.fetch(max_records=_READ_RECORDS, max_bytes=_READ_BYTES)
            if batch.limit <= self.limit:
                return
            self.limit = batch.limit
            self.ahead.extend(
                record
                for record in batch.records()
                if self._skipped is None or record.stream != self._skipped
            )

    def pass_by(self, position: int) -> dict[int, Record]:
        """Drop and return what was read ahead of a position."""
        passed: dict[int, Record] = {}
        while self.ahead and self.ahead[0].offset < position:
            record = self.ahead.popleft()
            passed[record.offset] = record
        return passed

    async def read(self, offset: int) -> Record:
        """Return the record of one job."""
        await self._see_up_to(offset + 1)
        async with self._place.log.reader(offset, stop=offset + 1) as reader:
            async for record in reader:
                return record
        raise CorruptionError(
            "the group has a job that the log does not have",
            path=layout.group_path(self._name),
            position=offset,
        )

    async def _see_up_to(self, position: int) -> None:
        """Read the manifest again if another process has seen a newer one."""
        if self._place.log.tail < position:
            await self._place.log.refresh()
