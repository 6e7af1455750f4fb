"""GroupState: the invariants at its head, against a model, with random members and times."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.effort import first_seed
from walstore.batches.derived import EmptyBatch
from walstore.groups.state import PART_JOBS, GroupState
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


def make(start: int = 1, count: int = 0, keys: str = "", **options: object) -> GroupState:
    defaults = {"ack_wait_seconds": WAIT, "max_deliver": None, "is_ordered": False}
    state = GroupState(start, **{**defaults, **options})  # type: ignore[arg-type]
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
    return None if found is None else (found[0].offset, found[1])


def leave(state: GroupState, member: bytes, now: float, held: Held = ()) -> list[tuple[int, int]]:
    return [one for part in state.leave(member, now, held) for one in part]


def lose(state: GroupState, via: object, now: float) -> list[tuple[int, int]]:
    return [one for part in state.lose(via, now) for one in part]


def test_each_job_once_while_its_lease_holds() -> None:
    state = make(count=2)
    assert [taken(state), taken(state), taken(state)] == [(1, 1), (2, 1), None]
    assert state.next_moment == WAIT
    assert taken(state, WAIT - 0.1) is None
    assert [taken(state, WAIT), taken(state, WAIT)] == [(1, 2), (2, 2)]


def test_the_floor_is_below_the_first_that_is_not_settled() -> None:
    state = make(count=4)
    for _ in range(4):
        taken(state)
    assert [state.settle(offset) for offset in (2, 4, 2)] == [True, True, False]
    assert (state.floor, list(state.settled_ranges())) == (1, [(2, 3), (4, 5)])
    state.settle(1)
    assert (state.floor, list(state.settled_ranges())) == (3, [(4, 5)])
    state.settle(3)
    assert (state.floor, state.outstanding, state.leased) == (5, 0, 0)


def test_what_was_settled_before_is_not_delivered() -> None:
    state = make(start=3, settled=[1, 4, 6])
    offer(state, 3, "---")
    assert [taken(state), taken(state), taken(state)] == [(3, 1), (5, 1), None]
    assert list(state.settled_ranges()) == [(4, 5), (6, 7)]


def test_giving_back_extending_and_leaving() -> None:
    state = make(count=2)
    taken(state), taken(state, member=b"b")
    assert state.give_back(1, 1, 1.0, 5.0)
    assert not state.give_back(1, 1, 1.0, 0.0)
    assert taken(state, 5.9) is None
    assert taken(state, 6.0) == (1, 2)
    assert state.extend(1, 2, 9.0)
    assert not state.extend(1, 1, 9.0)
    assert taken(state, 16.5) == (2, 2)  # its lease ended at 10; that of 1 was extended to 19
    assert not state.extend(1, 2, 19.0)
    leave(state, b"a", 17.0)
    assert taken(state, 17.0) == (1, 3)


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
    monkeypatch.setattr("walstore.groups.state.PART_JOBS", 2)
    one, other = object(), object()
    state = make(count=7)
    for _ in range(7):
        state.take(b"a", 0.0, is_away=True, via=one)
    parts = state.lose(one, 1.0)
    assert next(parts) == [(2, 0), (3, 0)]
    state.settle(4)
    assert state.extend(5, 1, 1.0, member=b"a", via=other)  # it came back
    assert state.give_back(6, 1, 1.0, 0.0)
    assert [taken(state, 1.0, b"b") for _ in range(3)] == [(2, 1), (3, 1), (6, 2)]
    assert list(parts) == [[], [(7, 0)]]
    parts = state.leave(b"b", 2.0)
    assert next(parts) == [(3, 0)]
    assert (taken(state, 2.0, b"c"), state.leased) == ((7, 1), 4)
    state.settle(6)
    assert list(parts) == [[]]
    assert state.leased == 3


def test_very_many_jobs_of_one_key() -> None:
    """With a search among all that wait for each of them this would take minutes."""
    many = 100_000
    state = make(keys="a" * many, is_ordered=True)
    for offset in range(1, many + 1):
        assert taken(state) == (offset, 1)
        assert state.settle(offset)


def test_a_member_gives_back_what_it_has_from_before_a_restart() -> None:
    """Then the leases say of no member that they are its own."""
    state = make(
        deliveries={1: 2, 2: 1, 3: 1, 4: 1, 5: 3}, leased_until=dict.fromkeys((1, 2, 3, 4), 1000.0)
    )
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
        state.take(b"a", 0.0, is_away=True, via=one)
    state.take(b"b", 0.0, is_away=True, via=one)
    state.take(b"c", 0.0, is_away=True, via=other)
    state.settle(1)
    assert state.extend(4, 1, 1.0, member=b"a", via=one)
    assert lose(state, one, 1.0) == [
        (3, 0)
    ]  # 2 is the first of a, 4 is in progress, 5 the first of b
    assert taken(state, 1.0) == (3, 1)
    assert not state.extend(3, 1, 1.0, member=b"b", via=other)
    assert state.extend(2, 1, 1.0, member=b"a", via=other)  # it came back
    assert lose(state, one, 1.0) == []
    assert state.leased == 5


def test_jobs_of_a_member_that_came_back_over_another_connection_stay_its_own() -> None:
    one, other = object(), object()
    state = make(count=3)
    for via in (one, one, other):
        state.take(b"a", 0.0, is_away=True, via=via)
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


def test_a_late_acknowledgement_counts() -> None:
    state = make(count=1)
    taken(state)
    assert taken(state, WAIT, b"b") == (1, 2)
    assert state.settle(1)
    assert taken(state, 100.0) is None


def test_after_the_last_delivery_it_is_dead() -> None:
    state = make(count=1, max_deliver=2)
    taken(state)
    state.give_back(1, 1, 0.0, 0.0)
    assert taken(state) == (1, 2)
    assert taken(state, WAIT) is None
    assert [(record.offset, deliveries) for record, deliveries in state.dead] == [(1, 2)]
    assert state.floor == 1
    state.settle(1)
    assert state.floor == 2


def test_what_another_process_holds_comes_when_its_lease_ends() -> None:
    state = make(deliveries={1: 3, 2: 1}, leased_until={1: 4.0})
    offer(state, 1, "--")
    assert [taken(state), taken(state)] == [(2, 2), None]
    assert taken(state, 4.0) == (1, 4)
    assert state.settle(1)


def test_after_a_restart_a_member_ends_what_is_still_to_be_read() -> None:
    state = make(deliveries={1: 1, 2: 1, 3: 1}, leased_until={1: 4.0, 2: 4.0, 3: 4.0})
    assert [state.settle(1), state.settle(1)] == [True, False]
    assert state.give_back(2, 1, 0.0, 1.0)
    assert not state.give_back(2, 7, 0.0, 0.0)
    assert state.extend(3, 1, 1.0)
    offer(state, 1, "---")
    assert [taken(state, 1.0), taken(state, 1.0), taken(state, 10.9)] == [(2, 2), None, None]
    assert (state.floor, taken(state, 11.0), taken(state, 11.0)) == (2, (2, 3), (3, 2))


def test_what_is_still_to_be_read_is_remembered() -> None:
    state = make(deliveries={1: 3, 2: 1, 3: 2}, leased_until={3: 4.0})
    state.settle(2)
    assert list(state.delivered()) == [(1, 3, False), (3, 2, True)]
    offer(state, 1, "---")
    assert list(state.delivered()) == [(1, 3, False), (3, 2, True)]


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


@pytest.mark.parametrize("seed", range(30))
def test_random_members(seed: int) -> None:  # noqa: C901, PLR0912 - one history
    """G1 to G4 at each step."""
    chance = random.Random(seed + first_seed("members of a group"))
    is_ordered, max_deliver = chance.random() < 0.5, chance.choice([None, 2, 3])
    state = make(is_ordered=is_ordered, max_deliver=max_deliver)
    now, limit = 0.0, 1
    keys: dict[int, bytes | None] = {}
    leases: dict[int, tuple[float, int]] = {}
    deliveries: defaultdict[int, int] = defaultdict(int)
    settled: set[int] = set()
    for _ in range(600):
        step = chance.random()
        if step < 0.15 and limit < 80:
            letters = "".join(chance.choice("abc-") for _ in range(chance.randrange(1, 6)))
            for n, letter in enumerate(letters):
                keys[limit + n] = None if letter == "-" else letter.encode()
            offer(state, limit, letters)
            limit += len(letters)
        elif step < 0.55:
            found = taken(state, now, chance.choice([b"a", b"b"]))
            if found is not None:
                offset, count = found
                assert offset not in settled  # G2
                assert leases.get(offset, (0.0, 0))[0] <= now  # G1
                deliveries[offset] += 1
                assert count == deliveries[offset] <= (max_deliver or count)  # G4
                if is_ordered and keys[offset] is not None:  # G3
                    assert all(o in settled for o in range(1, offset) if keys[o] == keys[offset])
                leases[offset] = (now + WAIT, count)
        elif step < 0.75 and leases:
            offset = chance.choice(list(leases))
            assert state.settle(offset) == (offset not in settled)
            settled.add(offset)
            leases.pop(offset)
        elif step < 0.85 and leases:
            offset = chance.choice(list(leases))
            until, count = leases[offset]
            if state.give_back(offset, count, now, chance.choice([0.0, 3.0])):
                leases[offset] = (now, count)
        elif step < 0.9 and leases:
            offset = chance.choice(list(leases))
            until, count = leases[offset]
            if state.extend(offset, count, now):
                assert now < until
                leases[offset] = (now + WAIT, count)
        else:
            now += chance.random() * 4
            state.pass_time(now)
        while state.dead:
            record, count = state.dead.popleft()
            assert count == max_deliver
            assert leases.pop(record.offset, (0.0, 0))[0] <= now
            state.settle(record.offset)
            settled.add(record.offset)
        assert state.floor == next((o for o in range(1, limit) if o not in settled), limit)
        gaps = {o for low, high in state.settled_ranges() for o in range(low, high)}
        assert gaps == {o for o in settled if o > state.floor}
    for _ in range(500):  # in the end all is done
        now += WAIT
        while (found := taken(state, now)) is not None:
            state.settle(found[0])
        while state.dead:
            state.settle(state.dead.popleft()[0].offset)
    assert (state.floor, state.outstanding, state.leased) == (limit, 0, 0)
