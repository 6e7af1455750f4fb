"""JobTable: the jobs of a group that are not settled, and the rules by which members get them. Pure.

The rules of every group. The owner of a log has one table for as long as the group is open
(``group_state.py``). Of a group in a store, each change is a table that is made of the stored object, and
becomes the next one
(``uploader/positions/groups/group_turn.py``). Both only add how a member's lease is told from another one.
Time comes with each call.

Invariants (tests/walstore/positions/groups/test_job_table.py)
  J1  No job is leased to two members while the first lease holds.
  J2  A settled job is never delivered again.
  J3  Of jobs with one key, each is delivered only when those before it are settled.
  J4  No job is delivered more than ``max_deliver`` times; then it is dead. What a member had not begun when
      it left was no delivery.
  J5  No more than ``max_ack_pending`` jobs are leased, but for dead ones.
  J6  No job is delivered before the moment that its record says.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from walstore.positions.groups.group_settings import GroupSettings

MOST_DELAYED: Final = 10_000
"""How many jobs that are due later a group knows, until it looks at no more of the log."""
PART_JOBS: Final = 1000
"""How many jobs are given back in one step of the event loop."""
_STALE_MOMENTS: Final = 1000
"""How many moments of jobs that were settled or extended are kept, beside one for each job."""


class OpenJob:
    """A job that is not settled."""

    __slots__ = (
        "cost",
        "deliveries",
        "due",
        "is_delayed",
        "is_hopeless",
        "is_leased",
        "key",
        "offset",
        "since",
    )

    def __init__(
        self,
        offset: int,
        deliveries: int = 0,
        *,
        is_leased: bool = False,
        due: float | None = None,
        key: Hashable = None,
    ) -> None:
        self.offset = offset
        self.deliveries = deliveries
        """How often it was delivered."""
        self.is_leased = is_leased
        self.due = due
        """When the lease ends, or when it may be delivered again; None for neither."""
        self.key = key
        """In a group ordered by key, its key; None for none."""
        self.since = inf
        """If its record says so, the moment from which it may be delivered first; see :meth:`delay`."""
        self.is_delayed = False
        """Whether it waits for that moment."""
        self.is_hopeless = False
        """Whether it is not to be delivered again, however often it was."""
        self.cost = 0
        """Bytes that it takes in memory, and about as many on its way to a member."""

    def delay(self, since: float, now: float) -> None:
        """Let nobody have the job before a moment. Those that waited come first, by their moments."""
        self.since = since
        if since > now:
            self.due, self.is_delayed = since, True


_O = TypeVar("_O", bound=OpenJob)


class JobTable(Generic[_O]):
    """The jobs of one group. Belongs to one event loop."""

    def __init__(self, settings: GroupSettings, position: int) -> None:
        """Without a job; all below ``position`` is settled."""
        self.position = position
        """Offset of the next record that the group has not looked at."""
        self.jobs: OrderedDict[int, _O] = OrderedDict()
        """What is not settled, by offset, in order."""
        self.leased = 0
        """How many of them are leased."""
        self.delayed = 0
        """How many of them wait for the moment of their first delivery."""
        self.dead: deque[_O] = deque()
        """Those that were delivered too often. They stay outstanding until settled."""
        self.settings = settings
        # Jobs that may be leased, as a heap by the moment that they waited for, then by offset.
        self._ready: list[tuple[float, int]] = []
        # Moments at which a lease ends or a job is due, some of them no longer true.
        self._moments: list[tuple[float, int]] = []
        # By key, what waits behind an outstanding job.
        self._behind: dict[Hashable, OrderedDict[int, None]] = {}

    @property
    def floor(self) -> int:
        """Everything below it is settled."""
        return next(iter(self.jobs), self.position)

    @property
    def next_moment(self) -> float | None:
        """When a lease ends or a job is due next; None if nothing of the kind will happen."""
        return self._moments[0][0] if self._moments else None

    @property
    def is_full(self) -> bool:
        """Whether no more jobs are to be added."""
        unsettled = len(self.jobs) - self.delayed
        return unsettled >= self.settings.most_unsettled or self.delayed >= MOST_DELAYED

    @property
    def may_lease(self) -> bool:
        """Whether fewer jobs are leased than may be."""
        return self.leased < self.settings.max_ack_pending

    def is_spent(self, deliveries: int) -> bool:
        """Whether a job with so many deliveries is not to be delivered again."""
        return self.settings.max_deliver is not None and deliveries >= self.settings.max_deliver

    # -- changing ----------------------------------------------------------------------------

    def add(self, job: _O) -> None:
        """Add the next job of the log. It may be leased already, or due later."""
        self.jobs[job.offset] = job
        self.leased += job.is_leased
        self.delayed += job.is_delayed
        if job.key is not None:
            if job.key in self._behind:
                self._behind[job.key][job.offset] = None
            else:
                self._behind[job.key] = OrderedDict()
        if job.due is not None:
            heappush(self._moments, (job.due, job.offset))
        else:
            self._release(job)

    def lease_next(self, now: float, most_cost: float = inf) -> _O | None:
        """Lease the first job that may be delivered, and return it.

        None if it costs more than ``most_cost``: it stays the first.
        """
        self.pass_time(now)
        while self._ready and self.may_lease:
            job = self.jobs.get(self._ready[0][1])
            if job is not None and job.cost > most_cost:
                return None
            heappop(self._ready)
            if job is not None:  # not settled meanwhile
                self.lease(job, now)
                return job
        return None

    def lease(self, job: _O, now: float) -> None:
        """Lease a job, which is a delivery."""
        job.deliveries += 1
        job.is_leased = True
        job.since = inf
        self.leased += 1
        self._set_due(job, now + self.settings.ack_wait_seconds)

    def remove(self, offset: int) -> _O | None:
        """Settle a job, whoever has it, and return it; None if it is not there."""
        job = self.jobs.pop(offset, None)
        if job is None:
            return None
        self.leased -= job.is_leased
        self.delayed -= job.is_delayed
        if job.key is not None:
            behind = self._behind[job.key]
            if offset in behind:  # before its turn, by an acknowledgement from before a restart
                del behind[offset]
            elif behind:
                first = self.jobs[behind.popitem(last=False)[0]]
                if first.due is None:
                    self._release(first)
            else:
                del self._behind[job.key]
        return job

    def end_lease(self, job: _O, due: float) -> None:
        """End a lease early; the job may be delivered again when it is due."""
        self.leased -= job.is_leased
        job.is_leased = False
        self._set_due(job, due)

    def undo(self, job: _O, now: float) -> None:
        """End a lease that was no delivery."""
        job.deliveries -= 1
        self.end_lease(job, now)

    def renew(self, job: _O, now: float) -> bool:
        """Begin a lease anew; False if it is over."""
        if not job.is_leased or job.due is None or job.due <= now:
            return False
        self._set_due(job, now + self.settings.ack_wait_seconds)
        return True

    def pass_time(self, now: float) -> None:
        """End the leases that have run out, and let be delivered what waited until now."""
        while self._moments and self._moments[0][0] <= now:
            moment, offset = heappop(self._moments)
            job = self.jobs.get(offset)
            if job is None or job.due != moment:
                continue  # settled, extended or given back meanwhile
            job.due = None
            self.leased -= job.is_leased
            self.delayed -= job.is_delayed
            job.is_leased = job.is_delayed = False
            self._release(job)

    # -- inside ------------------------------------------------------------------------------

    def _set_due(self, job: _O, moment: float) -> None:
        job.due = moment
        heappush(self._moments, (moment, job.offset))
        if len(self._moments) > 2 * len(self.jobs) + _STALE_MOMENTS:
            self._moments = [(one.due, at) for at, one in self.jobs.items() if one.due is not None]
            heapify(self._moments)

    def _release(self, job: _O) -> None:
        """Let a job be delivered or buried, unless another one of its key is before it."""
        if job.key is not None and job.offset in self._behind[job.key]:
            return
        if job.is_hopeless or self.is_spent(job.deliveries):
            self.dead.append(job)
        else:
            heappush(self._ready, (job.since, job.offset))


class HeldJob(Protocol):
    """A job that a member has."""

    is_begun: bool
    """Whether the member said so, by extending its lease."""


_H = TypeVar("_H", bound=HeldJob)
_T = TypeVar("_T")


def not_begun(jobs: Iterable[_H]) -> list[_H]:
    """Return which of a member's jobs, in the order in which it has them, it has not begun.

    It takes them in that order, so it has begun the first, and whatever it said it has.
    """
    return [job for job in islice(jobs, 1, None) if not job.is_begun]


def in_parts(jobs: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Cut jobs into parts, each of which takes no event loop for long."""
    for low in range(0, len(jobs), PART_JOBS):
        yield jobs[low : low + PART_JOBS]
