"""Pipeline: several fragments under way at once, published in order.

Fragments are built and put in parallel; each contiguous run of finished ones is named by one swap of the
manifest, while the next ones are under way. Fragments that a crash left unpublished are taken up first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from functools import partial
from itertools import islice, takewhile
from typing import Any

from uploader import adoption
from uploader.adoption import Slot
from uploader.entries import Fragment
from uploader.fragment_writer import FragmentWriter, gather
from uploader.manifest_log import ManifestLog
from uploader.patience import Patience
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError
from walstore.ports import TierSource

logger = logging.getLogger("walstore")


class Pipeline:
    """Takes a log from the manifest's end to a limit. One task at a time."""

    def __init__(
        self,
        *,
        url: str,
        manifest_log: ManifestLog,
        fragments: FragmentWriter,
        patience: Patience,
        retry: RetryPolicy,
        fragment_bytes: int,
        max_in_flight: int,
    ) -> None:
        """``retry`` is for reads of the local log, which may fail in passing, too."""
        self._url = url
        self._manifest_log = manifest_log
        self._fragments = fragments
        self._patience = patience
        self._retry = retry
        self._fragment_bytes = fragment_bytes
        self._max_in_flight = max_in_flight
        self._slots: deque[Slot] = deque()
        self._orphans = 0
        self._published = asyncio.Event()

    async def plan(self) -> None:
        """Look for fragments behind the manifest's end, and plan how the log goes on with them.

        CorruptionError for an object that is none.
        """
        manifest = self._manifest_log.manifest
        orphans = await self._fragments.orphans(manifest)
        self._orphans = len(orphans)
        self._slots = deque(adoption.plan(manifest.next_seq_no, manifest.next_offset, orphans))
        if orphans:
            logger.warning("%s has %d unpublished fragments", self._url, len(orphans))

    async def adopt_unproven(self, writer: str) -> None:
        """Publish the planned orphans for a new directory, which has no records to compare them with.

        ContentionError if the records before some of them are missing: only the lost directory had these.
        """
        whole = [slot.orphan.entry for slot in takewhile(_is_adoption, self._slots) if slot.orphan]
        if len(whole) < self._orphans:
            first = self._manifest_log.manifest.next_seq_no + len(whole)
            raise ContentionError(
                f"{self._url} has fragments behind records that were never uploaded; restore the log's "
                f"old directory, or delete the fragments from number {first} on"
            )
        if whole:
            await self._manifest_log.publish(whole, writer)
            self._fragments.adopted_fragments += len(whole)
        self._slots.clear()

    async def ship(self, source: TierSource, limit: int, writer: str) -> None:
        """Ship ``[next offset, limit)``, all of it durable; return when it is published.

        Raises an ExceptionGroup of what :meth:`FragmentWriter.put` and the manifest raise.
        """
        manifest = self._manifest_log.manifest
        seq_no, position = manifest.next_seq_no, manifest.next_offset
        most = self._max_in_flight
        in_flight: deque[asyncio.Task[Fragment]] = deque()
        finished: list[Fragment] = []
        publishing: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            while position < limit or in_flight or publishing:
                while position < limit and len(in_flight) < most and len(finished) < most:
                    making, position = await self._next(source, seq_no, position, limit)
                    in_flight.append(group.create_task(making))
                    seq_no += 1
                awaited = [*islice(in_flight, 1), *([publishing] if publishing else [])]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                while in_flight and in_flight[0].done():
                    finished.append(in_flight.popleft().result())
                if publishing and publishing.done():
                    publishing = None
                if finished and not publishing:
                    publishing = group.create_task(self._publish(source, finished, writer))
                    finished = []

    # -- inside ------------------------------------------------------------------------------

    async def _next(
        self, source: TierSource, seq_no: int, position: int, limit: int
    ) -> tuple[Coroutine[Any, Any, Fragment], int]:
        """Return how to make the fragment that begins at ``position``, and its limit."""
        slot = self._slots.popleft() if self._slots else None
        if slot is not None and slot.limit > limit:
            raise ContentionError(
                f"{self._url} holds records up to offset {slot.limit}, but this log ends at {limit}: "
                "another writer put them, or this disk lost records"
            )
        if slot is not None and slot.orphan is not None:
            return self._fragments.adopt(source, slot.orphan), slot.limit
        end, most_bytes = (limit, self._fragment_bytes) if slot is None else (slot.limit, None)
        batches = await self._retry.call(
            partial(gather, source, position, end, most_bytes=most_bytes)
        )
        turn = partial(self._wait_turn, seq_no)
        return self._fragments.put(source, seq_no, batches, turn), batches[-1].limit

    async def _publish(self, source: TierSource, run: list[Fragment], writer: str) -> None:
        await self._patience.call(partial(self._manifest_log.publish, run, writer))
        source.advance_uploaded(run[-1].limit)
        self._published.set()
        self._published = asyncio.Event()

    async def _wait_turn(self, seq_no: int) -> None:
        """Return when all fragments before ``seq_no`` are published."""
        while self._manifest_log.manifest.next_seq_no < seq_no:
            await self._published.wait()


def _is_adoption(slot: Slot) -> bool:
    return slot.orphan is not None
