"""Pruner: deletes the manifests that nobody needs any more, beside publishing.

It lives as long as there is something to delete. After a takeover it lists the manifests,
for there may be what others left; behind that it knows its own links by their slots. Failing harms nobody:
what was not deleted is found again by whoever takes over next.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from uploader.chain.chain_reader import ChainReader
from uploader.chain.pruning import KEPT_SLOTS, doomed, prunable
from uploader.format.link import Link
from uploader.format.names import manifest_key
from uploader.runtime.background_task import BackgroundTask
from uploader.stores.port import ObjectStore
from uploader.stores.removal import remove
from walstore.errors import WalError

logger = logging.getLogger("walstore")

_BATCH: Final = 128


class Pruner:
    """Prunes one chain while one program writes it. Belongs to one event loop."""

    def __init__(self, store: ObjectStore, reader: ChainReader) -> None:
        self._store = store
        self._reader = reader
        self._background = BackgroundTask[None]()
        self._takeover: Link | None = None
        # Slots of links that were published here and are no takeovers, oldest first.
        self._own: deque[int] = deque()
        self._resume_at = 0

    def note(self, link: Link) -> None:
        """Take note of a link that has become durable, and begin to delete if it is time; return at once."""
        if link.is_takeover:
            self._takeover = link
        else:
            self._own.append(link.slot)
        if (
            not self._background.is_busy
            and link.slot >= self._resume_at
            and (self._takeover is not None or self._is_due(link))
        ):
            self._background.start(self._prune(link), f"prune {self._store.url}")

    async def wait(self) -> None:
        """Return when nothing is being deleted."""
        await self._background.wait()

    async def aclose(self) -> None:
        """Give up what is under way, and wait for its end; twice is allowed."""
        await self._background.aclose()

    # -- inside ------------------------------------------------------------------------------

    def _is_due(self, head: Link) -> bool:
        low = head.slot - KEPT_SLOTS
        return len(self._own) > _BATCH and self._own[_BATCH] < low

    async def _prune(self, head: Link) -> None:
        """Delete behind a link that is durable. Links that follow meanwhile change nothing."""
        takeover = self._takeover
        try:
            if takeover is not None:
                slots = await self._reader.list_slots()
                await self._delete(doomed(takeover, slots), takeover)
                if self._takeover is takeover:
                    self._takeover = None
            while self._own and self._own[0] < head.slot - KEPT_SLOTS:
                batch = [slot for slot in self._own if slot < head.slot - KEPT_SLOTS]
                del batch[_BATCH:]
                await self._delete(doomed(head, batch), head)
                for _ in batch:
                    self._own.popleft()
        except WalError as error:
            self._resume_at = head.slot + _BATCH  # not behind every link again
            logger.warning("%s: pruning manifests failed: %s", self._store.url, error)

    async def _delete(self, slots: list[int], behind: Link) -> None:
        await remove(self._store, map(manifest_key, slots), rule=prunable(behind))
