"""Plans where the staged fragments of a committed epoch go, and publishes them, several logs at a time.

In one log one by one: the next fragment is put at its real key only when the log is seen to end exactly where
it is to go, and everything before it is in the log. So for each fragment there is at most one place at which
it may enter the log, and its outcome is final as soon as the log has passed that place:

  * the fragment there has our numbers and our sum: it is in the log, whoever published it;
  * anything else is there: it is not, and never will be at that place. Then, and only then, it gets another
    place, which the commit record must contain before anything is put there.

Any number of drivers may do this at once with the same record, also ones that paused for long: an old one
still puts fragments only at places that the log has passed. The sum distinguishes fragments because it
covers the offset, the fragment's own time, and the values.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial

from uploader.format.manifest import Manifest
from uploader.layouts.log_session import find_root
from uploader.partitioned.commit_record import CommitRecord, LogPlan, PublishPlace, RecordFile
from uploader.partitioned.partitions import SubStore
from uploader.partitioned.sink_settings import SinkSettings
from uploader.partitioned.stager import StagedFragment, placed, setsum_at, writer_of
from uploader.partitioned.write_id import HOLD_SECONDS, JOBS, is_passing, job_time_us
from uploader.root.garbage_file import announced_head
from uploader.root.holds import GarbageHold, Holds
from uploader.root.ownership import direct_writer_name
from uploader.root.stored_document import StoredDocument, read_object
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import check_unsealed
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError, ObjectStore, remove
from uploader.stores.retry import RetryPolicy
from uploader.write.fragment_puts import FragmentPuts
from uploader.write.pending_fragment import PendingFragment
from uploader.write.shared_tail import FragmentFate, SharedTail
from uploader.write.stall_guard import StallGuard, WriteContext
from uploader.write.stream_guard import StreamGuard
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, CorruptionError, OutcomeUnknownError, WalError

logger = logging.getLogger("walstore.upload")

Move = Callable[[LogPlan, PublishPlace], Awaitable[LogPlan]]
"""Notes that the plan continues at another place, durably, and returns the plan as it is then: another driver
may have moved it."""


class StagedMissingError(WalError):
    """A staged object is gone: another driver has published it and cleaned up, or it was deleted."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(f"{message}: {key}")
        self.key = key


class LogPublisher:
    """Publishes to one log, each fragment once. One task at a time."""

    def __init__(self, store: ObjectStore, context: WriteContext, writer: str) -> None:
        """``store`` holds what is staged, ``context`` the log; its manifest will name ``writer``."""
        self._store = store
        self._log = context.store
        self._root = context.root
        self._stall_guard = context.stall_guard
        self._worker = context.worker
        self._puts = FragmentPuts(context)
        self._tail = SharedTail(context, self._puts, StreamGuard(context, writer))
        self._holds = Holds(context.store, retry=context.retry)
        self._tree = ManifestTree(context.store, context.worker, newest=self._newest, cache_bytes=0)

    async def find_end(self, job: str) -> PublishPlace:
        """Return where the log continues, after publishing what others left there; create it if need be.

        From there on nothing is collected until the job is over: the driver that finishes it must be able to
        find out what became of its fragments. ContentionError if a local log ships there, LogSealedError,
        LogNotFoundError if it was destroyed.
        """
        if not self._root.is_known:
            await self._tail.load()
        check_unsealed(self._root.manifest, url=self._log.url)
        while await self._is_collected_from(await self._hold(job)):
            pass
        check_unsealed(self._root.manifest, url=self._log.url)
        await self._tail.adopt_orphans()
        return self._place(0)

    async def publish(self, plan: LogPlan, move: Move) -> None:
        """Return when all of the plan is in the log.

        StagedMissingError if a needed object is gone, LogSealedError, OutcomeUnknownError if the log was
        collected before the outcome of a fragment was known; what ``move`` raises.
        """
        await self._tail.load()
        index, seq_no, start = plan.base
        while index < len(plan.fragments):
            staged = plan.fragments[index]
            if await self._bring(staged, seq_no, start):
                index, seq_no, start = index + 1, seq_no + 1, start + staged.count
            else:
                plan = await move(plan, self._place(index))
                index, seq_no, start = plan.base

    # -- inside ------------------------------------------------------------------------------

    async def _hold(self, job: str) -> int:
        """Keep everything from the known end of the log on from collection; return that end."""
        position, began_us = self._root.manifest.next_offset, job_time_us(job)
        hold = GarbageHold(
            name=job,
            position=position,
            epoch_us=began_us,
            writer="walstore sink",
            expires_us=began_us + round(HOLD_SECONDS * 1e6),
        )
        await self._stall_guard.call(partial(self._holds.put, hold))
        return position

    async def _is_collected_from(self, position: int) -> bool:
        """Return whether a hold came too late: the log has gone on, and is collected beyond it.

        Reads the announced collection first, then the manifest, which shows one that finished in between.
        """
        head = await self._stall_guard.call(partial(announced_head, self._log))
        await self._tail.load()
        manifest = self._root.manifest
        return manifest.next_offset > position < max(head, manifest.oldest_offset)

    def _place(self, index: int) -> PublishPlace:
        manifest = self._root.manifest
        return PublishPlace(index, manifest.next_seq_no, manifest.next_offset)

    async def _bring(self, staged: StagedFragment, seq_no: int, start: int) -> bool:
        """Return whether a fragment is in the log at its place; False if it never will be."""
        if self._root.manifest.next_seq_no < seq_no:
            await self._tail.load()
        if self._place(0) == PublishPlace(0, seq_no, start):
            pending = await self._put(staged, seq_no, start)
            if await self._tail.fate(pending) is FragmentFate.COMMITTED:
                self._tail.note_ours(seq_no)
                return True
        return await self._is_there(staged, seq_no, start)

    async def _put(self, staged: StagedFragment, seq_no: int, start: int) -> PendingFragment:
        await self._tail.learn_floor()
        built, times_us = await self._worker.run(
            partial(
                placed,
                await self._fetch(staged),
                staged,
                start=start,
                floor_us=self._tail.floor_us,
                writer=writer_of(staged.key),
            )
        )
        found = await self._puts.create(built, seq_no)
        self._tail.floor_us = times_us[1]
        pending = PendingFragment(seq_no=seq_no, start=start, built=built)
        pending.note_put(found)
        return pending

    async def _is_there(self, staged: StagedFragment, seq_no: int, start: int) -> bool:
        manifest = self._root.manifest
        if manifest.next_seq_no < seq_no:
            raise CorruptionError(
                f"the log at {self._log.url} has lost fragments that were published",
                path=self._log.url,
                expected=seq_no,
                found=manifest.next_seq_no,
            )
        if manifest.next_seq_no == seq_no:
            if manifest.next_offset == start:
                raise ContentionError(f"{self._log.url} is being written to", retriable=True)
            return False
        if start < manifest.oldest_offset:
            raise OutcomeUnknownError(
                f"offset {start} of {self._log.url} was collected before it was "
                "known whose records it had"
            )
        entry = await self._stall_guard.call(partial(self._tree.locate, manifest, start))
        limit = start + staged.count
        if entry is None or (entry.seq_no, entry.start, entry.limit) != (seq_no, start, limit):
            return False
        if staged.start == start:
            return entry.setsum == staged.setsum
        data = await self._fetch(staged)
        return entry.setsum == await self._worker.run(setsum_at, data, staged, start)

    async def _fetch(self, staged: StagedFragment) -> bytes:
        try:
            found = await self._stall_guard.call(partial(read_object, self._store, staged.key))
        except ObjectNotFoundError as error:
            raise StagedMissingError("a staged fragment is gone", key=staged.key) from error
        return found.data

    async def _newest(self) -> Manifest:
        await self._tail.load()
        return self._root.manifest


class PartitionPublisher:
    """Publishes to the logs under one prefix, several at a time. Belongs to one event loop."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        settings: SinkSettings,
        retry: RetryPolicy,
        stall_guard: StallGuard,
        worker: Worker,
    ) -> None:
        self._store = store
        self._settings = settings
        self._retry = retry
        self._stall_guard = stall_guard
        self._worker = worker
        self._writer = direct_writer_name(secrets.token_hex(8))

    async def plan(
        self, job: str, staged: Mapping[int, Sequence[StagedFragment]]
    ) -> dict[int, LogPlan]:
        """Return where a job's staged fragments go, by partition; creates logs that are not there.

        Raises what :meth:`LogPublisher.find_end` raises.
        """
        plans: dict[int, LogPlan] = {}

        async def plan_one(partition: int) -> None:
            async with slots, self._open(partition) as publisher:
                plans[partition] = LogPlan(tuple(staged[partition]), await publisher.find_end(job))

        slots = asyncio.Semaphore(self._settings.parallel_logs)
        async with task_group() as tasks:
            for partition in staged:
                tasks.create_task(plan_one(partition))
        return plans

    async def publish(self, file: RecordFile, known: StoredDocument[CommitRecord]) -> None:
        """Publish what a record names and mark it done; return early if another driver went on with it."""
        keeper = RecordKeeper(file, known, self._settings.max_moves)

        async def publish_one(partition: int) -> None:
            async with slots, self._open(partition) as publisher:
                await publisher.publish(
                    known.value.logs[partition],
                    lambda plan, place: keeper.move(partition, plan, place),
                )

        slots = asyncio.Semaphore(self._settings.parallel_logs)
        try:
            async with task_group() as tasks:
                for partition in known.value.logs:
                    tasks.create_task(publish_one(partition))
            await keeper.finish()
        except SupersededError:
            return
        except StagedMissingError as error:
            await self._explain_missing(file, keeper.known, error)

    async def _explain_missing(
        self, file: RecordFile, known: StoredDocument[CommitRecord], error: StagedMissingError
    ) -> None:
        """Return if another driver published what is missing."""
        if (await file.read()).etag != known.etag:
            return
        if file.key.startswith(JOBS):
            # Such a record is deleted when all is done, and a late put of it may bring it back. The staged
            # objects are deleted first, and only then the record.
            logger.warning("%s was finished before and is removed: %s", file.key, error)
            await remove(self._store, [file.key], rule=is_passing)
            return
        raise CorruptionError(
            "a committed row is lost: what was staged was deleted", path=error.key
        ) from error

    @asynccontextmanager
    async def _open(self, partition: int) -> AsyncIterator[LogPublisher]:
        log = SubStore(self._store, partition)
        root = await self._stall_guard.call(
            lambda: find_root(
                log, retry=self._retry, worker=self._worker, layout=self._settings.layout
            )
        )
        async with aclosing(root):
            context = WriteContext(
                store=log,
                root=root,
                stall_guard=self._stall_guard,
                retry=self._retry,
                clock=self._retry.clock,
                worker=self._worker,
            )
            yield LogPublisher(self._store, context, self._writer)


class SupersededError(Exception):
    """Another driver has brought the record further than we know: read it again."""


class RecordKeeper:
    """The record while it is being published."""

    def __init__(
        self, file: RecordFile, known: StoredDocument[CommitRecord], max_moves: int
    ) -> None:
        self.known = known
        self._file = file
        self._moves_left = max_moves
        self._lock = asyncio.Lock()

    async def move(self, partition: int, plan: LogPlan, place: PublishPlace) -> LogPlan:
        """Move a plan to another place, unless another driver has moved it."""
        async with self._lock:
            while (found := self.known.value.logs[partition]).base == plan.base:
                self._count()
                record = self.known.value.moved(partition, place)
                swap = await self._file.swap(record, self.known)
                self._check(swap.newest.value)
                self.known = swap.newest
            return found

    async def finish(self) -> None:
        """Mark the record as done."""
        async with self._lock:
            await self._file.change(self._done, seen=self.known)

    def _done(self, record: CommitRecord) -> CommitRecord:
        self._check(record)
        return record.done()

    def _check(self, record: CommitRecord) -> None:
        """Raise SupersededError unless the record is of the same commit, and not done."""
        ours = self.known.value
        if record.is_done or (record.epoch, record.job) != (ours.epoch, ours.job):
            raise SupersededError

    def _count(self) -> None:
        self._moves_left -= 1
        if self._moves_left < 0:
            raise ContentionError(
                "other writers of the logs come between again and again; what is committed will be published "
                "by the next run",
                retriable=True,
            )
