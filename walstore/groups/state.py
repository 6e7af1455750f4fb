"""GroupState: which jobs of a group are waiting, leased or settled. Pure: time comes with each call.

A record that the group has read and nobody has settled is outstanding. All below the first outstanding one is
settled: that is the floor, and the only thing that the log has to keep is what lies above it.

Invariants (tests/walstore/groups/test_state.py)
  G1  No job is leased to two members while the first lease holds.
  G2  A settled job is never delivered again.
  G3  With order by key, a job is delivered only when those of the same key before it are settled.
  G4  No job is delivered more than ``max_deliver`` times; then it is dead. What a member had not begun when
      its connection ended was no delivery.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from math import inf
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from walstore.batches.batch import Batch
from walstore.batches.cost import cost_of
from walstore.records import Record

PART_JOBS: Final = 1000
"""How many jobs are given back in one step of the event loop."""


class HeldJob(Protocol):
    """A job that a member has."""

    is_begun: bool
    """Whether the member said so, by extending its lease."""


_J = TypeVar("_J", bound=HeldJob)
_T = TypeVar("_T")


class _Outstanding:
    """A record that is not settled."""

    __slots__ = (
        "cost",
        "deadline",
        "deliveries",
        "is_away",
        "is_begun",
        "is_leased",
        "member",
        "record",
        "turn",
        "via",
    )

    def __init__(self, record: Record, deliveries: int) -> None:
        self.record = record
        self.cost = cost_of(record)
        """Bytes that it takes in memory, and about as many on its way to a member."""
        self.deliveries = deliveries
        self.is_leased = False
        self.is_away = False
        """Whether the member that has it may survive this process."""
        self.deadline: float | None = None
        """When the lease ends, or when a job that waits is due; None for neither."""
        self.member = b""
        self.via: object = None
        """The connection over which the member has it; None within the process."""
        self.turn = 0
        """Higher than that of each lease that began before."""
        self.is_begun = False
        """Whether the member said so, by extending its lease."""


class GroupState:
    """The jobs of one group. Belongs to one event loop."""

    def __init__(
        self,
        position: int,
        *,
        settled: Iterable[int] = (),
        deliveries: dict[int, int] | None = None,
        leased_until: dict[int, float] | None = None,
        ack_wait_seconds: float,
        max_deliver: int | None,
        is_ordered: bool,
    ) -> None:
        """Continue at ``position``, below which all is settled.

        ``settled`` are offsets above it that are settled, too; ``deliveries`` says how often others were
        delivered; ``leased_until`` until when members that may be alive still hold some.
        """
        self.position = position
        """Where reading continues."""
        self.leased = 0
        """How many jobs are leased."""
        self.held_bytes = 0
        """What the outstanding records take in memory."""
        self._turns = 0
        self.dead: deque[tuple[Record, int]] = deque()
        """Jobs that were delivered too often, with their deliveries. They stay outstanding until settled."""
        self._settled = {offset for offset in settled if offset >= position}
        self._deliveries = deliveries or {}
        self._leased_until = leased_until or {}
        self._ack_wait_seconds = ack_wait_seconds
        self._max_deliver = max_deliver
        self._is_ordered = is_ordered
        self._outstanding: OrderedDict[int, _Outstanding] = OrderedDict()
        self._fresh: deque[int] = deque()
        # Moments at which a lease ends or a job is due, some of them no longer true.
        self._moments: list[tuple[float, int]] = []
        self._due: deque[int] = deque()
        # With order by key: what waits behind an outstanding job of the same key.
        self._behind: dict[bytes, OrderedDict[int, None]] = {}

    # -- looking -----------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """Everything below it is settled."""
        return next(iter(self._outstanding), self.position)

    @property
    def outstanding(self) -> int:
        """How many records were read and are not settled."""
        return len(self._outstanding)

    @property
    def has_jobs(self) -> bool:
        """Whether a member could be given a job now, as far as is known."""
        return bool(self._due or self._fresh)

    @property
    def next_moment(self) -> float | None:
        """When a lease ends or a job is due next; None if nothing of the kind will happen."""
        return self._moments[0][0] if self._moments else None

    def settled_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield what is settled at or above the floor, as half-open intervals in order."""
        marks = [self.floor - 1, *self._outstanding, self.position]
        for before, after in pairwise(marks):
            if after > before + 1:
                yield before + 1, after
        for offset in sorted(self._settled):
            yield offset, offset + 1

    def delivered(self) -> Iterator[tuple[int, int, bool]]:
        """Yield offset and deliveries of each unsettled job that was delivered, also of those still to be
        read.

        And whether a member that may survive this process has it.
        """
        for offset, deliveries in self._deliveries.items():
            if offset >= self.position and offset not in self._settled:
                yield offset, deliveries, offset in self._leased_until
        for offset, job in self._outstanding.items():
            if job.deliveries:
                yield offset, job.deliveries, job.is_leased and job.is_away

    # -- records -----------------------------------------------------------------------------

    def offer(self, batch: Batch, skipped_stream: str | None = None) -> None:
        """Take the next records of the log; those of ``skipped_stream`` count as settled."""
        for record in batch.records():
            offset = record.offset
            if offset in self._settled:
                self._settled.discard(offset)
            elif skipped_stream is None or record.stream != skipped_stream:
                self._add(record)
        self.position = batch.limit

    def _add(self, record: Record) -> None:
        offset = record.offset
        job = self._outstanding[offset] = _Outstanding(record, self._deliveries.pop(offset, 0))
        self.held_bytes += job.cost
        until = self._leased_until.pop(offset, None)
        if self._is_ordered and record.key is not None:
            behind = self._behind.get(record.key)
            if behind is not None:
                behind[offset] = None
                return
            self._behind[record.key] = OrderedDict()
        if until is not None:
            job.is_leased = job.is_away = True
            self.leased += 1
            self._at(job, until)
        elif self._is_spent(job):
            self.dead.append((record, job.deliveries))
        else:
            self._fresh.append(offset)

    # -- members -----------------------------------------------------------------------------

    def take(
        self,
        member: bytes,
        now: float,
        *,
        is_away: bool = False,
        via: object = None,
        most_bytes: float = inf,
    ) -> tuple[Record, int] | None:
        """Lease a job to a member: the record, and how often it has been delivered, this time included.

        None if the next one costs more than ``most_bytes``, too: it stays the next. ``via`` is the
        connection over which the member gets it, see :meth:`lose`.
        """
        self.pass_time(now)
        for queue in (self._due, self._fresh):
            while queue:
                job = self._outstanding.get(queue[0])
                if job is None or job.is_leased:
                    queue.popleft()
                    continue
                if job.cost > most_bytes:
                    return None
                queue.popleft()
                self._turns += 1
                job.turn = self._turns
                job.is_leased = True
                job.is_begun = False
                job.is_away = is_away
                job.member = member
                job.via = via
                job.deliveries += 1
                self.leased += 1
                self._at(job, now + self._ack_wait_seconds)
                return job.record, job.deliveries
        return None

    def settle(self, offset: int) -> bool:
        """Settle a job, whoever holds it: the work is done. False if it was settled before.

        After a restart of the owner it may be one that is still to be read.
        """
        job = self._outstanding.pop(offset, None)
        if job is None:
            if offset < self.position or offset in self._settled:
                return False
            self._settled.add(offset)
            self._leased_until.pop(offset, None)
            return True
        self.leased -= job.is_leased
        self.held_bytes -= job.cost
        key = job.record.key
        if self._is_ordered and key is not None:
            behind = self._behind[key]
            if offset in behind:  # before its turn, by an acknowledgement from before a restart
                del behind[offset]
            elif behind:
                self._release_first(behind)
            else:
                del self._behind[key]
        return True

    def _release_first(self, behind: OrderedDict[int, None]) -> None:
        """Make the next job of a key available."""
        job = self._outstanding[behind.popitem(last=False)[0]]
        if self._is_spent(job):
            self.dead.append((job.record, job.deliveries))
        else:
            self._fresh.appendleft(job.record.offset)

    def give_back(
        self,
        offset: int,
        deliveries: int,
        now: float,
        delay_seconds: float,
        *,
        member: bytes | None = None,
    ) -> bool:
        """End a lease early; the job is due after a delay. False if the lease is another's by now."""
        job = self._leased_job(offset, deliveries, member)
        if job is None:
            if not self._is_held_unread(offset, deliveries):
                return False
            self._leased_until[offset] = now + delay_seconds
            return True
        self._end_lease(job, now + delay_seconds)
        if delay_seconds <= 0:
            self.pass_time(now)
        return True

    def revoke(
        self, held: Iterable[tuple[int, int]], now: float, *, member: bytes | None = None
    ) -> list[tuple[int, int]]:
        """Undo leases that nobody learned of, by offset and deliveries: as :meth:`lose`."""
        found = (self._leased_job(*one, member) for one in held)
        return self._take_back([job for job in found if job is not None], now)

    def extend(
        self,
        offset: int,
        deliveries: int,
        now: float,
        *,
        member: bytes | None = None,
        via: object = None,
    ) -> bool:
        """Begin a lease anew; False if it is another's by now, or the job is settled."""
        job = self._leased_job(offset, deliveries, member)
        if job is None and self._is_held_unread(offset, deliveries):
            self._leased_until[offset] = now + self._ack_wait_seconds
            return True
        if job is None or job.deadline is None or job.deadline <= now:
            return False
        job.is_begun, job.via = True, via
        self._at(job, now + self._ack_wait_seconds)
        return True

    def lose(self, via: object, now: float) -> Iterator[list[tuple[int, int]]]:
        """Give back what members had over a connection that ended, and did not begin: it was no delivery.

        A member begins its jobs in their order, as far as is known: what it was given first of the jobs that
        it still has, it has begun, and whatever it has extended. Of those the leases go on, so a member that
        comes back may end them. One that was given jobs over a later connection has come back.
        Goes on a part at a time: yields offset and deliveries of each job that was given back.
        """
        having: dict[bytes, list[_Outstanding]] = {}
        for job in self._outstanding.values():
            if job.is_leased and job.via is not None:
                having.setdefault(job.member, []).append(job)
        given: list[_Outstanding] = []
        for jobs in having.values():
            lost = [job for job in jobs if job.via is via]
            later = next((job.via for job in jobs if job.via is not via), None)
            if later is None:
                given += not_begun(_in_turn(lost))
            for job in lost:
                job.via = later or via
        for part in in_parts(given):
            still = (job for job in part if self._is_leased(job) and not job.is_begun)
            yield self._take_back([job for job in still if job.via is via], now)

    def leave(
        self, member: bytes, now: float, held: Iterable[tuple[int, int]] = ()
    ) -> Iterator[list[tuple[int, int]]]:
        """Give back all that a member holds, as :meth:`lose`: what it had not begun was no delivery.

        Leases from before a restart of the owner say of no member that they are its own. ``held`` are the
        offsets and deliveries of the jobs that the member has: of those leases these are given back, too.
        """
        own = [job for job in self._outstanding.values() if job.is_leased and job.member == member]
        undone = set(not_begun(_in_turn(own)))
        for part in in_parts(own):
            still = [job for job in part if self._is_leased(job) and job.member == member]
            for job in still:
                if job not in undone:
                    self._end_lease(job, now)
            yield self._take_back([job for job in still if job in undone], now)
        for some in in_parts(list(held)):
            for one in some:
                self.give_back(*one, now, 0.0, member=member)
            yield []

    def pass_time(self, now: float) -> None:
        """End the leases that have run out, and make due what waited until now."""
        while self._moments and self._moments[0][0] <= now:
            moment, offset = heapq.heappop(self._moments)
            job = self._outstanding.get(offset)
            if job is None or job.deadline != moment:
                continue  # settled, extended or given back meanwhile
            job.deadline = None
            if job.is_leased:
                job.is_leased = False
                self.leased -= 1
            if self._is_spent(job):
                self.dead.append((job.record, job.deliveries))
            else:
                self._due.append(offset)

    # -- inside ------------------------------------------------------------------------------

    def _is_leased(self, job: _Outstanding) -> bool:
        """Whether a job that was found before is still there, and somebody's."""
        return job.is_leased and self._outstanding.get(job.record.offset) is job

    def _at(self, job: _Outstanding, moment: float) -> None:
        job.deadline = moment
        heapq.heappush(self._moments, (moment, job.record.offset))

    def _take_back(self, jobs: Iterable[_Outstanding], now: float) -> list[tuple[int, int]]:
        """Undo leases; return offset and deliveries of each job."""
        for job in jobs:
            job.deliveries -= 1
            self._end_lease(job, now)
        self.pass_time(now)
        return [(job.record.offset, job.deliveries) for job in jobs]

    def _end_lease(self, job: _Outstanding, due: float) -> None:
        job.is_leased = False
        self.leased -= 1
        self._at(job, due)

    def _is_spent(self, job: _Outstanding) -> bool:
        return self._max_deliver is not None and job.deliveries >= self._max_deliver

    def _is_held_unread(self, offset: int, deliveries: int) -> bool:
        """Whether a member from before a restart holds a job that is still to be read."""
        return offset in self._leased_until and self._deliveries.get(offset) == deliveries

    def _leased_job(
        self, offset: int, deliveries: int, member: bytes | None = None
    ) -> _Outstanding | None:
        """Return a job under a certain lease. Of a lease from before a restart the member is not known."""
        job = self._outstanding.get(offset)
        if job is None or not job.is_leased or job.deliveries != deliveries:
            return None
        return job if member is None or job.member in (member, b"") else None


def not_begun(jobs: Iterable[_J]) -> list[_J]:
    """Return which of a member's jobs, in the order in which it has them, it has not begun.

    It takes them in that order, so it has begun the first, and whatever it said it has.
    """
    return [job for job in islice(jobs, 1, None) if not job.is_begun]


def in_parts(jobs: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Cut jobs into parts, each of which takes no event loop for long."""
    for low in range(0, len(jobs), PART_JOBS):
        yield jobs[low : low + PART_JOBS]


def _in_turn(jobs: Iterable[_Outstanding]) -> list[_Outstanding]:
    return sorted(jobs, key=attrgetter("turn"))
