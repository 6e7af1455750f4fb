"""One change of a group's document: whose a lease is, and since when a process has seen it.

The rules that hold for every group are in tests/walstore/positions/groups/test_job_table.py.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.format.group_document import GroupDocument, JobRow
from uploader.positions.groups.group_turn import GroupTurn, Lease, Sight
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.job_table import JobTable
from walstore.records import Record

_TAGS = count(1)


def records(*keys: bytes | None, first: int = 1) -> list[Record]:
    return [Record(at, b"v", key, timestamp_us=at) for at, key in enumerate(keys, first)]


def pairs(leases: list[Lease]) -> list[tuple[int, int]]:
    return [(lease.offset, lease.deliveries) for lease in leases]


class Program:
    """A process: what it has seen, and its options."""

    def __init__(self, **options: Any) -> None:
        self.sight = Sight()
        self.settings = GroupSettings(**{"ack_wait_seconds": 10.0, **options})

    def turn(self, document: GroupDocument, now: float) -> GroupTurn:
        self.sight.look(document, now, {})
        return GroupTurn(document, self.sight, self.settings, tag=f"t-{next(_TAGS)}", now=now)

    def take(
        self, document: GroupDocument, now: float, most: int, fresh: list[Record] | None = None
    ) -> tuple[GroupDocument, list[tuple[int, int]], list[tuple[int, int]]]:
        turn = self.turn(document, now)
        fresh = fresh or []
        limit = max([document.position, *(record.offset + 1 for record in fresh)])
        taken, spent = turn.take(most, fresh, limit)
        made = turn.made()
        if made is not None:
            self.sight.look(made, now, {made.tag: now})
        return made or document, pairs(taken), pairs(spent)


def lease_on(document: GroupDocument, offset: int) -> Lease:
    """Return the lease that a document has, for the process whose it is."""
    row = document.rows[offset]
    return Lease(offset, row.deliveries, {row.tag})


def empty(**options: Any) -> GroupDocument:
    return GroupDocument(made="m", tag="t-0", **options)


def test_a_lease_is_over_for_another_process_when_it_has_seen_it_for_so_long() -> None:
    """Whatever time it is there."""
    one, two = Program(), Program()
    document, taken, _ = one.take(empty(), 100.0, 5, records(None, None))
    assert taken == [(1, 1), (2, 1)]
    assert two.take(document, 5000.0, 5)[1] == []
    assert two.take(document, 5009.9, 5)[1] == []
    assert two.sight.next_due(document, 5009.9) == 5010.0
    document, taken, _ = two.take(document, 5010.0, 5)
    assert taken == [(1, 2), (2, 2)]
    assert one.take(document, 111.0, 5)[1] == []  # the other's lease is new to it


def test_a_lease_counts_from_before_its_change_was_asked_for() -> None:
    program = Program()
    document, _, _ = program.take(empty(), 0.0, 1, records(None))
    sight = Sight()
    sight.look(document, 4.0, {document.tag: 0.0})
    assert sight.due(document.rows[1]) == 10.0


@pytest.mark.parametrize("most", [1, 3])
def test_what_was_delivered_too_often_is_for_a_dead_letter(most: int) -> None:
    program = Program(max_deliver=most)
    document = empty()
    for delivery in range(1, most + 1):
        document, taken, spent = program.take(document, 20.0 * delivery, 1, records(None))
        assert (taken, spent) == ([(1, delivery)], [])
    document, taken, spent = program.take(document, 1000.0, 1)
    assert (taken, spent) == ([], [(1, most + 1)])
    assert program.take(document, 1001.0, 1)[1:] == ([], [])  # somebody is at it


def test_a_late_call_about_another_lease_does_nothing() -> None:
    program = Program()
    document, _, _ = program.take(empty(), 0.0, 1, records(None))
    late = lease_on(document, 1)
    document, taken, _ = program.take(document, 11.0, 1)
    assert taken == [(1, 2)]
    turn = program.turn(document, 12.0)
    turn.give_back(late, 0)
    turn.revoke(late)
    assert not turn.extend(late)
    assert turn.made() is None
    assert turn.extend(lease_on(document, 1))
    assert not program.turn(document, 30.0).extend(lease_on(document, 1))


def test_a_lease_is_told_from_a_later_one_of_the_same_number() -> None:
    """The first was undone; it is undone once more in the next turn, and in the one that leases anew."""
    program = Program()
    document, _, _ = program.take(empty(), 0.0, 1, records(None))
    first = lease_on(document, 1)
    turn = program.turn(document, 1.0)
    turn.revoke(first)
    assert pairs(turn.take(1, [], 2)[0]) == [(1, 1)]
    turn.revoke(first)
    made = turn.made()
    assert made is not None
    turn = program.turn(made, 2.0)
    turn.revoke(first)
    turn.give_back(first, 0)
    assert not turn.extend(first)
    assert turn.made() is None


def test_a_lease_that_is_extended_and_ended_in_a_turn() -> None:
    program = Program()
    document, _, _ = program.take(empty(), 0.0, 1, records(None))
    lease = lease_on(document, 1)
    turn = program.turn(document, 1.0)
    assert turn.extend(lease)
    assert turn.extend(lease)
    turn.give_back(lease, 0)
    assert not turn.extend(lease)
    assert pairs(turn.take(1, [], 2)[0]) == [(1, 2)]
    assert not turn.extend(lease)


def test_the_position_passes_what_are_no_jobs() -> None:
    program = Program()
    turn = program.turn(empty(), 0.0)
    assert turn.take(5, [], 40) == ([], [])
    made = turn.made()
    assert made is not None
    assert made.position == 40
    full = Program(max_ack_pending=1)
    turn = full.turn(empty(), 0.0)
    assert pairs(turn.take(5, records(None, None, first=7), 40)[0]) == [(7, 1)]
    made = turn.made()
    assert made is not None
    assert (made.position, list(made.rows)) == (8, [7])


def test_rows_are_compared_by_their_change() -> None:
    row = JobRow(1, is_leased=True, wait_ms=1000, tag="a-1", key=0)
    sight = Sight()
    sight.look(empty(position=9, rows={7: row}), 0.0, {})
    sight.look(empty(position=9, rows={7: row}), 0.5, {})
    assert sight.due(row) == 1.0
    later = row._replace(tag="a-2")
    sight.look(empty(position=9, rows={7: later}), 0.5, {})
    assert sight.due(later) == 1.5


# -- what a change costs ----------------------------------------------------------------------


def test_to_settle_does_not_make_a_table_of_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {at: JobRow(1, is_leased=True, wait_ms=9, tag="t-0", key=0) for at in range(1, 5001)}
    document, added = empty(position=5001, rows=rows), 0
    add = JobTable.add

    def counted(self: JobTable[Any], job: Any) -> None:
        nonlocal added
        added += 1
        add(self, job)

    monkeypatch.setattr(JobTable, "add", counted)
    turn = Program().turn(document, 0.0)
    for offset in (7, 4000, 7, 9999):
        turn.settle(offset)
    made = turn.made()
    assert made is not None
    assert made.rows == {at: row for at, row in rows.items() if at not in {7, 4000}}
    assert (len(document.rows), added) == (5000, 0)
    turn.take(1, [], 5001)
    assert added == 4998


ROWS = st.dictionaries(
    st.integers(1, 12),
    st.builds(
        JobRow,
        deliveries=st.integers(0, 3),
        is_leased=st.booleans(),
        wait_ms=st.sampled_from((0, 4000)),
        tag=st.sampled_from(("t-0", "t-00")),
        key=st.integers(0, 2),
    ),
)


@given(rows=ROWS, settled=st.lists(st.integers(1, 14)), now=st.sampled_from((0.0, 5.0)))
def test_a_turn_is_the_same_whether_its_table_is_made_before_or_after_jobs_are_settled(
    rows: dict[int, JobRow], settled: list[int], now: float
) -> None:
    document = empty(position=13, rows=dict(sorted(rows.items())), is_ordered=True)
    found: list[object] = []
    for is_first in (False, True):
        sight = Sight()
        sight.look(document, 0.0, {})
        settings = GroupSettings(max_deliver=3, max_ack_pending=4)
        turn = GroupTurn(document, sight, settings, tag="new", now=now)
        if is_first:
            assert turn.find((), ()) == ([], [])
        for offset in settled:
            turn.settle(offset)
        made = turn.made()
        taken, spent = turn.take(5, records(b"a", None, first=13), 15)
        found.append((made, pairs(taken), pairs(spent), turn.made()))
    assert found[0] == found[1]
