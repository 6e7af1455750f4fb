"""The invariants at the head of JobTable, of both tables that have its rules, against a model.

Members do anything at any time: of a log that is open, and of one in a store, where each is a process of its
own that has only seen some of the documents, and whose clock says what it likes.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.format.group_document import GroupDocument
from uploader.positions.groups.group_turn import GroupTurn, Lease, Sight
from walstore.core.batches.derived import EmptyBatch
from walstore.positions.groups.delay import NOT_BEFORE
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.group_state import GroupState
from walstore.positions.groups.job_table import MOST_DELAYED, JobTable, OpenJob
from walstore.records import Record

WAIT = 10.0
MEMBERS = (b"a", b"b", b"c")


class Given(NamedTuple):
    """A job that a member got."""

    offset: int
    deliveries: int
    member: bytes
    lease: Any


class Table(Protocol):
    """A group's jobs, in one place or another."""

    def append(self, keys: Sequence[bytes | None], due: float, now: float) -> None: ...
    def take(self, member: bytes, most: int, now: float) -> list[Given]: ...
    def settle(self, job: Given, now: float) -> None: ...
    def give_back(self, job: Given, delay: float, now: float) -> None: ...
    def undo(self, job: Given, now: float) -> None: ...
    def extend(self, job: Given, now: float) -> bool: ...
    def bury(self, now: float) -> list[tuple[int, int]]: ...
    @property
    def floor(self) -> int: ...


class Records(EmptyBatch):
    """Records as a batch."""

    __slots__ = ("_records",)

    def __init__(self, records: list[Record]) -> None:
        super().__init__(records[0].offset, records[-1].offset + 1)
        self._records = records

    def records(self) -> list[Record]:
        return self._records


def wall_us(now: float) -> int:
    """Return what the wall clock says at a moment."""
    return 1_750_000_000_000_000 + round(now * 1e6)


def made(first: int, keys: Sequence[bytes | None], due: float) -> list[Record]:
    """Return records with these keys that are due at a moment; 0 says that they are at once."""
    headers = {NOT_BEFORE: b"%d" % wall_us(due)} if due else {}
    return [Record(at, b"", key, None, headers) for at, key in enumerate(keys, first)]


class Owned:
    """As the owner of the log has it."""

    def __init__(self, settings: GroupSettings) -> None:
        self._state = GroupState(settings, 1)

    def append(self, keys: Sequence[bytes | None], due: float, now: float) -> None:
        batch = Records(made(self._state.position, keys, due))
        self._state.offer(batch, now=now, now_us=wall_us(now))

    def take(self, member: bytes, most: int, now: float) -> list[Given]:
        found = (self._state.take(member, now) for _ in range(most))
        return [Given(job.offset, job.deliveries, member, None) for job in found if job]

    def settle(self, job: Given, now: float) -> None:
        self._state.settle(job.offset)

    def give_back(self, job: Given, delay: float, now: float) -> None:
        self._state.give_back(job.offset, job.deliveries, now, delay, member=job.member)

    def undo(self, job: Given, now: float) -> None:
        self._state.revoke([(job.offset, job.deliveries)], now, member=job.member)

    def extend(self, job: Given, now: float) -> bool:
        return self._state.extend(job.offset, job.deliveries, now, member=job.member)

    def bury(self, now: float) -> list[tuple[int, int]]:
        self._state.pass_time(now)
        dead = [(job.offset, job.deliveries) for job in self._state.dead]
        self._state.dead.clear()
        for offset, _ in dead:
            self._state.settle(offset)
        return dead

    @property
    def floor(self) -> int:
        return self._state.floor


class Stored:
    """As processes have it that share an object in a store, a member each."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._document = GroupDocument(made="m", tag="t-0", is_ordered=settings.is_ordered)
        self._records: list[Record] = []
        self._tags = count(1)
        self._sights = {member: Sight() for member in MEMBERS}
        self._spent: list[tuple[int, int]] = []

    def append(self, keys: Sequence[bytes | None], due: float, now: float) -> None:
        self._records += made(len(self._records) + 1, keys, due)

    def _begin(self, member: bytes, now: float) -> GroupTurn:
        now_us = wall_us(now)
        now += 1000.0 * MEMBERS.index(member)
        tag = f"t-{next(self._tags)}"
        self._sights[member].look(self._document, now, {}, now_us=now_us)
        return GroupTurn(self._document, self._sights[member], self._settings, tag=tag, now=now)

    def _put(self, turn: GroupTurn, member: bytes, now: float) -> None:
        if (document := turn.made()) is not None:
            now_us = wall_us(now)
            now += 1000.0 * MEMBERS.index(member)
            self._sights[member].look(document, now, {document.tag: now}, now_us=now_us)
            self._document = GroupDocument.parse(document.serialise(), name="g")

    def take(self, member: bytes, most: int, now: float) -> list[Given]:
        turn = self._begin(member, now)
        taken, spent = turn.take(most, self._records, len(self._records) + 1)
        self._put(turn, member, now)
        self._spent += [(lease.offset, lease.deliveries - 1) for lease in spent]
        return [Given(lease.offset, lease.deliveries, member, lease) for lease in taken]

    def settle(self, job: Given, now: float) -> None:
        turn = self._begin(job.member, now)
        turn.settle(job.offset)
        self._put(turn, job.member, now)

    def give_back(self, job: Given, delay: float, now: float) -> None:
        turn = self._begin(job.member, now)
        turn.give_back(job.lease, delay)
        self._put(turn, job.member, now)

    def undo(self, job: Given, now: float) -> None:
        turn = self._begin(job.member, now)
        turn.revoke(job.lease)
        self._put(turn, job.member, now)

    def extend(self, job: Given, now: float) -> bool:
        turn = self._begin(job.member, now)
        is_extended = turn.extend(job.lease)
        self._put(turn, job.member, now)
        return is_extended

    def bury(self, now: float) -> list[tuple[int, int]]:
        spent, self._spent = self._spent, []
        for offset, _ in spent:
            self.settle(Given(offset, 0, b"a", Lease(offset, 0, set())), now)
        return spent

    @property
    def floor(self) -> int:
        return self._document.floor


class Model:
    """What has to be so, whatever the place."""

    def __init__(self, settings: GroupSettings, table: Table) -> None:
        self.settings = settings
        self.table = table
        self.now = 0.0
        self.keys: list[bytes | None] = [b"before the log"]
        self.settled: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.held: list[Given] = []
        """All that were given and have not been said to be ended; the lease may be over."""
        self.until: dict[int, float] = {}
        """Until when nobody may get a job: its lease, or its delay."""
        self.waiting: set[int] = set()
        """Those that are leased to nobody, for a delay."""

    def append(self, keys: Sequence[bytes | None], delay: float = 0.0) -> None:
        due = self.now + delay if delay else 0.0
        if delay:
            offsets = range(len(self.keys), len(self.keys) + len(keys))
            self.until |= dict.fromkeys(offsets, due)
            self.waiting.update(offsets)
        self.keys += keys
        self.table.append(keys, due, self.now)

    def take(self, member: bytes, most: int) -> list[Given]:
        held = {offset for offset, until in self.until.items() if until > self.now}
        leased = len(held - self.waiting)
        given = self.table.take(member, most, self.now)
        for job in given:
            self._check(job)
            self.deliveries[job.offset] = job.deliveries
            self.until[job.offset] = self.now + WAIT
            self.waiting.discard(job.offset)
        assert len(given) <= max(0, self.settings.max_ack_pending - leased)  # J5
        self.held += given
        return given

    def _check(self, job: Given) -> None:
        most, key = self.settings.max_deliver, self.keys[job.offset]
        assert job.offset not in self.settled  # J2
        assert self.until.get(job.offset, 0.0) <= self.now  # J1, J6
        assert job.deliveries == self.deliveries.get(job.offset, 0) + 1  # J4
        assert most is None or job.deliveries <= most
        if self.settings.is_ordered and key is not None:  # J3
            before = {at for at in range(1, job.offset) if self.keys[at] == key}
            assert before <= self.settled

    def settle(self, job: Given) -> None:
        """Also of one whose lease is over: the work is done."""
        self.table.settle(job, self.now)
        self._end(job.offset)

    def _end(self, offset: int) -> None:
        self.settled.add(offset)
        self.until.pop(offset, None)

    def _is_latest(self, job: Given) -> bool:
        """Whether the lease is the last one of its job, and not over."""
        mine = [one for one in self.held if one.offset == job.offset]
        is_leased = self.until.get(job.offset, 0.0) > self.now and job.offset not in self.waiting
        return mine[-1] is job and is_leased

    def give_back(self, job: Given, delay: float) -> None:
        if self._is_latest(job):
            self.until[job.offset] = self.now + delay
            self.waiting.add(job.offset)
        self.table.give_back(job, delay, self.now)

    def undo(self, job: Given) -> None:
        if self._is_latest(job):
            self.until[job.offset] = self.now
            self.deliveries[job.offset] -= 1
            self.waiting.add(job.offset)
            self.table.undo(job, self.now)

    def extend(self, job: Given) -> None:
        is_held = self._is_latest(job)
        assert self.table.extend(job, self.now) == is_held
        if is_held:
            self.until[job.offset] = self.now + WAIT

    def bury(self) -> None:
        for offset, deliveries in self.table.bury(self.now):
            if offset not in self.settled:
                assert deliveries == self.deliveries[offset] == self.settings.max_deliver  # J4
                assert self.until.get(offset, 0.0) <= self.now
            self._end(offset)

    def check_floor(self, *, is_all: bool = False) -> None:
        """Everything below the floor is settled, and no job of above was passed."""
        floor = self.table.floor
        assert self.settled >= set(range(1, floor))
        assert floor == len(self.keys) or floor not in self.settled
        assert not is_all or floor == len(self.keys)


KINDS = ("append", "take", "take", "take", "settle", "extend", "undo", "give_back", "pass", "pass")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), min_size=10, max_size=60)
OPTIONS = st.fixed_dictionaries(
    {
        "is_ordered": st.booleans(),
        "max_deliver": st.sampled_from((None, 1, 2, 3)),
        "max_ack_pending": st.sampled_from((1, 3, 100)),
    }
)


def step(model: Model, kind: str, number: int) -> None:
    """Do something; the number says with what."""
    job = model.held[number % len(model.held)] if model.held else None
    match kind:
        case "append":
            keys = [(None, b"k", b"l")[(number + at) % 3] for at in range(1 + number % 4)]
            model.append(keys, (0.0, 0.0, 5.0)[number % 3])
        case "take":
            model.take(MEMBERS[number % 3], 1 + number // 3)
        case "pass":
            model.now += (1.0, 9.0, 10.0)[number % 3]
        case "extend" if job:
            model.extend(job)
        case "settle" | "undo" if job:
            getattr(model, kind)(job)
            model.held.remove(job)
        case "give_back" if job:
            model.give_back(job, 3.0 * (number % 2))
            model.held.remove(job)


@pytest.mark.parametrize("place", [Owned, Stored])
@given(options=OPTIONS, steps=STEPS)
def test_the_invariants(
    place: type[Owned | Stored], options: dict[str, Any], steps: list[tuple[str, int]]
) -> None:
    group = GroupSettings(ack_wait_seconds=WAIT, **options)
    model = Model(group, place(group))
    for kind, number in [("append", 3), ("take", 11), *steps]:
        step(model, kind, number)
        model.bury()
        model.check_floor()
    for _ in range(20):  # in the end all is done
        for member in MEMBERS:
            while given_now := model.take(member, 100):
                for job in given_now:
                    model.settle(job)
            model.bury()
        model.now += WAIT
    model.check_floor(is_all=True)


def test_only_so_many_delayed_jobs_are_known() -> None:
    table: JobTable[OpenJob] = JobTable(GroupSettings(max_ack_pending=1), 1)
    for offset in range(1, MOST_DELAYED + 1):
        assert not table.is_full
        job = OpenJob(offset)
        job.delay(10.0, 0.0)
        table.add(job)
    assert table.is_full
    table.remove(1)
    assert not table.is_full
    table.pass_time(10.0)  # now they count as any other
    assert (table.delayed, table.is_full) == (0, True)


def test_jobs_that_are_done_leave_nothing_behind() -> None:
    """Nor does one that is extended again and again, however long a lease is."""
    table: JobTable[OpenJob] = JobTable(GroupSettings(ack_wait_seconds=3600), 1)
    tracemalloc.start()
    try:
        for offset in range(1, 30_000):
            table.add(OpenJob(offset))
            assert table.lease_next(0) is not None
            table.remove(offset)
        table.add(OpenJob(30_000))
        job = table.lease_next(0)
        assert job is not None
        for now in range(30_000):
            assert table.renew(job, now / 100)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
