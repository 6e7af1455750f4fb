"""Committer: the driver's part. Puts what tasks staged into the logs, all of it once or none of it.

The commit is one compare-and-swap of the query's record (``commit_record.py``). Before it nothing of the
write is in any log; after it everything will be, published by this driver, by the next one, or by a later job
(``finish``). A write whose epoch is in the record is never published again.

What may go wrong, and what follows:
  * the driver dies before the commit: nothing happened; a sweep cleans the staging folder later;
  * it dies after the commit: the next run of the epoch finds the record and publishes the rest of it;
  * two drivers of one query: one of them gets its record in, the other one publishes that, too;
  * a write is given up (``abort``): the record is replaced by a new version first, so that no put of it
    that was under way succeeds later, and only then the staged objects are deleted.

A sweep finishes what drivers that died had committed, then deletes what they left behind: what was begun
longer ago than anything that may still be committed (``STALE_SECONDS``), and no commit record names any more.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from uploader.layouts.log_session import LogSession
from uploader.partitioned.commit_record import NOTHING, CommitRecord, RecordFile
from uploader.partitioned.publisher import PartitionPublisher
from uploader.partitioned.sink_settings import SinkSettings
from uploader.partitioned.stager import BATCH_KEYS, StagedFragment, delete_staged, forget_staged
from uploader.partitioned.write_id import (
    JOBS,
    QUERIES,
    STAGING,
    WriteId,
    is_passing,
    job_time_us,
    parse_staged,
    staging_of,
)
from uploader.root.stored_document import StoredDocument
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore, remove
from uploader.stores.retry import RetryPolicy
from uploader.write.stall_guard import StallGuard
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import InvalidSettingsError, WalError

logger = logging.getLogger("walstore.upload")

STALE_SECONDS = 6 * 86_400.0
"""A write that was begun so long ago is not committed any more: a sweep may be removing it."""
_FORSAKEN_SECONDS = 600.0
"""A job whose record is not done after so long has most likely lost its driver."""


class Committer:
    """Commits writes into the logs under one prefix. Belongs to one event loop."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        settings: SinkSettings,
        retry: RetryPolicy,
        clock: Clock,
        worker: Worker,
    ) -> None:
        """Write to the logs under ``store``, which stays open."""
        self._store = store
        self._retry = retry
        self._clock = clock
        self._stall_guard = StallGuard(
            url=store.url, retry=retry, clock=clock, silent_seconds=settings.patience_seconds
        )
        self._publisher = PartitionPublisher(
            store, settings=settings, retry=retry, stall_guard=self._stall_guard, worker=worker
        )

    async def commit(self, write: WriteId, staged: Mapping[int, Sequence[StagedFragment]]) -> bool:
        """Put what was staged into the logs. Returns False if the epoch had been committed before.

        Then all of it is in the logs by that run. May be called again after any error: a commit that
        happened is finished then, else the write is committed.

        Raises InvalidSettingsError if the query belongs to another source, LogSealedError,
        LogNotFoundError if a log was destroyed, ContentionError if other writers keep coming between,
        CorruptionError for damaged or missing objects, OutcomeUnknownError and StorageUnavailableError.
        """
        async with self._watched():
            if not write.is_named:
                await self._finish_forsaken()
            return await self._commit(write, staged)

    async def abort(self, write: WriteId) -> bool:
        """Give up a write, unless it is committed; return whether it was given up.

        Then nothing of it will be in any log, and what it staged is deleted.
        """
        async with self._watched():
            file = self._file(write.record_key)

            def fenced(record: CommitRecord) -> CommitRecord | None:
                if record is NOTHING:
                    return CommitRecord(write.source, 1, None, write.job, 0, is_done=True, logs={})
                return None if record.has(write.epoch) else record.fenced()

            record = await file.change(fenced)
            if record.has(write.epoch) and record.job == write.job:
                return False
            await delete_staged(self._store, write.staging)
            return True

    async def finish(self, key: str) -> bool:
        """Publish the rest of what a record says; return whether there was anything to do."""
        async with self._watched():
            return await self._finish(key)

    # -- the commit --------------------------------------------------------------------------

    async def _commit(self, write: WriteId, staged: Mapping[int, Sequence[StagedFragment]]) -> bool:
        file = self._file(write.record_key)
        is_ours, lost = False, 0
        while True:
            known = await file.read()
            record = known.value
            if record is not NOTHING:
                _check_record(record, write)
            if not record.is_done:
                await self._publisher.publish(file, known)
            elif record.has(write.epoch):
                await self._clean(file, write.query, write.epoch)
                return is_ours
            elif record is NOTHING and is_ours and not write.is_named:
                return True  # another driver finished it and removed the record
            elif await self._put_record(file, known, write, staged):
                is_ours = True
            else:
                lost += 1
                await file.pause(lost)

    async def _put_record(
        self,
        file: RecordFile,
        known: StoredDocument[CommitRecord],
        write: WriteId,
        staged: Mapping[int, Sequence[StagedFragment]],
    ) -> bool:
        """Commit; False if the record is another one by now."""
        age_seconds = (self._clock.now_us() - job_time_us(write.job)) / 1e6
        if age_seconds > STALE_SECONDS:
            raise WalError(
                f"the write was begun {age_seconds / 86_400:.0f} days ago, and what was staged may have "
                "been swept up; run it again in smaller parts"
            )
        wanted = {at: found for at, found in staged.items() if found}
        plans = await self._publisher.plan(write.job, wanted)
        record = CommitRecord(
            source=write.source,
            generation=known.value.generation + 1,
            epoch=write.epoch,
            job=write.job,
            committed_us=self._clock.now_us(),
            is_done=not plans,
            logs=plans,
        )
        return (await file.swap(record, known)).put is not None

    # -- other jobs --------------------------------------------------------------------------

    async def _finish_forsaken(self) -> None:
        """Publish the commits of jobs whose drivers died; such jobs are not run again."""
        keys = [listed.key async for listed in self._store.list(JOBS)]
        for key in keys:
            record = (await self._file(key).read()).value
            if record.is_done:
                continue
            age_seconds = (self._clock.now_us() - record.committed_us) / 1e6
            if age_seconds > _FORSAKEN_SECONDS:
                try:
                    await self._finish(key)
                except WalError as error:
                    logger.warning("the job %s cannot be finished: %s", key, error)

    async def _finish(self, key: str) -> bool:
        file = self._file(key)
        is_needed = False
        while not (known := await file.read()).value.is_done:
            is_needed = True
            await self._publisher.publish(file, known)
        if is_needed and known.value.epoch is not None:
            await self._clean(file, key.rpartition("/")[2], known.value.epoch)
        return is_needed

    # -- inside ------------------------------------------------------------------------------

    def _file(self, key: str) -> RecordFile:
        return RecordFile(self._store, key, retry=self._retry, stall_guard=self._stall_guard)

    async def _clean(self, file: RecordFile, query: str, epoch: int) -> None:
        """Delete what was staged for an epoch that is done, and for older ones, which no run can commit.

        Then delete the record, unless its query may be run again. Failures are left to a sweep.
        """
        try:
            await delete_staged(self._store, staging_of(query), most_epoch=epoch)
            if file.key.startswith(JOBS):
                await remove(self._store, [file.key], rule=is_passing)
        except WalError as error:
            logger.warning("what was staged for %s was not removed: %s", query, error)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Give up once the store has been silent for too long."""
        async with task_group() as tasks:
            watching = tasks.create_task(self._stall_guard.run_out())
            yield
            watching.cancel()


def _check_record(record: CommitRecord, write: WriteId) -> None:
    """Raise InvalidSettingsError if the query is another's, WalError if this write was given up."""
    if record.source != write.source:
        raise InvalidSettingsError(
            f"the query {write.query!r} belongs to another stream or job ({record.source}); its epochs "
            "cannot be distinguished from those of this one: give this one another queryId"
        )
    if record.epoch is None and record.job == write.job:
        raise WalError("the write was given up before; run it again")


SWEEP_SECONDS: Final = 7 * 86_400.0
"""Age from which staged objects are swept up; the least and the default."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did."""

    finished: int
    """Commits that were published to their end."""
    objects: int
    """Objects deleted."""
    size_bytes: int
    """Their length."""


async def finish_commits(
    url: str,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> int:
    """Publish what was committed to the logs under ``url`` and is not in them yet; return how many writes.

    For writes whose driver died and is not started again. While it lives this does no harm, but doubles the
    work. Raises what publishing raises; call again to finish the rest.
    """
    async with LogSession.once(url, store=store, retry=retry, clock=clock) as place:
        return await _finish(place)


async def sweep_staging(
    url: str,
    *,
    older_than_seconds: float = SWEEP_SECONDS,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> Swept:
    """Finish what was committed under ``url``, then delete what was staged so long ago and never committed.

    Safe next to writes under way. InvalidSettingsError for less than a week, since a write may take that
    long; otherwise raises as :func:`finish_commits`, and then nothing is deleted.
    """
    assert SWEEP_SECONDS > STALE_SECONDS
    if not older_than_seconds >= SWEEP_SECONDS:
        raise InvalidSettingsError(
            f"older_than_seconds must be at least {SWEEP_SECONDS:.0f} (a week), not {older_than_seconds:g}: "
            "what is younger may still be committed"
        )
    async with LogSession.once(url, store=store, retry=retry, clock=clock) as place:
        finished = await _finish(place)
        before_us = place.clock.now_us() - int(older_than_seconds * 1e6)
        objects, size_bytes, doomed = 0, 0, []
        for folder in (STAGING, JOBS):
            async for listed in place.store.list(folder):
                began_us = _began_us(listed.key)
                if began_us is None or began_us >= before_us:
                    continue
                doomed.append(listed.key)
                objects += 1
                size_bytes += listed.size_bytes
                if len(doomed) == BATCH_KEYS:
                    await forget_staged(place.store, doomed)
                    doomed = []
        await forget_staged(place.store, doomed)
        return Swept(finished, objects, size_bytes)


async def _finish(place: LogSession) -> int:
    committer = Committer(
        place.store,
        settings=SinkSettings(),
        retry=place.retry,
        clock=place.clock,
        worker=place.worker,
    )
    keys = [listed.key for folder in (QUERIES, JOBS) async for listed in place.store.list(folder)]
    return sum([await committer.finish(key) for key in keys])


def _began_us(key: str) -> int | None:
    """Return when the job began that put an object; None if the key does not say."""
    staged = parse_staged(key)
    try:
        return job_time_us(key.removeprefix(JOBS) if staged is None else staged[2])
    except InvalidSettingsError:
        return None
