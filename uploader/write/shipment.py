"""Shipment: durable batches of a local log on their way to the cloud, cut into fragments.

What is durable shortly before a cut is built already, while more comes in; see ``encoding.py`` for why.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial

from uploader.root.orphan_recovery import FragmentSlot
from uploader.root.root import Root
from uploader.stores.retry import RetryPolicy
from uploader.write.building import Building
from uploader.write.cut_schedule import CutSchedule
from uploader.write.fragment_writer import FragmentWriter, gather
from uploader.write.publish_pipeline import Make, PublishPipeline
from walstore.batches.batch import Batch
from walstore.errors import ContentionError
from walstore.ports import Clock, TierSource


@dataclass(slots=True, eq=False)
class _Head:
    """The first batches of a fragment that will be cut soon."""

    building: Building
    limit: int
    """Offset after the last of them."""
    size_bytes: int
    """Their size."""


class Shipment:
    """Fragments of one log on their way. Made by :meth:`uploader.write.pipeline.Pipeline.shipping`."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        source: TierSource,
        *,
        url: str,
        root: Root,
        fragments: FragmentWriter,
        slots: deque[FragmentSlot],
        conveyor: PublishPipeline,
        pace: CutSchedule,
        retry: RetryPolicy,
        clock: Clock,
        fragment_bytes: int,
    ) -> None:
        """Run in ``tasks``: what fails there, fails the group.

        ``slots`` says which fragments must be cut otherwise than at ``fragment_bytes``; those that were
        are taken out.
        """
        self._tasks = tasks
        self._source = source
        self._url = url
        self._root = root
        self._fragments = fragments
        self._slots = slots
        self._conveyor = conveyor
        self.pace = pace
        """The rhythm of its writer."""
        self._retry = retry
        self._clock = clock
        self._fragment_bytes = fragment_bytes
        self._seq_no = root.manifest.next_seq_no
        self.position = root.manifest.next_offset
        """Every offset below it was cut into a fragment."""
        self._head: _Head | None = None  # of the next fragment
        self.may_begin = True
        """Whether :meth:`begin` was not called yet for the next fragment."""

    @property
    def is_idle(self) -> bool:
        """Whether everything that was cut is published."""
        return self._conveyor.is_empty

    @property
    def due(self) -> float:
        """When the next fragment should be cut, by the monotonic clock, if somebody waits for it."""
        return self._conveyor.due

    async def wait_change(self) -> None:
        """Return when something was put or published."""
        await self._conveyor.wait_change()

    async def wait_room(self) -> None:
        """Return when another fragment may be cut."""
        await self._conveyor.wait_until(lambda: self._conveyor.has_room)

    async def begin(self, limit: int) -> None:
        """Begin to build the next fragment with what is below ``limit``, all of it durable.

        Nothing happens if it is not ours to say where that fragment ends, or if there is enough to cut it.
        """
        self.may_begin = False
        if self._slots:
            return
        batches = await self._gather(self.position, limit, self._fragment_bytes)
        size_bytes = sum(batch.nbytes for batch in batches)
        if size_bytes < self._fragment_bytes:
            self._head = _Head(self._fragments.begin(), batches[-1].limit, size_bytes)
            self._tasks.create_task(self._build(self._head.building, batches))

    async def ship(self, limit: int) -> None:
        """Cut ``[position, limit)``, all of it durable, as there is room; return when that is done."""
        while self.position < limit:
            await self.wait_room()
            make, self.position = await self._cut(limit)
            self._conveyor.start(make)
            self._seq_no += 1

    async def finish(self) -> None:
        """Return when all that was cut is published."""
        await self._conveyor.wait_until(lambda: self._conveyor.is_empty)

    # -- inside ------------------------------------------------------------------------------

    async def _build(self, building: Building, batches: list[Batch]) -> None:
        began = self._clock.monotonic()
        await building.add(lambda: batches)
        self.pace.note_head_start(self._clock.monotonic() - began)

    async def _cut(self, limit: int) -> tuple[Make, int]:
        """Return how to make the fragment that begins at the position, and its limit."""
        head, self._head, self.may_begin = self._head, None, True
        slot = self._slots.popleft() if self._slots else None
        if slot is not None and slot.limit > limit:
            raise ContentionError(
                f"{self._url} holds records up to offset {slot.limit}, but this log ends at {limit}: "
                "another writer put them, or this disk lost records"
            )
        if slot is not None and slot.orphan is not None:
            return partial(self._fragments.adopt, self._source, slot.orphan), slot.limit
        building, position, most_bytes = (
            self._fragments.begin(),
            self.position,
            self._fragment_bytes,
        )
        if head is not None and slot is None:
            building, position = head.building, head.limit
            most_bytes -= head.size_bytes
        if slot is None:
            batches = await self._gather(position, limit, most_bytes)
        else:
            batches = await self._gather(position, slot.limit, None)
        return self._make(building, batches), batches[-1].limit if batches else position

    def _make(self, building: Building, batches: list[Batch]) -> Make:
        root, seq_no = self._root, self._seq_no
        turn = partial(self._conveyor.wait_until, lambda: root.manifest.next_seq_no >= seq_no)
        return partial(self._fragments.put, self._source, seq_no, building, batches, my_turn=turn)

    async def _gather(self, position: int, limit: int, most_bytes: int | None) -> list[Batch]:
        return await self._retry.call(
            partial(gather, self._source, position, limit, most_bytes=most_bytes)
        )
