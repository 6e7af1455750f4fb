"""FragmentCutter: cuts the durable batches of a local log into fragments, from the manifest's end on.

A shipment hands the fragments to a publish pipeline, which makes several at once and publishes them in order.
Fragments that a crash left unpublished come first. What is durable shortly before a cut is built while more
comes in; see ``fragment_builder.py`` for why.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from uploader.format.entries import Fragment
from uploader.fragments.fragment_builder import Building
from uploader.root import orphan_recovery
from uploader.root.orphan_recovery import FragmentSlot
from uploader.root.ownership import is_outdated
from uploader.runtime.task_groups import LoopTaskGroup
from uploader.write.ack_dispatch import UploadAcks
from uploader.write.fragment_puts import FragmentWriter, gather
from uploader.write.publish_pipeline import CutSchedule, Make, PublishPipeline
from uploader.write.stall_guard import WriteContext
from walstore.core.batches.batch import Batch
from walstore.core.tier_port import TierSource
from walstore.errors import ContentionError, WalError

logger = logging.getLogger("walstore.upload")


@dataclass(kw_only=True, slots=True, eq=False)
class FragmentCutter:
    """Plans how one log continues, and ships it. One shipment at a time."""

    context: WriteContext
    fragments: FragmentWriter
    fragment_bytes: int
    max_in_flight: int
    max_building: int = 1
    """Where one fragment is put at a time: how many are built at a time before their turn. One more is read
    by then."""
    schedule: CutSchedule
    """When the log is cut."""
    slots: deque[FragmentSlot] = field(default_factory=deque, init=False)
    """Fragments that must be cut otherwise than at ``fragment_bytes``; a shipment takes them out."""
    _orphans: int = field(default=0, init=False)

    async def plan(self) -> None:
        """Look for fragments behind the manifest's end, and plan how the log continues with them.

        Those of a directory from which the log was taken over are left out: see ``fragment_puts.py``.

        CorruptionError for an object that is not a fragment; FencedError if another directory has put some
        since it took over from this one.
        """
        found = await self.fragments.puts.orphans()
        for orphan in found:
            self.fragments.check_not_overtaken(orphan)
        manifest = self.context.root.manifest
        orphans = [orphan for orphan in found if not is_outdated(orphan.maker, manifest)]
        self._orphans = len(orphans)
        self.slots = deque(
            orphan_recovery.plan(manifest.next_seq_no, manifest.next_offset, orphans)
        )
        if orphans:
            logger.warning("%s has %d unpublished fragments", self.context.url, len(orphans))

    async def adopt_unproven(self, writer: str) -> None:
        """Publish the planned orphans for a new directory, which has no records to compare them with.

        ContentionError if the records before some of them are missing: only the lost directory had these.
        """
        whole = [slot.orphan.entry for slot in takewhile(_is_adoption, self.slots) if slot.orphan]
        if len(whole) < self._orphans:
            first = self.context.root.manifest.next_seq_no + len(whole)
            raise ContentionError(
                f"{self.context.url} has fragments behind records that were never uploaded; restore the "
                f"log's old directory, or delete the fragments from number {first} on"
            )
        if whole:
            await self.context.root.publish(whole, writer)
            self.fragments.adopted_fragments += len(whole)
        self.slots.clear()

    @asynccontextmanager
    async def shipping(self, source: TierSource, writer: str) -> AsyncIterator[Shipment]:
        """Return a shipment of what ``source`` holds behind the manifest's end.

        The block may raise an ExceptionGroup of what :meth:`FragmentWriter.put` and the root raise. Left
        normally, everything that was started is published.
        """
        acks = UploadAcks(source, asyncio.get_running_loop())

        def acknowledge(run: Sequence[Fragment]) -> None:
            acks.send(run[-1].limit)

        async with LoopTaskGroup() as tasks:
            pipeline = PublishPipeline(
                tasks,
                self.context,
                writer=writer,
                schedule=self.schedule,
                max_in_flight=self.max_in_flight,
                max_making=min(self.max_in_flight, self.fragments.puts.max_at_once),
                on_published=acknowledge,
            )
            shipment = Shipment(source, self, pipeline)
            yield shipment
            await shipment.finish()
            await acks.wait_delivered()


@dataclass(slots=True, eq=False)
class _Head:
    """The first batches of a fragment that will be cut soon."""

    building: Building
    limit: int
    """Offset after the last of them."""
    size_bytes: int
    """Their size."""


class _NextFragment(NamedTuple):
    """A fragment that is read, and if it is a full one being built, while others are put."""

    building: Building
    batches: list[Batch]

    @property
    def limit(self) -> int:
        """Offset after its last record."""
        return self.batches[-1].limit


class Shipment:
    """Fragments of one log under way. Made by :meth:`FragmentCutter.shipping`."""

    def __init__(
        self, source: TierSource, cutter: FragmentCutter, pipeline: PublishPipeline
    ) -> None:
        self._source = source
        self._cutter = cutter
        self.pipeline = pipeline
        """Makes and publishes what was cut."""
        self._context = cutter.context
        self._seq_no = self._context.root.manifest.next_seq_no
        self.position = self._context.root.manifest.next_offset
        """Every offset below it was cut into a fragment."""
        self._head: _Head | None = None  # of the next fragment
        self._ahead: deque[_NextFragment] = deque()  # from the position on
        self._building = asyncio.Semaphore(cutter.max_building)
        self.may_begin = True
        """Whether :meth:`begin` was not called yet for the next fragment."""

    async def begin(self, limit: int) -> None:
        """Begin to build the next fragment with what is below ``limit``, all of it durable.

        Nothing happens if the end of that fragment is planned already, or if there is enough to cut it.
        """
        self.may_begin = False
        if self._cutter.slots:
            return
        most_bytes = self._cutter.fragment_bytes
        batches = await self._gather(self.position, limit, most_bytes)
        size_bytes = sum(batch.nbytes for batch in batches)
        if size_bytes < most_bytes:
            self._head = _Head(self._cutter.fragments.begin(), batches[-1].limit, size_bytes)
            self.pipeline.begin(self._head.building, lambda: batches)

    async def ship(self, limit: int) -> None:
        """Cut ``[position, limit)``, all of it durable, as there is room; return when that is done."""
        while self.position < limit:
            await self._look_ahead(limit)
            await self.pipeline.wait_room()
            make, self.position = await self._cut(limit)
            self.pipeline.start(make)
            self._seq_no += 1

    async def finish(self) -> None:
        """Return when all that was cut is published."""
        await self.pipeline.wait_until(lambda: self.pipeline.is_empty)

    # -- inside ------------------------------------------------------------------------------

    async def _look_ahead(self, limit: int) -> None:
        """Read the next fragments below ``limit``, and begin to build the full ones.

        For logs where one fragment is put at a time: else building would wait for each put. What cannot be
        read is left to its turn, when what is before it is there.
        """
        cutter = self._cutter
        if cutter.fragments.puts.max_at_once > 1 or cutter.slots or self._head is not None:
            return
        most = min(cutter.max_building + 1, cutter.max_in_flight - 1)  # one is being put
        while len(self._ahead) < most:
            position = self._ahead[-1].limit if self._ahead else self.position
            if position >= limit:
                return
            try:
                batches = await self._gather(position, limit, cutter.fragment_bytes)
            except (WalError, OSError):
                return
            building = cutter.fragments.begin()
            self._ahead.append(_NextFragment(building, batches))
            if sum(batch.nbytes for batch in batches) >= cutter.fragment_bytes:
                self.pipeline.build(building, partial(_itself, batches), self._building)

    async def _cut(self, limit: int) -> tuple[Make, int]:
        """Return how to make the fragment that begins at the position, and its limit."""
        if self._ahead:
            self.may_begin = True
            ahead = self._ahead.popleft()
            return self._make(ahead.building, ahead.batches), ahead.limit
        cutter = self._cutter
        head, self._head, self.may_begin = self._head, None, True
        slot = cutter.slots.popleft() if cutter.slots else None
        if slot is not None and slot.limit > limit:
            raise ContentionError(
                f"{self._context.url} holds records up to offset {slot.limit}, but this log ends at {limit}: "
                "another writer put them, or this disk lost records"
            )
        if slot is not None and slot.orphan is not None:
            return partial(cutter.fragments.adopt, self._source, slot.orphan), slot.limit
        building, position = cutter.fragments.begin(), self.position
        most_bytes = cutter.fragment_bytes
        if head is not None and slot is None:
            building, position = head.building, head.limit
            most_bytes -= head.size_bytes
        if slot is None:
            batches = await self._gather(position, limit, most_bytes)
        else:
            batches = await self._gather(position, slot.limit, None)
        return self._make(building, batches), batches[-1].limit if batches else position

    def _make(self, building: Building, batches: list[Batch]) -> Make:
        root, seq_no = self._context.root, self._seq_no
        turn = partial(self.pipeline.wait_until, lambda: root.manifest.next_seq_no >= seq_no)
        return partial(
            self._cutter.fragments.put, self._source, seq_no, building, batches, my_turn=turn
        )

    async def _gather(self, position: int, limit: int, most_bytes: int | None) -> list[Batch]:
        # Reads of the local log may fail in passing, too.
        return await self._context.retry.call(
            partial(gather, self._source, position, limit, most_bytes=most_bytes)
        )


def _itself(batches: list[Batch]) -> list[Batch]:
    return batches


def _is_adoption(slot: FragmentSlot) -> bool:
    return slot.orphan is not None
