"""Cursors that a log keeps in itself: what each may be, what that pins, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from walstore import CorruptionError, LimitExceededError
from walstore.positions.cursor_state import CursorInfo, CursorState
from walstore.positions.cursors import kept
from walstore.positions.cursors.kept import KeptCursors


@dataclasses.dataclass
class Plan:
    head: int


def state(position: int, deadline_us: int = 0) -> CursorState:
    return CursorState(position, 1, b"t" * 8, 0, deadline_us, deadline_us, "a test")


def write(cursors: KeptCursors, name: str, position: int) -> int:
    """Change a cursor, and return the number of the change."""
    with cursors.change() as table:
        table.write(name, state(position))
    return table.number


def pins(cursors: KeptCursors) -> list[tuple[str, int]]:
    """Return all places that are pinned."""
    found: list[tuple[str, int]] = []

    def decide(infos: Sequence[CursorInfo]) -> Plan:
        found.extend((info.name, info.position) for info in infos)
        return Plan(1)

    cursors.settle(0, decide)
    return sorted(found)


def test_K1_what_is_being_written_and_what_was_before_are_pinned() -> None:
    cursors = KeptCursors({"c": state(3)}, 1)
    first, second = write(cursors, "c", 5), write(cursors, "c", 9)
    other = write(cursors, "new", 4)
    assert pins(cursors) == [("c", 3), ("c", 5), ("c", 9), ("new", 4)]
    assert [(info.name, info.position) for info in cursors.infos(0)] == [("c", 3)]
    cursors.withdraw(other)
    assert pins(cursors) == [("c", 3), ("c", 5), ("c", 9)]
    cursors.confirm(first)
    assert pins(cursors) == [("c", 5), ("c", 9)]
    assert not cursors.is_confirmed
    cursors.confirm(second)
    assert pins(cursors) == [("c", 9)]
    assert cursors.is_confirmed
    with cursors.change() as table:
        assert table.remove("c")
        assert not table.remove("c")
        assert table.read("c") is None
    assert pins(cursors) == [("c", 9)]
    cursors.confirm(table.number)
    assert pins(cursors) == []
    assert cursors.infos(0) == []


def test_K1_an_outcome_that_nobody_knows_is_settled_by_the_next_change() -> None:
    cursors = KeptCursors({"c": state(3)}, 1)
    write(cursors, "c", 5)
    write(cursors, "gone", 2)
    last = write(cursors, "d", 8)
    cursors.confirm(last)
    assert pins(cursors) == [("c", 5), ("d", 8), ("gone", 2)]


def test_K2_no_place_below_a_head_that_is_decided_on() -> None:
    cursors = KeptCursors({}, 1)
    assert cursors.settle(0, lambda _: Plan(7)).head == 7
    with cursors.change() as table:
        assert table.head() == 7
    cursors.end_settling(4)  # it could not be moved that far
    with cursors.change() as table:
        assert table.head() == 4


def test_a_block_that_raises_changes_nothing() -> None:
    cursors = KeptCursors({"c": state(3)}, 1)
    with pytest.raises(ZeroDivisionError), cursors.change() as table:
        table.write("c", state(4))
        raise ZeroDivisionError
    assert pins(cursors) == [("c", 3)]
    assert cursors.is_confirmed


def test_the_number_of_cursors_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_CURSORS", 2)
    cursors = KeptCursors({"a": state(1)}, 1)
    with cursors.change() as table:
        table.write("b", state(1))
        with pytest.raises(LimitExceededError):
            table.write("c", state(1))
        table.write("a", state(2))
        table.remove("a")
        table.write("c", state(1))
    assert set(table.changes) == {"a", "b", "c"}


def test_leases_and_what_cannot_be_read() -> None:
    cursors = KeptCursors(kept.kept_cursors({f"{kept.PREFIX}bad": "x", "mine": "y"}), 1)
    with cursors.change() as table:
        table.write("leased", state(5, deadline_us=10))
        with pytest.raises(CorruptionError):
            table.read("bad")
    cursors.confirm(table.number)
    assert [(info.name, info.position, info.is_expired) for info in cursors.infos(9)] == [
        ("bad", 0, False),
        ("leased", 5, False),
    ]
    assert [info.is_expired for info in cursors.infos(10)] == [False, True]
