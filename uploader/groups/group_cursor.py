"""GroupCursor: the cursor of a group, which keeps what the group needs of its log from being collected.

It follows the floor of the group's document, a little later: what is between the two is kept for longer than
needed.
"""

from __future__ import annotations

import logging
from typing import Final

from uploader.format.group_document import GroupDocument
from uploader.groups.group_place import GroupPlace, cursor_of
from uploader.runtime.task_groups import BackgroundTask
from walstore.errors import CursorMovedError, WalError

logger = logging.getLogger("walstore")

_SAVE_SECONDS: Final = 1.0
"""How far the cursor, and with it what may be collected, may lag behind the floor."""


class GroupCursor:
    """The cursor of one group. Belongs to the event loop."""

    def __init__(self, place: GroupPlace, name: str) -> None:
        """Of the group ``name``; call :meth:`begin` once that is known."""
        self._place = place
        self._name = name
        self._saving = BackgroundTask[None]()
        self._saved = 0.0
        self._floor = 0

    def begin(self, document: GroupDocument) -> None:
        """Go on where a document has its floor: the cursor is there, or behind it."""
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
        cursors, name = self._place.cursors, cursor_of(self._name, document)
        if document.floor <= self._floor:
            return
        try:
            seen = await cursors.load(name)
            if seen is not None and seen.position < document.floor:
                await cursors.commit(name, document.floor, seen=seen)
            self._floor = document.floor
        except CursorMovedError:
            return  # by another member, or it is deleted with the group
        except WalError as error:
            logger.warning("the cursor of group %s stays behind: %s", self._name, error)
