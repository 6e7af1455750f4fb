"""The simulation itself: the same seed is the same history, and what is broken on purpose is found."""

from __future__ import annotations

import pytest

from tests.effort import first_seed, some
from tests.sim.history import History, simulate
from tests.sim.plan import draw
from tests.sim.rules import RULES, Book, ViolationError
from walstore.errors import CorruptionError
from walstore.records import Record


@pytest.mark.parametrize("first", [0, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_histories(first: int) -> None:
    """A small share of what ``make sim`` runs."""
    count = some(120) if first else 8
    first += first_seed("local histories")
    for seed in range(first, first + count):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 11, 24])
def test_a_seed_is_always_the_same_history(seed: int) -> None:
    traces = []
    for _ in range(2):
        history = History(draw(seed))
        try:
            history.run()
        except ViolationError as violation:
            history.trace.append((0.0, "", str(violation)))
        traces.append(history.trace)
    assert len(traces[0]) > 50
    assert traces[0] == traces[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ignored", "rules"),
    [
        pytest.param((), {"verifies"}, id="by verify"),
        pytest.param(
            ("verifies",), {"durable-survives", "found-survives", "reopens"}, id="by opening"
        ),
    ],
)
def test_a_disk_that_lies_is_found(ignored: tuple[str, ...], rules: set[str]) -> None:
    """After a power failure verify looks first: what an opening finds shows only without it."""
    found = set()
    for seed in range(16):
        try:
            simulate(seed, lies=True, ends=("clean", "power", "power"), ignored=ignored)
        except ViolationError as violation:
            found.add(violation.rule)
    assert found & rules


def test_a_log_that_verify_refuses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CorruptionError("segments are gone", path="log")

    monkeypatch.setattr("tests.sim.history.verify_directory", refuse)
    with pytest.raises(ViolationError, match="segments are gone") as caught:
        simulate(3, ends=("clean",))
    assert caught.value.rule == "verifies"


def test_a_process_that_does_not_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from walstore.core.files.open_files import ActiveFile

    def sync(self: ActiveFile) -> None:
        self._durable_position = self.position

    monkeypatch.setattr(ActiveFile, "sync", sync)
    with pytest.raises(ViolationError):
        for seed in range(8):
            simulate(seed, ends=("power", "power", "power"), rate=0.0)


# -- the book ------------------------------------------------------------------------------------


def records(book: Book, *entries: tuple[int, int]) -> list[Record]:
    """Return records from 1 on: each the record ``at`` of an entry."""
    return [
        Record(offset, book.entries[number].value(at))
        for offset, (number, at) in enumerate(entries, 1)
    ]


def written(*counts: int) -> Book:
    """Return a book with an entry of so many records each, all acknowledged."""
    book = Book()
    start = 1
    for count in counts:
        entry = book.submit("many", [20] * count)
        book.durable(entry, start)
        start += count
    return book


def broken(book: Book, found: list[Record], *, head: int = 1, **registers: str) -> str | None:
    """Return the rule that an opening broke."""
    tail = found[-1].offset + 1 if found else head
    try:
        book.reopened(found, registers, head, tail)
    except ViolationError as violation:
        return violation.rule
    return None


def test_a_right_history_breaks_no_rule() -> None:
    book = written(1, 2)
    assert broken(book, records(book, (1, 0), (2, 0), (2, 1))) is None


def test_lost_records_are_found() -> None:
    book = written(1, 2)
    assert broken(book, records(book, (1, 0), (2, 0))) == "durable-survives"
    assert broken(written(1, 2), []) == "durable-survives"


@pytest.mark.slow
def test_half_a_group_is_found() -> None:
    book = written(1)
    book.submit("many", [20, 20])
    assert broken(book, records(book, (1, 0), (2, 0))) == "whole"


def test_swapped_and_doubled_records_are_found() -> None:
    book = written(1)
    book.submit("append", [20])
    assert broken(book, records(book, (2, 0), (1, 0))) == "durable-survives"
    assert broken(book, records(book, (1, 0), (1, 0))) == "offsets"


def test_gaps_are_found() -> None:
    book = written(1, 1)
    found = records(book, (1, 0), (2, 0))
    assert broken(book, [found[0], found[1]._replace(offset=3)]) == "offsets"


def test_what_was_not_written_and_what_was_gone_is_found() -> None:
    book = written(1)
    book.refused(book.submit("append", [20]))
    assert broken(book, records(book, (1, 0), (2, 0))) == "not-written"
    book = written(1)
    book.lost_sight(book.submit("append", [20]))
    assert broken(book, records(book, (1, 0))) is None
    assert broken(book, records(book, (1, 0), (2, 0))) == "no-resurrection"


def test_an_invented_record_is_found() -> None:
    book = written(1)
    assert broken(book, [*records(book, (1, 0)), Record(2, b"7.0.what")]) == "invented"


def test_registers_that_go_back_are_found() -> None:
    book = written()
    for number in (1, 2):
        entry = book.submit("counter", [], update={"r": str(number)})
        book.durable(entry)
    assert broken(book, [], r="1") == "registers"
    assert broken(book, [], r="2") is None


def test_a_register_without_its_records_is_found() -> None:
    book = written(1)
    book.submit("counter", [20], update={"r": "2"})
    assert broken(book, records(book, (1, 0)), r="2") == "no-resurrection"


def test_a_broken_chain_of_swaps_is_found() -> None:
    book = written()
    for number in (1, 2, 3):
        before = None if number == 1 else "1"
        entry = book.submit("swap", [], update={"shared": str(number)}, expect={"shared": before})
        book.durable(entry)
    assert broken(book, [], shared="3") == "registers"


def test_a_head_that_goes_back_is_found() -> None:
    book = written(1, 1)
    book.head_most = book.head_least = 2
    found = records(book, (1, 0), (2, 0))
    assert broken(book, found) == "head"
    assert broken(book, found[1:], head=2) is None


def test_every_rule_has_a_sentence() -> None:
    assert all(rule == rule.lower() and sentence for rule, sentence in RULES.items())
