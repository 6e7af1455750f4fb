"""Pruning: deletes the manifests of a chain that nobody needs any more, in the background of publishing.

It runs as long as there is something to delete. After a takeover it lists the manifests, since others may
have left some; after that it knows its own links by their slots. A failure does no harm: the next takeover
finds what was not deleted. Pure functions decide which slots are doomed, also in a destroyed log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from uploader.chain.chain_reader import ChainReader
from uploader.format.layout import manifest_key, parse_manifest_key
from uploader.format.link import Link
from uploader.runtime.task_groups import BackgroundTask
from uploader.stores.port import ObjectStore, Rule, remove
from walstore.errors import WalError

logger = logging.getLogger("walstore.upload")

_BATCH: Final = 128
KEPT_SLOTS: Final = 512
"""Slots below the head that are left alone, so that recovery finds a base, and slow readers what they
listed a while ago."""


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
        """Record a link that has become durable, and begin to delete if it is time. Returns at once."""
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
        """Cancel what is under way, and wait for its end; twice is allowed."""
        await self._background.aclose()

    # -- inside ------------------------------------------------------------------------------

    def _is_due(self, head: Link) -> bool:
        low = head.slot - KEPT_SLOTS
        return len(self._own) > _BATCH and self._own[_BATCH] < low

    async def _prune(self, head: Link) -> None:
        """Delete what a durable link makes superfluous. Links that follow meanwhile change nothing."""
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
            self._resume_at = head.slot + _BATCH  # not after every link
            logger.warning("%s: pruning manifests failed: %s", self._store.url, error)

    async def _delete(self, slots: list[int], behind: Link) -> None:
        await remove(self._store, map(manifest_key, slots), rule=prunable(behind))


def doomed(head: Link, slots: Iterable[int]) -> list[int]:
    """Return which of the listed slots are to be deleted, given a link that is durable.

    Old links, but not those that must be kept; and above the head what can never be linked, since the head
    names a slot behind it as the next. This stays right: no such slot is ever used again.
    """
    return [slot for slot in slots if is_doomed(head, slot)]


def is_doomed(head: Link, slot: int) -> bool:
    """Return whether :func:`doomed` names a slot; never that of a link that recovery may need."""
    if head.slot < slot < head.next:
        return True
    return slot < head.slot - KEPT_SLOTS and not head.is_kept(slot)


def prunable(head: Link) -> Rule:
    """Return the rule that admits the manifests in doomed slots, and nothing else."""

    def rule(key: str) -> bool:
        try:
            return is_doomed(head, parse_manifest_key(key))
        except ValueError:
            return False

    return rule


def outlives(end: Link, slot: int) -> bool:
    """Return whether a slot stays taken though the log was destroyed, given its last link.

    A program that still writes there then finds the slot taken that it believes to be free, as in a live log;
    or it looks for the head, which is ``end``. It is found through the slots from its base on.
    """
    return end.base <= slot <= end.slot or end.is_kept(slot)
