"""SharedTail: where a log that several writers share continues, by what the store says.

Owns the requests about it: reading the root, naming a fragment that is in the store already, reading what
others put there, and deciding what became of a fragment of ours. docs/cloud_writer.md states the rules;
``commit_loop.py`` says why they hold.
"""

from __future__ import annotations

import contextlib
import enum
from functools import partial
from typing import Final

from uploader.chain.inline import InlineStore
from uploader.format.entries import Fragment
from uploader.format.manifest import is_blocker
from uploader.fragments.fragment_file import fragment_time_bounds
from uploader.root.orphan_recovery import Orphan
from uploader.root.ownership import check_direct
from uploader.root.stored_document import read_object
from uploader.root.write_guard import check_unsealed
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError
from uploader.write.fragment_puts import FragmentPuts, Taken
from uploader.write.pending_fragment import PendingFragment
from uploader.write.stall_guard import WriteContext
from uploader.write.stream_guard import StreamGuard
from walstore.errors import ContentionError, CorruptionError, LogSealedError, OutcomeUnknownError

_FOOTER_BYTES: Final = 64 << 10
"""Length of the end of a fragment that is read for its times; the rest only if the footer is longer."""


class FragmentFate(enum.Enum):
    """What became of a fragment of ours."""

    COMMITTED = enum.auto()
    """It is in the log."""
    LOST = enum.auto()
    """It is not, and never will be."""
    OPEN = enum.auto()
    """The log has not reached its number yet."""


class SharedTail:
    """The tail of one log, as one writer sees it. One task at a time."""

    def __init__(self, context: WriteContext, puts: FragmentPuts, streams: StreamGuard) -> None:
        self._store = InlineStore(context.store, context.worker, context.clock)
        self._root = context.root
        self._stall_guard = context.stall_guard
        self._worker = context.worker
        self._puts = puts
        self._streams = streams
        self._floor_seq_no = 0  # the last fragment whose times are in the floor
        self.floor_us = 0
        """No record to come may be older."""
        self.adopted_fragments = 0
        """Fragments of others that this writer published."""

    async def load(self) -> None:
        """Read the root; ContentionError if the log belongs to a local log."""
        await self._stall_guard.call(partial(self._root.load_or_create, self._streams.writer))
        check_direct(self._root.manifest, url=self._store.url)
        await self._streams.catch_up()

    async def adopt_orphans(self) -> None:
        """Publish what others put behind the end, as far as it continues the log.

        A fragment that can never be published is voided (``orphan_recovery.py``). :meth:`learn_floor` runs
        meanwhile, for the tail as it was.
        """
        async with task_group() as tasks:
            tasks.create_task(self.learn_floor())
            orphans = await self._orphans()
        for orphan in orphans:
            if self._is_next(orphan.entry) and not await self._adopt(orphan):
                await self._puts.void(orphan.entry)
        manifest = self._root.manifest
        await self._puts.void_misfits(manifest.next_seq_no, manifest.next_offset)

    async def fate(self, pending: PendingFragment) -> FragmentFate:
        """Return what became of the oldest fragment under way: its put has ended, none of ours is before it.

        If its place holds something that no manifest can ever name, it replaces that.
        """
        while pending.taken is not None:
            is_admitted = await self._streams.admits_made(pending.streams, pending.closings)
            manifest = self._root.manifest
            if (manifest.next_seq_no, manifest.next_offset) != (pending.seq_no, pending.start):
                return FragmentFate.LOST  # our object is not in the store
            if not is_admitted or not await self._make_way(pending, pending.taken):
                return FragmentFate.LOST
        assert pending.entry is not None
        while True:
            await self._streams.catch_up()
            if not await self._streams.admits_made(pending.streams, pending.closings):
                if self._root.manifest.next_seq_no <= pending.seq_no:
                    assert pending.built is not None
                    await self._puts.void(pending.entry, pending.built.data)
                    return FragmentFate.LOST
                is_published = await self._publish(pending.entry)
                return FragmentFate.COMMITTED if is_published else FragmentFate.LOST
            if await self._publish(pending.entry):
                return FragmentFate.COMMITTED
            if self._root.manifest.next_seq_no < pending.seq_no:
                await self.load()  # what we knew may be outdated
            manifest = self._root.manifest
            if manifest.next_seq_no < pending.seq_no:
                return FragmentFate.OPEN
            if manifest.next_seq_no == pending.seq_no and manifest.next_offset != pending.start:
                return FragmentFate.LOST
            if manifest.next_seq_no > pending.seq_no and not await self._publish(pending.entry):
                return FragmentFate.LOST

    async def learn_floor(self) -> None:
        """Let no record be older than the last one of the log, if another writer wrote that."""
        while (last := self._last_of_others()) is not None:
            try:
                times_us = await self._stall_guard.call(partial(self._times, last))
            except ObjectNotFoundError as error:
                await self.load()  # the log may have gone on, have been collected, or destroyed
                check_unsealed(self._root.manifest, url=self._store.url)
                if self._last_of_others() == last:
                    raise CorruptionError("a fragment is missing", path=last.path) from error
                continue
            self.floor_us = max(self.floor_us, times_us[1])
            self._floor_seq_no = last.seq_no

    def note_ours(self, seq_no: int) -> None:
        """Record that a fragment of ours is in the log; its times are in the floor."""
        self._floor_seq_no = max(self._floor_seq_no, seq_no)

    # -- inside ------------------------------------------------------------------------------

    def _last_of_others(self) -> Fragment | None:
        """Return the last fragment of the log, unless its times are in the floor."""
        fragments = self._root.manifest.fragments
        if not fragments or fragments[-1].seq_no <= self._floor_seq_no:
            return None
        return fragments[-1]

    async def _make_way(self, pending: PendingFragment, taken: Taken) -> bool:
        """Handle the object that is where the log continues; return False if the log continues with it."""
        check_unsealed(self._root.manifest, url=self._store.url)
        if is_blocker(taken.data):
            raise LogSealedError(f"{self._store.url} is sealed", location=self._store.url)
        other = await self._puts.examine(taken.data, taken.key)
        if other.entry.start == pending.start and await self._adopt(other):
            return False
        if not self._is_next(other.entry) and other.entry.start == pending.start:
            return True  # a manifest names it already
        assert pending.built is not None
        try:
            found: Fragment | Taken = await self._puts.replace(taken, pending.built, pending.seq_no)
        except ContentionError:
            found = await self._puts.create(pending.built, pending.seq_no)
        pending.note_put(found)
        return True

    async def _publish(self, entry: Fragment) -> bool:
        """Name a fragment that is in the store; False if the log went on without it.

        OutcomeUnknownError if the log begins behind it by now: nobody can know whether it was named.
        """
        try:
            await self._stall_guard.call(
                lambda: self._root.publish([entry], self._streams.signature)
            )
        except ContentionError as error:
            if error.outcome == "unknown":
                raise OutcomeUnknownError(str(error)) from error
            return False
        return True

    async def _adopt(self, orphan: Orphan) -> bool:
        """Name another's fragment; False if its streams were closed since it was made.

        Whether it was named before it was collected is not asked here: no append of ours waits for it, and
        either way the log continues behind it.
        """
        if not await self._streams.admits(orphan):
            return False
        with contextlib.suppress(OutcomeUnknownError):
            if await self._publish(orphan.entry):
                self.adopted_fragments += 1
        return True

    def _is_next(self, entry: Fragment) -> bool:
        manifest = self._root.manifest
        return (entry.seq_no, entry.start) == (manifest.next_seq_no, manifest.next_offset)

    async def _orphans(self) -> list[Orphan]:
        check_unsealed(self._root.manifest, url=self._store.url)
        try:
            return await self._stall_guard.call(self._puts.orphans)
        except CorruptionError:
            # A log that is being sealed has an object there that is not a fragment.
            await self.load()
            check_unsealed(self._root.manifest, url=self._store.url)
            raise

    async def _times(self, entry: Fragment) -> tuple[int, int]:
        """Return the first and the last time of a fragment's records."""
        start = max(entry.num_bytes - _FOOTER_BYTES, 0)
        end = await self._store.get_range(entry.path, start, entry.num_bytes)
        with contextlib.suppress(CorruptionError):  # a long footer, or an object of another length
            return await self._worker.run(partial(fragment_time_bounds, end, path=entry.path))
        whole = await read_object(self._store, entry.path)
        return await self._worker.run(partial(fragment_time_bounds, whole.data, path=entry.path))
