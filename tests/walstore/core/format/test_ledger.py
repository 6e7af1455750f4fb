"""Ledger: marks change it, survive encoding, and can be merged without changing what they do."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore.core.format.ledger import Ledger, Marks, ProducerRun, ProducerWindow, StreamInfo

names = st.sampled_from(["a", "b", "c"])


@st.composite
def histories(draw: st.DrawFn) -> list[Marks]:
    """Marks as a log writes them: sequences of each producer without gaps, offsets that grow."""
    last: dict[str, int] = {}
    tail = 1
    found = []
    for _ in range(draw(st.integers(0, 12))):
        marks = Marks(
            registers=draw(st.dictionaries(names, st.none() | st.text(max_size=3), max_size=2)),
            head=draw(st.integers(0, 20)),
        )
        if draw(st.booleans()):
            marks.streams[draw(names)] = StreamInfo(draw(st.booleans()), {"k": "v"}, tail)
        for _ in range(draw(st.integers(0, 3))):
            name, records = draw(names), draw(st.integers(0, 2))
            last[name] = last.get(name, 0) + 1
            marks.producers.append((name, ProducerRun(last[name], tail, records, 1)))
            tail += records
        found.append(marks)
    return found


def state(ledger: Ledger) -> object:
    """What a ledger remembers, comparable; runs as the appends they stand for."""
    producers = {
        name: (window.last, {n: window.find(n) for n in range(window.first, window.last + 1)})
        for name, window in ledger.producers.items()
    }
    return ledger.registers, list(producers.items()), ledger.streams, ledger.head


def after(history: list[Marks], **options: int) -> Ledger:
    ledger = Ledger(**options)
    for marks in history:
        ledger.apply(marks)
    return ledger


@pytest.mark.slow
@given(histories())
def test_marks_survive_encoding(history: list[Marks]) -> None:
    decoded = [Marks.decode(marks.encode()) for marks in history]
    assert decoded == history


@pytest.mark.slow
@given(histories())
def test_merged_marks_do_what_they_did_one_by_one(history: list[Marks]) -> None:
    merged = Marks()
    for marks in history:
        merged.merge(marks)
    ledger = Ledger()
    ledger.apply(merged)
    registers, producers, streams, head = state(after(history))
    assert state(ledger) == (registers, producers, streams, head)


@pytest.mark.slow
@given(histories(), st.integers(1, 4), st.integers(1, 3))
def test_the_whole_ledger_makes_any_other_equal(
    history: list[Marks], window: int, producers: int
) -> None:
    options = {"window": window, "max_producers": producers}
    ledger = after(history, **options)
    other = after([Marks(registers={"x": "y"}, head=99)], **options)
    other.apply(Marks.decode(ledger.whole().encode()))
    assert state(other) == state(ledger) == state(ledger.copy())
    assert ledger.is_empty == (not any(state(ledger)))


@pytest.mark.slow
@given(histories(), st.integers(1, 4), st.integers(1, 3))
def test_its_size_is_known_without_counting(
    history: list[Marks], window: int, producers: int
) -> None:
    ledger = Ledger(window=window, max_producers=producers)
    for marks in history:
        parts = [
            Marks(registers=marks.registers, streams=marks.streams),
            *(Marks(producers=[one]) for one in marks.producers),
        ]
        for part in parts:
            before, grown = ledger.size_bytes, ledger.growth(part)
            ledger.apply(part)
            assert ledger.size_bytes == before + grown
    assert ledger.size_bytes == ledger.copy().size_bytes
    assert len(ledger.whole().encode()) <= ledger.size_bytes + 64


@pytest.mark.parametrize("text", ["n" * 256, "é" * 256, "\U0001f600" * 256])
def test_its_size_is_never_less_than_what_is_written(text: str) -> None:
    ledger = Ledger(window=3)
    for sequence in range(1, 9):
        run = ProducerRun(sequence + (1 << 62), sequence * 3 + (1 << 62), sequence % 2, 1)
        ledger.apply(Marks(registers={text: text * 16}, producers=[(text, run)]))
    ledger.apply(Marks(streams={text: StreamInfo(True, {text: text, "b": ""}, 1 << 62)}))
    encoded = len(ledger.whole().encode())
    assert encoded <= ledger.size_bytes + 64
    assert ledger.size_bytes <= encoded + 128


def test_a_copy_is_independent() -> None:
    ledger = after([Marks(registers={"a": "1"})])
    twin = ledger.copy()
    twin.apply(Marks(registers={"a": None, "b": "2"}))
    assert ledger.registers == {"a": "1"}
    assert twin.registers == {"b": "2"}


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_a_window_remembers_the_newest_appends(counts: list[int], size: int) -> None:
    window, spans, start = ProducerWindow(), {}, 1
    for sequence, records in enumerate(counts, 1):
        window.add(ProducerRun(sequence, start, records, 1), size)
        spans[sequence] = range(start, start + records)
        start += records
    assert window.last == len(counts)
    assert window.first == max(1, len(counts) - size + 1)
    for sequence, span in spans.items():
        expected = span if sequence >= window.first else None
        assert window.find(sequence) == expected
    assert window.find(len(counts) + 1) is None


def test_appends_alike_take_the_room_of_one() -> None:
    window = ProducerWindow()
    for sequence in range(1, 1001):
        window.add(ProducerRun(sequence, 10 * sequence, 10, 1), 500)
    assert list(window.runs) == [ProducerRun(501, 5010, 10, 500)]


def test_the_producer_idle_longest_is_forgotten_first() -> None:
    ledger = Ledger(max_producers=2)
    for name, sequence in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        ledger.apply(Marks(producers=[(name, ProducerRun(sequence, 1, 1, 1))]))
    assert list(ledger.producers) == ["a", "c"]


def test_the_head_never_goes_back() -> None:
    assert after([Marks(head=9), Marks(head=4)]).head == 9


def test_marks_of_a_newer_version_are_refused() -> None:
    with pytest.raises(ValueError, match="mark 'z'"):
        Marks.decode(msgpack.packb({"r": {}, "z": 1}))


def test_nothing_to_remember_takes_one_byte() -> None:
    assert Marks().encode() == b"\x80"
