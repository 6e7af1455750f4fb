"""Group and Job: a member of a group, and what it is given to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Protocol, Self

from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import Owned
from walstore.core.runtime.resource import LoopGuard
from walstore.core.runtime.statistics import GroupStatistics
from walstore.core.validation.arguments import as_count, as_seconds
from walstore.errors import LeaseExpiredError, WalClosedError, WalError
from walstore.positions.groups.letters import error_text
from walstore.records import Record

_TAG_BYTES: Final = 8
_MOST_DELAY_SECONDS: Final = 30 * 86_400


class GroupBackend(Protocol):
    """What a member needs of its group: the coordinator itself, or the way to it over a connection."""

    @property
    def identity(self) -> tuple[str, str]:
        """Which log, and which of its groups: equal for members of one group."""

    async def open(self, member: bytes) -> None:
        """Make the group usable, and let a member in."""

    async def take(
        self, member: bytes, most: int, max_wait_seconds: float | None
    ) -> list[tuple[Record, int]]:
        """Lease jobs to a member."""

    async def settle(self, offsets: Sequence[int]) -> None:
        """Settle jobs durably."""

    async def give_back(
        self,
        offset: int,
        deliveries: int,
        delay_seconds: float,
        error: str | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        """End a lease early, because of an error, if it has a text; for good, if ``is_final``."""

    async def extend(self, offset: int, deliveries: int) -> None:
        """Begin a lease anew."""

    async def leave(self, member: bytes) -> None:
        """Give back all that a member holds."""

    async def statistics(self) -> GroupStatistics:
        """Return the group at this moment."""


class Job(Owned):
    """A record that one member of a group has for a time, its lease. Has the fields of a :class:`Record`.

    End it by one of :meth:`ack`, :meth:`nak` and :meth:`term`. Without that it comes again, to any
    member, once ``ack_wait_seconds`` are over.
    """

    __slots__ = ("deliveries", "group", "partition", "record")

    def __init__(self, group: Group, record: Record, deliveries: int) -> None:
        """Not for callers; see :class:`Group`."""
        self.group = group
        """The member that has it."""
        self.record = record
        """The record."""
        self.deliveries = deliveries
        """How often it has been delivered, this time included: 1 the first time."""
        self.partition = 0
        """Of a partitioned log: the number of the job's log, from 0. Else 0."""

    @property
    def offset(self) -> int:
        """Position in the log."""
        return self.record.offset

    @property
    def value(self) -> bytes:
        """What was appended."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """Its key, if any."""
        return self.record.key

    @property
    def stream(self) -> str | None:
        """The stream it was appended to, if any."""
        return self.record.stream

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Application headers."""
        return self.record.headers

    @property
    def timestamp_us(self) -> int:
        """Microseconds since 1970 UTC."""
        return self.record.timestamp_us

    @property
    def timestamp(self) -> datetime:
        """``timestamp_us`` as an aware datetime in UTC."""
        return self.record.timestamp

    async def ack(self) -> None:
        """Say that the work is done: the job never comes again. Durable when this returns.

        Acknowledgements of many tasks share a sync. Twice is allowed, and so is being late: if the lease has
        ended, the work counts as done nevertheless, unless another member has done it. If cancelled, or after
        DiskFullError, OutcomeUnknownError or StorageUnavailableError, it may or may not be recorded.
        DiskFullError says that the disk has no space for it now: say it again once there is some.
        """
        await self.group.backend.settle((self.record.offset,))

    @renamed(delay="delay_seconds")
    async def nak(
        self, delay_seconds: float = 0.0, *, error: BaseException | str | None = None
    ) -> None:
        """Give the job back: it comes again to any member, after ``delay_seconds``, 0 to 30 days.

        ``error`` is why: an exception, or a text. If the job becomes a dead letter, its header
        ``walstore.error`` has the type and text of the last one, up to 1024 bytes of UTF-8.
        Nothing happens if the lease has ended. A delay is forgotten when the log is closed. Not written, so
        a full disk does not refuse it.
        """
        seconds = as_seconds(delay_seconds, "delay_seconds")
        if not 0 <= seconds <= _MOST_DELAY_SECONDS:
            raise ValueError(f"delay_seconds must be 0 to 30 days, not {delay_seconds!r}")
        text = None if error is None else error_text(error)
        if not self.group.has_left:
            await self.group.backend.give_back(self.record.offset, self.deliveries, seconds, text)

    async def in_progress(self) -> None:
        """Begin the lease anew: another ``ack_wait_seconds`` from now.

        LeaseExpiredError if it has ended; another member may have the job by now. It also says that the job
        is begun: jobs that a member has not begun when it leaves or is killed count no delivery, and without
        this only the first of those that it has is taken for one. Not written, as :meth:`nak`.
        """
        if self.group.has_left:
            raise LeaseExpiredError(
                f"the lease on offset {self.offset} ended: the member has left",
                reader=self.group.name,
            )
        await self.group.backend.extend(self.record.offset, self.deliveries)

    async def term(self, reason: BaseException | str | None = None) -> None:
        """Drop the job: it never comes again, and there is no dead letter. Durable as :meth:`ack`, and
        raises as that.

        With a ``reason``, an exception or a text, it becomes a dead letter now, with that in its header
        ``walstore.error``. Nothing happens then if the lease has ended. If the letter is refused for now, as
        by a closed stream, it is appended later. InvalidSettingsError in a stored group without ``letters``.
        """
        if reason is None:
            await self.group.backend.settle((self.record.offset,))
            return
        text = error_text(reason)
        if not self.group.has_left:
            await self.group.backend.give_back(
                self.record.offset, self.deliveries, 0.0, text, is_final=True
            )

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self.group.check_owner()

    def __repr__(self) -> str:
        return f"<Job {self.record.offset}, delivery {self.deliveries}>"


def check_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Return what is to be acknowledged; TypeError if it is anything else than several jobs."""
    if isinstance(jobs, Job) or not isinstance(jobs, Iterable):
        raise TypeError(
            f"ack() of a group takes several jobs, not one {type(jobs).__name__}; for one, await job.ack()"
        )
    found = list(jobs)
    for job in found:
        if not isinstance(job, Job):
            raise TypeError(f"ack() takes jobs, not {type(job).__name__}")
    return found


class Group(Owned):
    """One member of a group. Made by :meth:`walstore.Wal.group`.

    Use it with ``async with``, and in that ``async for job in group`` or :meth:`fetch`; several tasks may
    do so at once, of the event loop that entered; in others it raises WrongLoopError. Leaving the block
    gives back at once what the member has not ended. Raises WalClosedError when the log is closed, and what
    :class:`walstore.Reader` and :meth:`walstore.Wal.cursor` raise.
    """

    def __init__(
        self,
        name: str,
        backend: Callable[[], Awaitable[GroupBackend]],
        *,
        make_tag: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Not for callers; see :meth:`walstore.Wal.group`."""
        self.name = name
        """Name of the group."""
        self._find = backend
        self._member = make_tag(_TAG_BYTES)
        self._backend: GroupBackend | None = None
        self._guard: LoopGuard | None = None
        self._is_entering = False
        self.has_left = False
        """Not for callers: whether all that the member had was given back."""

    @renamed(max_wait="max_wait_seconds")
    async def fetch(self, max_jobs: int = 1, max_wait_seconds: float | None = None) -> list[Job]:
        """Return up to ``max_jobs`` jobs, 1 to 10 000, at least one of them if ``max_wait_seconds`` is None.

        Waits up to ``max_wait_seconds`` for the first; then the list is empty. If cancelled, jobs that
        were about to be returned are for the next call of this member. Raises WalClosedError, and takes
        nothing, if the member leaves meanwhile.
        """
        most = as_count(max_jobs, "max_jobs", high=10_000)
        seconds = (
            None if max_wait_seconds is None else as_seconds(max_wait_seconds, "max_wait_seconds")
        )
        backend = self._entered()
        taken = await backend.take(self._member, most, seconds)
        self._entered()  # or leaving has given them back
        return [Job(self, record, deliveries) for record, deliveries in taken]

    async def ack(self, jobs: Iterable[Job]) -> None:
        """Say that the work of several jobs is done, with one sync: the fastest way. As :meth:`Job.ack`.

        ValueError, and nothing is acknowledged, if one of them is a job of another group.
        """
        backend = self._entered()
        found = check_jobs(jobs)
        members = {id(job.group): job for job in found}  # few, however many jobs there are
        for job in members.values():
            if job.group.backend.identity != backend.identity:
                raise ValueError(
                    f"{job!r} is of group {job.group.name!r} in {job.group.backend.identity[0]}, not of "
                    f"{self.name!r} in {backend.identity[0]}; await job.ack()"
                )
        offsets = [job.offset for job in found]
        await backend.settle(offsets)

    async def statistics(self) -> GroupStatistics:
        """Return how far the group is: its floor, what is pending, its lag."""
        return await self._entered().statistics()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        return (await self.fetch())[0]

    async def __aenter__(self) -> Self:
        if self._backend is not None or self._is_entering:
            raise RuntimeError("a member enters its group once; make another")
        self._is_entering = True
        try:
            backend = await self._find()
            await backend.open(self._member)
        finally:
            self._is_entering = False
        self._guard = LoopGuard(f"member of the group {self.name!r}")
        self._backend = backend
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._backend is None:
            return
        self.has_left = True
        with contextlib.suppress(WalError):  # what it holds comes again after ack_wait_seconds
            await self.backend.leave(self._member)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`. At first it is nobody's."""
        if self._guard is not None:
            self._guard.check()

    def __repr__(self) -> str:
        return f"<Group {self.name!r}>"

    @property
    def backend(self) -> GroupBackend:
        """Not for callers: the group, for jobs of this member."""
        if self._backend is None:
            raise WalClosedError("the member is not in its group; use it within 'async with'")
        return self._backend

    def _entered(self) -> GroupBackend:
        if self.has_left:
            raise WalClosedError("the member is not in its group; use it within 'async with'")
        return self.backend
