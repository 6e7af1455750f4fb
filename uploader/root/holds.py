"""Holds: offsets from which on a log is not collected, until a writer knows the outcome of its write there.

A hold is a pin that is not a cursor: it can keep records, but never releases any, as the first cursor of a
log does. Owns the objects under ``hold/``, which wal3 does not know. Like a new cursor, a hold is put first
and checks for a collection afterwards, while a collector announces first and checks for holds afterwards:
one of the two sees the other (docs/collection.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.document import MOST_SMALL_BYTES, Fields, read_document
from uploader.root.stored_document import StoredDocument, find_stored
from uploader.root.swapped_document import SwappedDocument
from uploader.runtime.task_groups import settle_all, task_group
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import CorruptionError

_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageHold(CloudCursor):
    """What one hold said when it was read; its fields are those of a pin."""

    @classmethod
    def parse(cls, data: bytes, *, name: str, etag: str | None = None) -> GarbageHold:
        """Read the object of hold ``name``; CorruptionError for a bad shape."""

        def build(fields: Fields) -> GarbageHold:
            return cls(
                name=name,
                position=fields.position("position"),
                epoch_us=fields.number("epoch_us"),
                writer=fields.text("writer"),
                expires_us=fields.number("expires_us"),
                etag=etag,
            )

        return read_document(data, build, path=layout.hold_path(name), most_bytes=MOST_SMALL_BYTES)


class Holds:
    """The holds of one log. Any number of tasks may call it; all methods pass on the store's errors."""

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy) -> None:
        self._store = store
        self._retry = retry

    async def put(self, hold: GarbageHold) -> None:
        """Keep everything from its position on, or from a lower one if it has stood there before.

        OutcomeUnknownError if the store does not report whether it was put; call again.
        """
        document = SwappedDocument[GarbageHold | None](
            self._store,
            layout.hold_path(hold.name),
            partial(GarbageHold.parse, name=hold.name),
            retry=self._retry,
            most_bytes=MOST_SMALL_BYTES,
        )

        def put(before: GarbageHold | None) -> GarbageHold | None:
            if before is None or before.position > hold.position:
                return hold
            return None if before.expires_us == hold.expires_us else hold

        await document.change(put, seen=StoredDocument(None, None))


class Keepers:
    """All that keeps records of one log from being collected: cursors and holds."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def list(self) -> Sequence[CloudCursor]:
        """Return them, expired ones included.

        CorruptionError for one that is damaged, and for other objects there, as in wal3: a program might
        rely on one of them. The store's errors.
        """
        async with task_group() as tasks:
            cursors = tasks.create_task(
                self._read(
                    layout.CURSOR_FOLDER, layout.parse_cursor_path, CloudCursor.parse, "cursor"
                )
            )
            holds = tasks.create_task(
                self._read(layout.HOLD_FOLDER, layout.parse_hold_path, GarbageHold.parse, "hold")
            )
        return [*cursors.result(), *holds.result()]

    async def _read(
        self,
        folder: str,
        name_in: Callable[[str], str],
        parse: Callable[..., CloudCursor],
        what: str,
    ) -> Sequence[CloudCursor]:
        names: dict[str, str] = {}
        async for listed in self._store.list(folder):
            if "/" in listed.key.removeprefix(folder):
                continue  # of another log, in a folder below
            try:
                names[listed.key] = name_in(listed.key)
            except ValueError as error:
                raise CorruptionError(
                    f"this is not the key of a {what}; remove the object", path=listed.key
                ) from error
        found: list[CloudCursor] = []
        keys = list(names)
        for low in range(0, len(keys), _AT_ONCE):
            some = keys[low : low + _AT_ONCE]
            reading = [
                find_stored(
                    self._store,
                    key,
                    partial(parse, name=names[key]),
                    most_bytes=MOST_SMALL_BYTES,
                )
                for key in some
            ]
            for stored in await settle_all(reading):
                if stored is not None:  # else it was deleted meanwhile
                    found.append(replace(stored.value, etag=stored.etag))
        return found


def lowest_cursor(cursors: Iterable[CloudCursor], now_us: int) -> CloudCursor | None:
    """Return the cursor or hold that keeps most; expired ones keep nothing.

    None if there is no cursor: holds alone let nothing go.
    """
    holding = [cursor for cursor in cursors if not cursor.is_expired(now_us)]
    if all(isinstance(cursor, GarbageHold) for cursor in holding):
        return None
    return min(holding, key=lambda cursor: cursor.position, default=None)
