"""GroupState: the jobs of a group as the owner of the log has them, with their records and members. Pure.

The rules are those of :class:`walstore.positions.groups.job_table.JobTable`. This adds what was settled or
leased before the owner was restarted, of records that are still to be read, and which member has a job, over
which connection.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from operator import attrgetter

from walstore.core.batches.batch import Batch
from walstore.core.batches.cost import cost_of
from walstore.positions.groups.delay import not_before_us
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.job_table import JobTable, OpenJob, in_parts, not_begun
from walstore.positions.groups.journal import Remembered
from walstore.positions.groups.redrive import is_job
from walstore.records import Record


class MemberJob(OpenJob):
    """A job, and the member that has it."""

    __slots__ = (
        "error", "first_us", "is_away", "is_begun", "last_us", "member", "record", "turn", "via",
    )  # fmt: skip

    record: Record
    """Once it is read."""

    def __init__(self, offset: int, deliveries: int = 0) -> None:
        super().__init__(offset, deliveries)
        self.error: str | None = None
        """What its last member said of a failure."""
        self.first_us: int | None = None
        """When it was delivered first, in microseconds since 1970 UTC; None if that is not known."""
        self.last_us: int | None = None
        """The same of the last time."""
        self.is_away = False
        """Whether the member that has it may survive this process."""
        self.member = b""
        self.via: object = None
        """The connection over which the member has it; None within the process."""
        self.turn = 0
        """Higher than that of each lease that began before."""
        self.is_begun = False
        """Whether the member said so, by extending its lease."""


class GroupState(JobTable[MemberJob]):
    """The jobs of one group. Belongs to one event loop."""

    def __init__(
        self,
        settings: GroupSettings,
        position: int,
        found: Remembered | None = None,
        now: float = 0,
        *,
        delays: Mapping[int, float] | None = None,
    ) -> None:
        """Continue at ``position``, below which all is settled, with what was found in the journal.

        Members that may be alive have the jobs that they had then, as if their leases began ``now``. The
        ``delays`` are those of a state before, which the journal does not contain.
        """
        super().__init__(settings, position)
        found = found or Remembered(position)
        self.held_bytes = 0
        """What the outstanding records take in memory."""
        self._turns = 0
        self._settled = {offset for offset in found.settled_offsets() if offset >= position}
        self._unread = {
            offset: MemberJob(offset, deliveries)
            for offset, deliveries in found.deliveries.items()
            if offset >= position and offset not in self._settled
        }
        """Jobs that were delivered before, and are still to be read."""
        for offset in found.away & self._unread.keys():
            job = self._unread[offset]
            job.is_leased, job.is_away, job.due = True, True, now + settings.ack_wait_seconds
        for offset, due in (delays or {}).items():
            if offset in self._unread:
                job = self._unread[offset]
                job.is_leased, job.due = False, due

    def delays(self) -> dict[int, float]:
        """Return when jobs are due that were given back for later."""
        waiting = (*self._unread.values(), *self.jobs.values())
        return {job.offset: job.due for job in waiting if job.due is not None and not job.is_leased}

    def remembered(self) -> Remembered:
        """Return what a later owner has to know of the jobs."""
        marks = [self.floor - 1, *self.jobs, self.position]
        found = Remembered(self.floor)
        found.settled = [(low + 1, high) for low, high in pairwise(marks) if high > low + 1]
        found.settled += [(offset, offset + 1) for offset in sorted(self._settled)]
        unread = (job for job in self._unread.values() if job.offset >= self.position)
        for job in (*unread, *self.jobs.values()):
            if job.deliveries:
                found.deliveries[job.offset] = job.deliveries
                if job.is_leased and job.is_away:
                    found.away.add(job.offset)
        return found

    # -- changing ----------------------------------------------------------------------------

    def offer(
        self,
        batch: Batch,
        skipped_stream: str | None = None,
        *,
        group: str = "",
        now: float = 0.0,
        now_us: int = 0,
    ) -> None:
        """Take the next records of the log; those of ``skipped_stream`` and for other groups are settled.

        ``now_us`` is the same moment as ``now``, by the wall clock, which the delays of records mean.
        """
        for record in batch.records():
            offset = record.offset
            if offset in self._settled:
                self._settled.discard(offset)
            elif is_job(record, group, skipped_stream):
                job = self._unread.pop(offset, None) or MemberJob(offset)
                job.record, job.cost = record, cost_of(record)
                job.key = record.key if self.settings.is_ordered else None
                moment = not_before_us(record.headers) if record.headers else None
                if moment is not None and not job.deliveries:
                    job.delay(now + (moment - now_us) / 1e6, now)
                self.held_bytes += job.cost
                self.add(job)
        self.position = batch.limit

    def take(
        self,
        member: bytes,
        now: float,
        *,
        via: object = None,
        most_bytes: float = inf,
        now_us: int | None = None,
    ) -> MemberJob | None:
        """Lease a job to a member, and return it. None if the next one costs more than ``most_bytes``, too.

        ``via`` is the connection over which the member gets it, see :meth:`lose`. ``now_us`` is the moment
        for its dead letter.
        """
        job = self.lease_next(now, most_bytes)
        if job is not None:
            self._turns += 1
            job.turn = self._turns
            job.member, job.via, job.is_begun = member, via, False
            job.is_away = via is not None
            job.last_us = now_us
            if job.deliveries == 1:
                job.first_us = now_us
        return job

    def settle(self, offset: int) -> bool:
        """Settle a job, whoever holds it: the work is done. False if it was settled before.

        After a restart of the owner it may be one that is still to be read.
        """
        job = self.remove(offset)
        if job is not None:
            self.held_bytes -= job.cost
        elif offset < self.position or offset in self._settled:
            return False
        else:
            self._settled.add(offset)
            self._unread.pop(offset, None)
        return True

    def give_back(
        self,
        offset: int,
        deliveries: int,
        now: float,
        delay_seconds: float,
        *,
        member: bytes | None = None,
        error: str | None = None,
        is_final: bool = False,
    ) -> bool:
        """End a lease early; the job is due after a delay. False if the lease is another's by now.

        ``error`` is for its dead letter, which ``is_final`` makes of it now.
        """
        job = self._leased_job(offset, deliveries, member)
        if job is None:
            return False
        if error is not None:
            job.error = error
        job.is_hopeless = is_final
        if offset in self._unread:
            job.is_leased, job.due = False, now + delay_seconds
        else:
            self.end_lease(job, now + delay_seconds)
        return True

    def revoke(
        self, held: Iterable[tuple[int, int]], now: float, *, member: bytes | None = None
    ) -> list[tuple[int, int]]:
        """Undo leases that nobody learned of, by offset and deliveries: as :meth:`lose`."""
        found = (self._leased_job(*one, member) for one in held)
        return self._take_back((job for job in found if job and self._is_leased(job)), now)

    def extend(
        self,
        offset: int,
        deliveries: int,
        now: float,
        *,
        member: bytes | None = None,
        via: object = None,
    ) -> bool:
        """Begin a lease anew; False if it is another's by now, or over, or the job is settled."""
        job = self._leased_job(offset, deliveries, member)
        if job is not None and offset in self._unread:
            job.due = now + self.settings.ack_wait_seconds  # nobody else can have it
            return True
        if job is None or not self.renew(job, now):
            return False
        job.is_begun, job.via = True, via
        return True

    def lose(
        self, via: object, now: float, newest: Callable[[bytes], object] = lambda _: None
    ) -> Iterator[list[tuple[int, int]]]:
        """Give back what members have over a connection that ended; what they had not begun was no delivery.

        A member begins its jobs in their order, as far as is known: what it was given first of the jobs that
        it still has, it has begun, and whatever it has extended. One that has a newer connection, or was
        given jobs over one, has come back, and keeps its jobs.
        Goes on a part at a time: yields offset and deliveries of each job that was no delivery.
        """
        having: dict[bytes, list[MemberJob]] = {}
        for job in self.jobs.values():
            if job.is_leased and job.via is not None:
                having.setdefault(job.member, []).append(job)
        given: list[MemberJob] = []
        undone: set[MemberJob] = set()
        for member, jobs in having.items():
            lost = [job for job in jobs if job.via is via]
            later = next((job.via for job in jobs if job.via is not via), None)
            if (one := newest(member)) is not via:
                later = one or later
            if later is None:
                given += lost
                undone.update(not_begun(sorted(lost, key=attrgetter("turn"))))
            for job in lost:
                job.via = later or via
        for part in in_parts(given):
            still = [job for job in part if self._is_leased(job) and job.via is via]
            yield self._give_all(still, undone, now)

    def leave(
        self, member: bytes, now: float, held: Iterable[tuple[int, int]] = ()
    ) -> Iterator[list[tuple[int, int]]]:
        """Give back all that a member holds, as :meth:`lose`: what it had not begun was no delivery.

        Leases from before a restart of the owner say of no member that they are its own. ``held`` are the
        offsets and deliveries of the jobs that the member has: of those leases these are given back, too.
        """
        own = [job for job in self.jobs.values() if job.is_leased and job.member == member]
        undone = set(not_begun(sorted(own, key=attrgetter("turn"))))
        for part in in_parts(own):
            still = [job for job in part if self._is_leased(job) and job.member == member]
            yield self._give_all(still, undone, now)
        for some in in_parts(list(held)):
            for one in some:
                self.give_back(*one, now, 0.0, member=member)
            yield []

    # -- inside ------------------------------------------------------------------------------

    def _is_leased(self, job: MemberJob) -> bool:
        """Whether a job that was found before is still there, and somebody's."""
        return job.is_leased and self.jobs.get(job.offset) is job

    def _give_all(
        self, jobs: Sequence[MemberJob], undone: Container[MemberJob], now: float
    ) -> list[tuple[int, int]]:
        """End leases, those of ``undone`` as no deliveries; return offset and deliveries of these."""
        for job in jobs:
            if job not in undone:
                self.end_lease(job, now)
        return self._take_back((job for job in jobs if job in undone), now)

    def _take_back(self, jobs: Iterable[MemberJob], now: float) -> list[tuple[int, int]]:
        """Undo leases; return offset and deliveries of each job."""
        given: list[tuple[int, int]] = []
        for job in jobs:
            self.undo(job, now)
            given.append((job.offset, job.deliveries))
        return given

    def _leased_job(
        self, offset: int, deliveries: int, member: bytes | None = None
    ) -> MemberJob | None:
        """Return a job under a certain lease. Of a lease from before a restart the member is not known."""
        job = self.jobs.get(offset) or self._unread.get(offset)
        if job is None or not job.is_leased or job.deliveries != deliveries:
            return None
        return job if member is None or job.member in (member, b"") else None
