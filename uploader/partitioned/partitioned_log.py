"""PartitionedLog: the logs of a partitioned log together, and groups whose members share all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import Any, Self

from uploader.partitioned.partitions import SubStore, partition_url, read_partitions
from uploader.read.cloud_log import CloudLog
from uploader.runtime.task_groups import gather_all, settle_all
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import Owned
from walstore.core.runtime.resource import LoopGuard, Opening
from walstore.core.runtime.statistics import GroupStatistics
from walstore.core.runtime.time_limit import within
from walstore.core.validation.arguments import as_count, as_seconds
from walstore.errors import LogNotFoundError, WalClosedError
from walstore.positions.groups.group import Group, Job, check_jobs


class PartitionedLog(Owned):
    """The logs that Spark's sink writes under one prefix, as one. Make one with :meth:`open`."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> Opening[PartitionedLog]:
        """Open the partitioned log under ``url``; needs read access only, and write access for groups.

        Raises LogNotFoundError if there is none, CorruptionError if it is damaged, and the store's errors.

        Args:
            url: Its location, as for :class:`uploader.CloudTier`.
            store: Replaces the store that the URL names; also closed with the log.
            retry: As of :meth:`uploader.CloudLog.open`.
            clock: Sleeps between polls.
            options: Further options of :meth:`uploader.CloudLog.open`, for each of the logs.
        """

        async def open_it() -> PartitionedLog:
            chosen = chosen_store(url, store)
            try:
                partitions = await read_partitions(chosen)
                if partitions is None:
                    raise LogNotFoundError(
                        f"there is no partitioned log at {chosen.url}", location=chosen.url
                    )
                log = cls(
                    chosen,
                    partitions,
                    clock=clock or SystemClock(),
                    options={"retry": retry, "clock": clock, **options},
                )
                await log.find_logs()
            except BaseException:
                await chosen.aclose()
                raise
            return log

        return Opening(open_it)

    def __init__(
        self, store: ObjectStore, partitions: int, *, clock: Clock, options: dict[str, Any]
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.partitions = partitions
        """How many logs there are; it never changes."""
        self.logs: dict[int, CloudLog] = {}
        """The logs by their numbers, from 0. One to which nothing was written yet is missing."""
        self.clock = clock
        """Sleeps between polls."""
        self._store = store
        self._options = options
        self._is_closed = False
        self._home = LoopGuard(f"log at {store.url}")

    @property
    def url(self) -> str:
        """Its location, without credentials."""
        return self._store.url

    async def find_logs(self) -> None:
        """Open the logs that were missing and have been written to since. Raises as :meth:`open`."""
        self._check()
        missing = [number for number in range(self.partitions) if number not in self.logs]
        found = await settle_all(self._find(number) for number in missing)
        for number, log in zip(missing, found, strict=True):
            if log is not None and number not in self.logs:
                self.logs[number] = log

    @renamed(is_ordered="ordered")
    def group(self, name: str, **options: Any) -> PartitionedGroup:
        """Return a new member of the group ``name``, which gets jobs of all logs.

        Options, errors and promises are those of :meth:`uploader.CloudLog.group`; they hold for each of the
        logs, so ``max_ack_pending`` does, too. A job tells its ``partition``, since logs count their
        offsets separately. A log that is written to later joins within some seconds.
        """
        self._check()
        return PartitionedGroup(self, name, options)

    async def delete_group(self, name: str) -> bool:
        """Remove a group from all logs; return whether one had it. As of :class:`uploader.CloudLog`."""
        await self.find_logs()
        return any(await settle_all(log.delete_group(name) for log in self.logs.values()))

    async def aclose(self) -> None:
        """Close the logs and release connections; may be called twice."""
        self._is_closed = True
        try:
            await settle_all(log.aclose() for log in self.logs.values())
        finally:
            await self._store.aclose()

    async def _find(self, number: int) -> CloudLog | None:
        url = partition_url(self._store.url, number)
        try:
            return await CloudLog.open(url, store=SubStore(self._store, number), **self._options)
        except LogNotFoundError:
            return None

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._home.check()

    def _check(self) -> None:
        if self._is_closed:
            raise WalClosedError(f"the log at {self.url} is closed")


class PartitionedGroup(Owned):
    """One member of a group of a partitioned log. Used as :class:`walstore.Group`, by one task at a time.

    Made by :meth:`PartitionedLog.group`. Takes turns among the logs that have jobs.
    """

    def __init__(self, log: PartitionedLog, name: str, options: dict[str, Any]) -> None:
        """Not for callers; see :meth:`PartitionedLog.group`."""
        self.name = name
        """Name of the group."""
        self._log = log
        self._options = options
        self._members: dict[int, Group] = {}
        self._busy: deque[int] = deque()
        """Logs that had jobs when they were looked at."""
        self._is_inside = False
        self._left = asyncio.Event()

    @renamed(max_wait="max_wait_seconds")
    async def fetch(self, max_jobs: int = 1, max_wait_seconds: float | None = None) -> list[Job]:
        """Return up to ``max_jobs`` jobs of one log; waits as :meth:`walstore.Group.fetch`."""
        most = as_count(max_jobs, "max_jobs", high=10_000)
        self._check()
        clock = self._log.clock
        backoff = Backoff(first_seconds=0.1, longest_seconds=2.0, growth=1.5)
        seconds = (
            inf if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        )
        deadline = clock.monotonic() + seconds
        while True:
            found = await self._fetch_busy(most) or await self._look_and_fetch(most)
            left = deadline - clock.monotonic()
            if found or left <= 0:
                return found
            pause = min(backoff.next_seconds(), left)
            with suppress(TimeoutError):
                await within(pause, self._left.wait(), sleep=clock.sleep)
            self._check()

    async def ack(self, jobs: Iterable[Job]) -> None:
        """Say that the work of several jobs is done; one step for each of their logs.

        Raises as :meth:`walstore.Group.ack`.
        """
        self._check()
        by_partition: dict[int, list[Job]] = {}
        for job in check_jobs(jobs):
            if job.partition not in self._members:
                raise ValueError(f"{job!r} is of no log that {self.name!r} has; await job.ack()")
            by_partition.setdefault(job.partition, []).append(job)
        await settle_all(self._members[at].ack(some) for at, some in by_partition.items())

    async def statistics(self) -> dict[int, GroupStatistics]:
        """Return how far the group is in each log."""
        self._check()
        numbers = list(self._members)
        found = await gather_all(self._members[at].statistics() for at in numbers)
        return dict(zip(numbers, found, strict=True))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        return (await self.fetch())[0]

    async def __aenter__(self) -> Self:
        if self._is_inside or self._left.is_set():
            raise RuntimeError("a member enters its group once; make another")
        self._is_inside = True
        try:
            await self._join()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_inside:
            self._left.set()
            await self._leave()

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._log.check_owner()

    def __repr__(self) -> str:
        return f"<PartitionedGroup {self.name!r}>"

    # -- inside ------------------------------------------------------------------------------

    async def _fetch_busy(self, most: int) -> list[Job]:
        """Return jobs of the next log that had some, if it still has."""
        while self._busy:
            self._check()
            partition = self._busy.popleft()
            jobs = await self._members[partition].fetch(most, 0)
            if jobs:
                self._busy.append(partition)
                for job in jobs:
                    job.partition = partition
                return jobs
        return []

    async def _look_and_fetch(self, most: int) -> list[Job]:
        await self._join()
        for partition, found in (await self.statistics()).items():
            if found.lag or found.unsettled > found.pending:
                self._busy.append(partition)
        return await self._fetch_busy(most)

    async def _join(self) -> None:
        """Become a member in each log that is there."""
        if len(self._log.logs) < self._log.partitions:
            await self._log.find_logs()
        for partition, log in sorted(self._log.logs.items()):
            if partition not in self._members:
                member = log.group(self.name, **self._options)
                await member.__aenter__()
                if not self._is_inside:  # it left meanwhile
                    await member.__aexit__(None, None, None)
                    self._check()
                self._members[partition] = member

    async def _leave(self) -> None:
        self._is_inside = False
        members: Sequence[Group] = list(self._members.values())
        self._members.clear()
        self._busy.clear()
        await settle_all(member.__aexit__(None, None, None) for member in members)

    def _check(self) -> None:
        if not self._is_inside:
            raise WalClosedError("the member is not in its group; use it within 'async with'")
