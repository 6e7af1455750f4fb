"""GroupState: what the owner of a log adds to the rules of a table: restarts, connections, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from walstore.core.batches.derived import EmptyBatch
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.group_state import GroupState
from walstore.positions.groups.job_table import PART_JOBS
from walstore.positions.groups.journal import Remembered
from walstore.records import Record

WAIT = 10.0
Held = Sequence[tuple[int, int]]


class Batch(EmptyBatch):
    """Records as a batch."""

    __slots__ = ("_records",)

    def __init__(self, records: list[Record]) -> None:
        super().__init__(records[0].offset, records[-1].offset + 1)
        self._records = records

    def records(self) -> list[Record]:
        return self._records


def make(
    start: int = 1, count: int = 0, keys: str = "", found: Remembered | None = None, **options: Any
) -> GroupState:
    settings = GroupSettings(**{"ack_wait_seconds": WAIT, "max_ack_pending": 1_000_000, **options})
    state = GroupState(settings, start, found)
    if count or keys:
        offer(state, start, keys or "-" * count)
    return state


def offer(state: GroupState, start: int, keys: str) -> None:
    """Offer a record for each letter: its key, or none for a dash."""
    state.offer(
        Batch(
            [
                Record(start + n, b"", None if key == "-" else key.encode())
                for n, key in enumerate(keys)
            ]
        )
    )


def taken(state: GroupState, now: float = 0.0, member: bytes = b"a") -> tuple[int, int] | None:
    found = state.take(member, now)
    return None if found is None else (found.offset, found.deliveries)


def kept(state: GroupState) -> tuple[dict[int, int], set[int]]:
    found = state.remembered()
    return found.deliveries, found.away


def leave(state: GroupState, member: bytes, now: float, held: Held = ()) -> list[tuple[int, int]]:
    return [one for part in state.leave(member, now, held) for one in part]


def lose(state: GroupState, via: object, now: float) -> list[tuple[int, int]]:
    return [one for part in state.lose(via, now) for one in part]


def test_the_floor_is_below_the_first_that_is_not_settled() -> None:
    state = make(count=4)
    for _ in range(4):
        taken(state)
    assert [state.settle(offset) for offset in (2, 4, 2)] == [True, True, False]
    assert (state.floor, state.remembered().settled) == (1, [(2, 3), (4, 5)])
    state.settle(1)
    assert (state.floor, state.remembered().settled) == (3, [(4, 5)])
    state.settle(3)
    assert (state.floor, len(state.jobs), state.leased) == (5, 0, 0)


def test_what_was_settled_before_is_not_delivered() -> None:
    state = make(start=3, found=Remembered(settled=[(1, 2), (4, 5), (6, 7)]))
    offer(state, 3, "---")
    assert [taken(state), taken(state), taken(state)] == [(3, 1), (5, 1), None]
    assert state.remembered().settled == [(4, 5), (6, 7)]


def test_a_member_may_leave_with_very_many_jobs() -> None:
    """A part at a time. Each is looked at once: with one pass for each of them this would take minutes."""
    many = 100_000
    state = make(count=many)
    for _ in range(many):
        taken(state)
    parts = list(map(len, state.leave(b"a", 1.0)))
    assert sum(parts) == many - 1  # it has begun the first
    assert max(parts) == PART_JOBS
    assert (state.leased, taken(state, 1.0), taken(state, 1.0)) == (0, (1, 2), (2, 1))


def test_what_happens_between_parts_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part gives back only what is still as it was."""
    monkeypatch.setattr("walstore.positions.groups.job_table.PART_JOBS", 2)
    one, other = object(), object()
    state = make(count=7)
    for _ in range(7):
        state.take(b"a", 0.0, via=one)
    parts = state.lose(one, 1.0)
    assert next(parts) == [(2, 0)]  # and 1, which was begun
    state.settle(4)
    assert state.extend(5, 1, 1.0, member=b"a", via=other)  # it came back
    assert state.give_back(6, 1, 1.0, 0.0)
    assert [taken(state, 1.0, b"b") for _ in range(3)] == [(1, 2), (2, 1), (6, 2)]
    assert list(parts) == [[(3, 0)], [], [(7, 0)]]
    parts = state.leave(b"b", 2.0)
    assert next(parts) == [(2, 0)]
    assert (taken(state, 2.0, b"c"), state.leased) == ((1, 3), 3)
    state.settle(6)
    assert list(parts) == [[]]
    assert state.leased == 2


def test_very_many_jobs_of_one_key() -> None:
    """With a search among all that wait for each of them this would take minutes."""
    many = 100_000
    state = make(keys="a" * many, is_ordered=True)
    for offset in range(1, many + 1):
        assert taken(state) == (offset, 1)
        assert state.settle(offset)


def test_a_member_gives_back_what_it_has_from_before_a_restart() -> None:
    """Then the leases say of no member that they are its own."""
    state = make(found=Remembered(deliveries={1: 2, 2: 1, 3: 1, 4: 1, 5: 3}, away={1, 2, 3, 4}))
    offer(state, 1, "---")
    assert state.leased == 3
    state.settle(3)
    # The first with other deliveries, one that is settled, one still to be read, one that nobody has.
    leave(state, b"a", 1.0, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 3), (99, 1)])
    assert [taken(state, 1.0, b"b"), taken(state, 1.0)] == [(2, 2), None]
    offer(state, 4, "--")
    assert {taken(state, 2.0, b"b"), taken(state, 2.0, b"b")} == {(4, 2), (5, 4)}
    # What somebody has since the restart is nobody else's, whatever the deliveries.
    leave(state, b"a", 3.0, [(2, 2), (4, 2), (5, 4)])
    assert (taken(state, 3.0), state.leased) == (None, 4)
    leave(state, b"c", 3.0, [(1, 2)])
    assert taken(state, 3.0) == (1, 3)


def test_what_was_not_begun_when_a_connection_ended_was_not_delivered() -> None:
    one, other = object(), object()
    state = make(count=6)
    for _ in range(4):
        state.take(b"a", 0.0, via=one)
    state.take(b"b", 0.0, via=one)
    state.take(b"c", 0.0, via=other)
    state.settle(1)
    assert state.extend(4, 1, 1.0, member=b"a", via=one)
    # 2 is the first of a, 4 is in progress, 5 the first of b.
    assert lose(state, one, 1.0) == [(3, 0)]
    again = [taken(state, 1.0) for _ in range(4)]
    assert again == [(2, 2), (3, 1), (4, 2), (5, 2)]
    assert not state.extend(3, 1, 1.0, member=b"b", via=other)
    assert lose(state, one, 1.0) == []
    assert state.leased == 5


def test_jobs_of_a_member_with_a_newer_connection_stay_its_own() -> None:
    """Though it asked for nothing over it. Those of the newer one end with that."""
    one, other = object(), object()
    state = make(count=2)
    for _ in range(2):
        state.take(b"a", 0.0, via=one)
    newest = {b"a": other}.get
    assert list(state.lose(one, 1.0, newest)) == []
    assert state.leased == 2
    assert list(state.lose(other, 1.0, newest)) == [[(2, 0)]]
    assert state.leased == 0


def test_jobs_of_a_member_that_came_back_over_another_connection_stay_its_own() -> None:
    one, other = object(), object()
    state = make(count=3)
    for via in (one, one, other):
        state.take(b"a", 0.0, via=via)
    assert lose(state, one, 1.0) == []
    assert state.leased == 3
    assert lose(state, other, 1.0) == [(2, 0), (3, 0)]


def test_a_job_that_costs_more_than_there_is_room_for_stays_the_next() -> None:
    state = make(count=2)
    assert state.take(b"a", 0.0, most_bytes=10) is None
    assert [taken(state), taken(state)] == [(1, 1), (2, 1)]
    assert state.held_bytes > 2 * 10
    state.settle(1), state.settle(2)
    assert state.held_bytes == 0


def test_what_another_process_holds_comes_when_its_lease_ends() -> None:
    state = make(found=Remembered(deliveries={1: 3, 2: 1}, away={1}))
    offer(state, 1, "--")
    assert [taken(state), taken(state)] == [(2, 2), None]
    assert taken(state, WAIT) == (1, 4)
    assert state.settle(1)


def test_after_a_restart_a_member_ends_what_is_still_to_be_read() -> None:
    state = make(found=Remembered(deliveries={1: 1, 2: 1, 3: 1}, away={1, 2, 3}))
    assert [state.settle(1), state.settle(1)] == [True, False]
    assert state.give_back(2, 1, 0.0, 1.0)
    assert not state.give_back(2, 7, 0.0, 0.0)
    assert state.extend(3, 1, 1.0)
    offer(state, 1, "---")
    assert [taken(state, 1.0), taken(state, 1.0), taken(state, 10.9)] == [(2, 2), None, None]
    assert (state.floor, taken(state, 11.0), taken(state, 11.0)) == (2, (2, 3), (3, 2))


def test_what_is_still_to_be_read_is_remembered() -> None:
    state = make(found=Remembered(deliveries={1: 3, 2: 1, 3: 2}, away={3}))
    state.settle(2)
    assert kept(state) == ({1: 3, 3: 2}, {3})
    offer(state, 1, "---")
    assert kept(state) == ({1: 3, 3: 2}, {3})


def test_jobs_of_a_key_one_after_the_other() -> None:
    state = make(keys="aab-a", is_ordered=True)
    assert [taken(state) for _ in range(4)] == [(1, 1), (3, 1), (4, 1), None]
    state.give_back(1, 1, 0.0, 0.0)
    assert taken(state) == (1, 2)
    state.settle(1)
    assert [taken(state), taken(state)] == [(2, 1), None]
    state.settle(5)  # as by a member from before a restart
    state.settle(2)
    assert taken(state) is None
    state.settle(3), state.settle(4)
    assert state.floor == 6
    offer(state, 6, "a")
    assert taken(state) == (6, 1)
