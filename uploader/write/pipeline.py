"""Pipeline: takes a local log to the cloud, from the manifest's end on.

A shipment cuts durable batches into fragments and hands them to a conveyor, which makes several at once and
publishes them in order. Fragments that a crash left unpublished are taken up first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile

from uploader.format.entries import Fragment
from uploader.root import orphan_recovery
from uploader.root.orphan_recovery import FragmentSlot
from uploader.root.ownership import is_outdated
from uploader.root.root import Root
from uploader.stores.retry import RetryPolicy
from uploader.write.ack_dispatch import UploadAcks
from uploader.write.cut_schedule import CutSchedule
from uploader.write.fragment_writer import FragmentWriter
from uploader.write.publish_pipeline import PublishPipeline
from uploader.write.shipment import Shipment
from uploader.write.stall_guard import StallGuard
from walstore.errors import ContentionError
from walstore.ports import Clock, TierSource

logger = logging.getLogger("walstore")


class Pipeline:
    """Ships one log. One shipment at a time."""

    def __init__(
        self,
        *,
        url: str,
        root: Root,
        fragments: FragmentWriter,
        patience: StallGuard,
        retry: RetryPolicy,
        clock: Clock,
        fragment_bytes: int,
        max_in_flight: int,
        interval_seconds: float = 0.0,
    ) -> None:
        """``retry`` is for reads of the local log, which may fail in passing, too."""
        self._url = url
        self._root = root
        self._fragments = fragments
        self._patience = patience
        self._retry = retry
        self._clock = clock
        self._fragment_bytes = fragment_bytes
        self._max_in_flight = max_in_flight
        self._pace = CutSchedule(
            interval_seconds=interval_seconds, max_publishing=root.max_publishing
        )
        self._slots: deque[FragmentSlot] = deque()
        self._orphans = 0

    async def plan(self) -> None:
        """Look for fragments behind the manifest's end, and plan how the log goes on with them.

        Those of a directory from which the log was taken over are left out: see ``fragment_writer.py``.

        CorruptionError for an object that is none.
        """
        found = await self._fragments.puts.orphans()
        manifest = self._root.manifest
        orphans = [orphan for orphan in found if not is_outdated(orphan.maker, manifest)]
        self._orphans = len(orphans)
        self._slots = deque(
            orphan_recovery.plan(manifest.next_seq_no, manifest.next_offset, orphans)
        )
        if orphans:
            logger.warning("%s has %d unpublished fragments", self._url, len(orphans))

    async def adopt_unproven(self, writer: str) -> None:
        """Publish the planned orphans for a new directory, which has no records to compare them with.

        ContentionError if the records before some of them are missing: only the lost directory had these.
        """
        whole = [slot.orphan.entry for slot in takewhile(_is_adoption, self._slots) if slot.orphan]
        if len(whole) < self._orphans:
            first = self._root.manifest.next_seq_no + len(whole)
            raise ContentionError(
                f"{self._url} has fragments behind records that were never uploaded; restore the log's "
                f"old directory, or delete the fragments from number {first} on"
            )
        if whole:
            await self._root.publish(whole, writer)
            self._fragments.adopted_fragments += len(whole)
        self._slots.clear()

    @asynccontextmanager
    async def shipping(self, source: TierSource, writer: str) -> AsyncIterator[Shipment]:
        """Return a shipment of what ``source`` holds behind the manifest's end.

        The block may raise an ExceptionGroup of what :meth:`FragmentWriter.put` and the root raise. Left
        normally, everything that was started is published.
        """
        acks = UploadAcks(source, asyncio.get_running_loop())

        def tell(run: Sequence[Fragment]) -> None:
            acks.send(run[-1].limit)

        async with asyncio.TaskGroup() as tasks:
            conveyor = PublishPipeline(
                tasks,
                root=self._root,
                writer=writer,
                patience=self._patience,
                clock=self._clock,
                pace=self._pace,
                max_in_flight=self._max_in_flight,
                max_making=min(self._max_in_flight, self._fragments.puts.max_at_once),
                on_published=tell,
            )
            shipment = Shipment(
                tasks,
                source,
                url=self._url,
                root=self._root,
                fragments=self._fragments,
                slots=self._slots,
                conveyor=conveyor,
                pace=self._pace,
                retry=self._retry,
                clock=self._clock,
                fragment_bytes=self._fragment_bytes,
            )
            yield shipment
            await shipment.finish()
            await acks.wait_delivered()


def _is_adoption(slot: FragmentSlot) -> bool:
    return slot.orphan is not None
