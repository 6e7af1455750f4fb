"""PartitionPublisher: plans where the staged fragments go, and publishes them to several logs at a time."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from uploader.layouts.open_root import find_root
from uploader.partitioned.commit_record import Known, LogPlan, PublishPlace, RecordFile
from uploader.partitioned.log_publisher import LogPublisher, StagedMissingError
from uploader.partitioned.sink_settings import SinkSettings
from uploader.partitioned.staged import StagedFragment
from uploader.partitioned.sub_store import SubStore
from uploader.partitioned.write_id import JOBS, is_passing
from uploader.root.ownership import direct_writer_name
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore, remove
from uploader.stores.retry import RetryPolicy
from uploader.write.stall_guard import StallGuard
from walstore.errors import ContentionError, CorruptionError
from walstore.runtime.threads import Worker

logger = logging.getLogger("walstore")


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

    async def publish(self, file: RecordFile, known: Known) -> None:
        """Publish what a record names and mark it done; return early if another driver went on with it."""
        keeper = RecordKeeper(file, known, self._settings.max_moves)

        async def publish_one(partition: int) -> None:
            async with slots, self._open(partition) as publisher:
                await publisher.publish(
                    known.record.logs[partition],
                    lambda plan, place: keeper.move(partition, plan, place),
                )

        slots = asyncio.Semaphore(self._settings.parallel_logs)
        try:
            async with task_group() as tasks:
                for partition in known.record.logs:
                    tasks.create_task(publish_one(partition))
            await keeper.finish()
        except SupersededError:
            return
        except StagedMissingError as error:
            await self._explain_missing(file, keeper.known, error)

    async def _explain_missing(
        self, file: RecordFile, known: Known, error: StagedMissingError
    ) -> None:
        """Return if another driver published what is missing."""
        newest = await file.read()
        if newest is None or newest.etag != known.etag:
            return
        if file.key.startswith(JOBS):
            # Such a record is deleted when all is done, and a late put of it may bring it back. The staged
            # objects are deleted first, and only then the record.
            logger.warning("%s was finished before and is removed: %s", file.key, error)
            await remove(self._store, [file.key], rule=is_passing)
            return
        raise CorruptionError(
            "a committed row is lost: somebody deleted what was staged", path=error.key
        ) from error

    @asynccontextmanager
    async def _open(self, partition: int) -> AsyncIterator[LogPublisher]:
        log = SubStore(self._store, partition)
        root = await self._stall_guard.call(
            lambda: find_root(
                log, retry=self._retry, worker=self._worker, layout=self._settings.layout
            )
        )
        try:
            yield LogPublisher(
                self._store,
                log,
                root,
                writer=self._writer,
                retry=self._retry,
                stall_guard=self._stall_guard,
                worker=self._worker,
            )
        finally:
            await root.aclose()


class SupersededError(Exception):
    """Another driver has brought the record further than we know: read it again."""


class RecordKeeper:
    """The record while it is being published."""

    def __init__(self, file: RecordFile, known: Known, max_moves: int) -> None:
        self.known = known
        self._file = file
        self._moves_left = max_moves
        self._lock = asyncio.Lock()

    async def move(self, partition: int, plan: LogPlan, place: PublishPlace) -> LogPlan:
        """Move a plan to another place, unless another driver has moved it."""
        async with self._lock:
            while (found := self.known.record.logs[partition]).base == plan.base:
                self._count()
                record = self.known.record.moved(partition, place)
                written = await self._file.write(record, self.known)
                self.known = written or await self._read_again()
            return found

    async def finish(self) -> None:
        """Mark the record as done."""
        async with self._lock:
            while True:
                written = await self._file.write(self.known.record.done(), self.known)
                if written:
                    return
                self.known = await self._read_again()

    async def _read_again(self) -> Known:
        found = await self._file.read()
        ours = self.known.record
        if (
            found is None
            or found.record.is_done
            or (found.record.epoch, found.record.job) != (ours.epoch, ours.job)
        ):
            raise SupersededError
        return found

    def _count(self) -> None:
        self._moves_left -= 1
        if self._moves_left < 0:
            raise ContentionError(
                "other writers of the logs come between again and again; what is committed will be published "
                "by the next run",
                retriable=True,
            )
