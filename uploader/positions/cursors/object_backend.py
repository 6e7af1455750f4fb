"""ObjectBackend: the cursors of a stored log for handles. Each change is a swap of the cursor's object.

The tag of a handle stands in the object, behind the writer's name. So a handle knows what it wrote although
the answer was lost, and a renewal of its lease, which leaves the tag alone, disturbs nobody.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.positions.cursors.cursor_objects import CursorObjects
from walstore.core.validation.arguments import as_int, as_seconds
from walstore.core.validation.fields import CENTURY_SECONDS
from walstore.errors import InvalidSettingsError
from walstore.positions.change import CursorChange
from walstore.positions.cursor import Cursor, CursorBackend
from walstore.positions.cursor_state import TAG_BYTES, CursorInfo, CursorState
from walstore.positions.queue import TaskQueue
from walstore.records import Start

_MICROSECONDS: Final = 1_000_000
_HANDLE: Final = re.compile(r", handle ([0-9a-f]{16})$")


class ObjectBackend(CursorBackend):
    """The cursors of a log in a store, as one program sees them. Belongs to one event loop."""

    def __init__(self, objects: CursorObjects) -> None:
        self._objects = objects
        self._clock = objects.clock
        self.check_home = objects.check_home
        self.queue = TaskQueue(objects.url)

    async def open(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the cursor ``name``; see :meth:`uploader.CloudCursors.open`."""
        lease_us = 0 if lease_seconds is None else hold_us(lease_seconds)
        tag = os.urandom(TAG_BYTES)
        if isinstance(start, str):
            if start not in tuple(Start):
                raise ValueError(f"start must be 'earliest', 'latest' or an offset, not {start!r}")
            offsets = (await self._objects.newest()).offsets
            position = offsets.tail if start == Start.LATEST else offsets.head
        else:
            position = as_int(start, "the position of a cursor")
            offsets = await self._objects.offsets(position)

        def make(found: CloudCursor | None) -> CloudCursor:
            expires_us = self._clock.now_us() + lease_us if lease_us else None
            if found is None:
                made = self._objects.new(name, position, offsets, expires_us=expires_us)
                return self._signed(made, tag, made.epoch_us)
            if lease_us and found.expires_us is None:
                raise InvalidSettingsError(f"cursor {name!r} holds for good; it is no pin")
            return dataclasses.replace(found, expires_us=expires_us) if lease_us else found

        made = await self._objects.swap(name, make)
        return Cursor(name, _state(made, lease_us), writer=tag, backend=self)

    async def list(self) -> list[CursorInfo]:
        """As of :class:`CursorBackend`; those that cannot be read are left out, with a warning."""
        now_us = self._clock.now_us()
        return [
            CursorInfo(one.name, one.position, one.is_expired(now_us), _state(one, 0))
            for one in await self._objects.list(strict=False)
        ]

    async def delete(self, name: str) -> bool:
        """As of :class:`CursorBackend`."""
        return await self._objects.delete(name)

    def swap(self, change: CursorChange) -> Callable[[], Awaitable[CursorState]]:
        """As of :class:`CursorBackend`."""
        return partial(self._swap, change)

    async def _swap(self, change: CursorChange) -> CursorState:
        lease_us = change.seen.lease_us
        moves = change.verb in ("commit", "rewind")
        offsets = await self._objects.offsets(change.position if moves else layout.FIRST_OFFSET)

        def make(found: CloudCursor | None) -> CloudCursor:
            before = None if found is None else _state(found, lease_us)
            after = change.made_of(
                before,
                now_us=self._clock.now_us(),
                owner=self._objects.writer,
                check_retained=offsets.check_head,  # what is collected is for the swap
            )
            if found is None or before is None or after is None:
                return self._objects.removed(change.name, change.seen.position)
            if after is before:
                return found
            made = dataclasses.replace(found, position=after.position)
            if lease_us:
                made = dataclasses.replace(made, expires_us=after.deadline_us)
            if after.tag == before.tag and _HANDLE.search(found.writer):
                return made
            return self._signed(made, change.writer, before.revision + 1)

        made = await self._objects.swap(change.name, make)
        return change.seen if made.is_removed else _state(made, lease_us)

    def _signed(self, made: CloudCursor, tag: bytes, least_us: int) -> CloudCursor:
        """Return a cursor as a handle writes it; each revision by a handle is later than the one before."""
        return dataclasses.replace(
            made,
            epoch_us=max(self._clock.now_us(), min(least_us, layout.MAX_U64)),
            writer=f"{self._objects.writer}, handle {tag.hex()}",
        )


def _state(found: CloudCursor, lease_us: int) -> CursorState:
    """Return a cursor as handles compare it: by the handle that wrote it, or else by its ETag."""
    handle = _HANDLE.search(found.writer)
    return CursorState(
        position=found.position,
        revision=found.epoch_us,
        writer=bytes.fromhex(handle[1]) if handle else (found.etag or "").encode(),
        updated_us=found.epoch_us,
        lease_us=lease_us,
        deadline_us=found.expires_us or 0,
        owner=found.writer,
    )


def hold_us(seconds: float) -> int:
    """Return how long a pin holds; InvalidSettingsError unless it is more than 0 and at most 100 years."""
    held = as_seconds(seconds, "how long a pin holds")
    if not 0 < held <= CENTURY_SECONDS:
        raise InvalidSettingsError(
            f"a pin holds for more than 0 seconds and 100 years at most, not {seconds!r} seconds"
        )
    return max(1, round(held * _MICROSECONDS))
