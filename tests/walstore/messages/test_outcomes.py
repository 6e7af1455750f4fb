"""The outcome table of docs/messages.md, row by row, and the conformance cases of Gazette's sequencer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cases import case
from tests.messages import P, Paper, Q, drain, message, run
from walstore import Record
from walstore.messages import Flag, Outcome, ReadCheckpoint, Sequencer
from walstore.messages.producers import ProducerState

PAGE = Path(__file__).parents[3] / "docs" / "messages.md"

# Name of the row: what the producer did before, the message, its outcome, what comes out, and the
# producer's (acked, newest, has pending) afterwards. P10 is a settled message wherever it stands.
ROWS: dict[str, tuple[str, str, Outcome, list[bytes], tuple[int, int, bool]]] = {
    "OUTSIDE, clock below acked": (
        "P.10 P.20", "P.15", Outcome.ALREADY_ACKED, [], (20, 20, False),
    ),
    "OUTSIDE, clock equal to acked": (
        "P.10", "P.10", Outcome.ALREADY_ACKED, [], (10, 10, False),
    ),
    "OUTSIDE, new clock": (
        "P.10", "P.11", Outcome.COMMITTED_ALONE, [b"P11"], (11, 11, False),
    ),
    "OUTSIDE, new clock, span pending": (
        "P.10 P11 P12", "P.13", Outcome.COMMITTED_ALONE, [b"P13"], (13, 13, False),
    ),
    "OUTSIDE, clock below acked, span pending": (
        "P.10 P11 P12", "P.9", Outcome.ALREADY_ACKED, [], (10, 12, True),
    ),
    "OUTSIDE, new producer": ("", "P.5", Outcome.COMMITTED_ALONE, [b"P5"], (5, 5, False)),
    "CONTINUE, clock below acked": (
        "P.10", "P9", Outcome.ALREADY_ACKED, [], (10, 10, False),
    ),
    "CONTINUE, clock equal to acked": (
        "P9 P!10", "P10", Outcome.ALREADY_ACKED, [], (10, 10, False),
    ),
    "CONTINUE, clock within the span": (
        "P.10 P11 P13", "P12", Outcome.ALREADY_SEEN, [], (10, 13, True),
    ),
    "CONTINUE, clock equal to newest": (
        "P.10 P11", "P11", Outcome.ALREADY_SEEN, [], (10, 11, True),
    ),
    "CONTINUE, clock of a message that was rolled back": (
        "P.10 P11 P12 P-13", "P12", Outcome.ALREADY_SEEN, [], (10, 12, False),
    ),
    "CONTINUE, new clock, nothing pending": (
        "P.10", "P11", Outcome.SPAN_BEGUN, [], (10, 11, True),
    ),
    "CONTINUE, new clock, span pending": (
        "P.10 P11", "P12", Outcome.SPAN_EXTENDED, [], (10, 12, True),
    ),
    "CONTINUE, new producer": ("", "P5", Outcome.SPAN_BEGUN, [], (4, 5, True)),
    "ACK, clock below acked": (
        "P.10 P11", "P!7", Outcome.ROLLED_BACK_TO_EARLIER, [], (7, 7, False),
    ),
    "ACK, clock equal to acked": (
        "P.10 P11 P12", "P!10", Outcome.ROLLED_BACK, [], (10, 12, False),
    ),
    "ACK, clock equal to acked, nothing pending": (
        "P.10", "P!10", Outcome.ROLLED_BACK, [], (10, 10, False),
    ),
    "ACK, new clock, nothing pending": (
        "P.10", "P!12", Outcome.ACK_EMPTY, [], (12, 12, False),
    ),
    "ACK, new producer": ("", "P!5", Outcome.ACK_EMPTY, [], (5, 5, False)),
    "ACK, new clock, span in the ring": (
        "P.10 P11 P12", "P!13", Outcome.COMMITTED_FROM_RING, [b"P11", b"P12"], (13, 13, False),
    ),
    "ACK, clock within the span": (
        "P.10 P11 P12 P13", "P!12", Outcome.COMMITTED_FROM_RING, [b"P11", b"P12"], (12, 13, False),
    ),
    "ACK, clock before the span": (
        "P.10 P15 P16", "P!12", Outcome.COMMITTED_FROM_RING, [], (12, 16, False),
    ),
    "ACK, new clock, span not all in the ring": (
        "P.10 P11 Q5 P12 P13 P14", "P!15", Outcome.COMMITTED_BY_REPLAY,
        [b"P11", b"P12", b"P13", b"P14"], (15, 15, False),
    ),
    "ABORT, span pending": (
        "P.10 P11 P12", "P-99", Outcome.ABORTED, [], (10, 12, False),
    ),
    "ABORT, nothing pending": ("P.10", "P-99", Outcome.ABORTED, [], (10, 10, False)),
    "clock 0": ("P.10 P11", "P0", Outcome.UNTRACKED, [b"P0"], (10, 11, True)),
}  # fmt: skip


def test_outcome_table() -> None:
    for row, (before, word, outcome, values, state) in ROWS.items():
        with case(row):
            log = Paper()
            log.script(before)
            sequencer = Sequencer(ring_records=3)
            run(sequencer, log)
            log.script(word)
            assert run(sequencer, log) == ([outcome], values)
            found = sequencer.checkpoint().producers[P]
            assert (found.acked, found.newest, bool(found.begin)) == state
            assert sequencer.position == len(log.records) + 1


def test_the_page_has_the_same_rows() -> None:
    """Every row of the table in the documentation is a row here, with the same outcome."""
    rows = re.findall(
        r"^\| ((?:OUTSIDE|CONTINUE|ACK|ABORT|clock 0)[^|]*) \| `(\w+)`",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert dict(rows) == {name: row[2].value for name, row in ROWS.items()}


def test_a_record_without_a_stamp_is_committed_where_it_lies() -> None:
    sequencer = Sequencer()
    sequencer.step(message(1, P, Flag.CONTINUE, 1))
    plain = Record(2, b"plain")
    assert sequencer.step(plain) is Outcome.UNTRACKED
    assert sequencer.take() == plain
    assert sequencer.take() is None
    assert sequencer.pending == {P: 1}


def test_an_unknown_flag_means_outside() -> None:
    log = Paper()
    log.write(P, 77, 5, b"odd")
    log.write(P, 77, 5, b"again")
    outcomes, values = run(Sequencer(), log)
    assert outcomes == [Outcome.COMMITTED_ALONE, Outcome.ALREADY_ACKED]
    assert values == [b"odd"]


def test_an_abort_of_an_unknown_producer_is_not_remembered() -> None:
    log = Paper()
    log.script("P-5")
    sequencer = Sequencer()
    assert run(sequencer, log) == ([Outcome.ABORTED], [])
    assert sequencer.checkpoint().producers == {}


# -- Gazette's cases: whole histories -----------------------------------------------------------

HISTORIES: dict[str, tuple[str, str]] = {
    "duplicates of settled and pending messages": (
        "P1 P2 P1 P2 P!3 P1 P2 P!3 P4 P4 P3 P!5", "P1 P2 P4",
    ),
    "empty ack": ("P!1 P!2 P3 P!4 P!5 P!6", "P3"),
    "duplicates of what was rolled back": ("P1 P!2 P3 P!2 P3 P4 P3 P-5 P4 P3 P6 P4 P!7", "P1 P6"),
    "partial ack drops the rest": ("P1 P2 P3 P!2 P4 P!5", "P1 P2 P4"),
    "rollback by the ack settled last": ("P1 P!2 P3 P4 P!2 P5 P!6", "P1 P5"),
    "rollback interleaved with another producer": (
        "P1 Q1 P!2 P3 Q2 P4 P!2 Q!3 P5 Q4 P!6 Q!3 Q5 Q!6", "P1 Q1 Q2 P5 Q5",
    ),
    "interleaved commits in the order of their acks": (
        "P1 Q1 P2 Q2 Q!3 P3 P!4", "Q1 Q2 P1 P2 P3",
    ),
    "reset to an earlier ack delivers again": ("P1 P!2 P3 P!4 P!2 P3 P!4", "P1 P3 P3"),
    "outside mixed into a span discards it": ("P1 P2 P.3 P!4 P5 P!6", "P3 P5"),
    "outside between transactions": ("P1 P!2 P.3 P4 P!5 P.3 P.6", "P1 P3 P4 P6"),
    "acknowledgement sent again by a recovery": ("P1 P!2 P!2 P!2 Q1 Q!2", "P1 Q1"),
    "abort, then the next transaction": ("P1 P2 P-3 P4 P!5", "P4"),
    "abort of one producer leaves the other": ("P1 Q1 P-2 Q!2 P!3", "Q1"),
    "an abandoned span does not hold others up": ("P1 Q1 Q!2 Q.3 Q4 Q!5", "Q1 Q3 Q4"),
}  # fmt: skip


def test_histories_whatever_the_ring_holds() -> None:
    """Also without a ring: then every commit is read again."""
    for name, (script, expected) in HISTORIES.items():
        for ring_records in (0, 1, 2, 100):
            with case(name, ring_records):
                log = Paper()
                log.script(script)
                _, values = run(Sequencer(ring_records=ring_records), log)
                assert values == [word.encode() for word in expected.split()]


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_resumed_behind_every_message(name: str) -> None:
    """A checkpoint between any two messages, also in the middle of a commit, loses and repeats none."""
    script, expected = HISTORIES[name]
    log = Paper()
    log.script(script)
    values: list[bytes] = []
    sequencer = Sequencer(ring_records=2)
    while sequencer.position <= len(log.records):
        for record in log.records[max(sequencer.position, 1) - 1 :]:
            sequencer.step(record)
            found = next(drain(sequencer, log), None)
            if found is not None:
                values.append(found.value)
                break  # and forget everything but the checkpoint
        data = sequencer.checkpoint().to_bytes()
        sequencer = Sequencer(ReadCheckpoint.from_bytes(data), ring_records=2)
    assert values == [word.encode() for word in expected.split()]


def test_double_replay_of_interleaved_spans() -> None:
    """Two spans larger than the ring, each read again on its own."""
    log = Paper()
    log.script("P1 Q1 P2 Q2 P3 Q3 P!4 Q4 Q!5")
    sequencer = Sequencer(ring_records=2)
    outcomes, values = run(sequencer, log)
    assert outcomes.count(Outcome.COMMITTED_BY_REPLAY) == 2
    assert values == [b"P1", b"P2", b"P3", b"Q1", b"Q2", b"Q3", b"Q4"]


def test_a_replay_covers_only_what_the_ring_lacks() -> None:
    log = Paper()
    log.script("Q1 P1 Q2 P2 P3 P!4")
    sequencer = Sequencer(ring_records=2)
    for record in log.records:
        sequencer.step(record)
    assert sequencer.replay == range(2, 4)
    assert [found.value for found in drain(sequencer, log)] == [b"P1", b"P2", b"P3"]


def test_the_ring_is_bounded_by_bytes_too() -> None:
    log = Paper()
    for clock in range(1, 100):
        log.write(P, Flag.CONTINUE, clock, b"x" * 10_000)
    log.script("P!100")
    sequencer = Sequencer(ring_bytes=50_000)
    for record in log.records[:-1]:
        sequencer.step(record)
        assert sequencer.ring_bytes <= 50_000
    sequencer.step(log.records[-1])
    assert len(list(drain(sequencer, log))) == 99
    assert sequencer.ring_bytes == 0


def test_a_span_gives_its_room_back_however_it_ends() -> None:
    log = Paper()
    log.script("P1 P2 P!3 P4 P!3 P5 P-6 P7 P.8 P9")
    sequencer = Sequencer()
    run(sequencer, log)
    (pending,) = sequencer.pending.values()
    assert pending == len(log.records)
    sequencer.step(message(99, P, Flag.ABORT, 1))
    assert sequencer.ring_bytes == 0


def test_a_straddling_duplicate() -> None:
    """Duplicates on both sides of a checkpoint of messages before it."""
    log = Paper()
    log.script("P1 P2 P!3 P4 P5")
    sequencer = Sequencer()
    run(sequencer, log)
    resumed = Sequencer(sequencer.checkpoint())
    log.script("P2 P5 P4 P6 P!7")
    outcomes, values = run(resumed, log)
    assert outcomes == [
        Outcome.ALREADY_ACKED,
        Outcome.ALREADY_SEEN,
        Outcome.ALREADY_SEEN,
        Outcome.SPAN_EXTENDED,
        Outcome.COMMITTED_BY_REPLAY,
    ]
    assert values == [b"P4", b"P5", b"P6"]


def test_a_checkpoint_while_nothing_of_a_replay_was_delivered() -> None:
    """An ACK below the whole span, and a duplicate of what was rolled back before it."""
    log = Paper()
    log.script("P.10 P15 P20 P-21 P25 P15 P!22")
    sequencer = Sequencer(ring_records=0)
    for record in log.records:
        sequencer.step(record)
        sequencer.take() if record.offset == 1 else None
    assert sequencer.replayed(log.records[4]) is None
    resumed = Sequencer(sequencer.checkpoint(), ring_records=0)
    assert run(resumed, log) == ([Outcome.COMMITTED_BY_REPLAY], [])


def test_position_stays_at_an_ack_until_its_span_is_taken() -> None:
    log = Paper()
    log.script("P1 P2 P!3")
    sequencer = Sequencer()
    for record in log.records:
        sequencer.step(record)
    assert sequencer.position == 3
    assert sequencer.take() is not None
    state = sequencer.checkpoint()
    assert (state.position, state.pin) == (3, 2)
    assert state.producers[P] == ProducerState(1, 2, 2, 0)
    assert sequencer.take() is not None
    assert sequencer.take() is None
    assert sequencer.checkpoint() == ReadCheckpoint(4, {P: ProducerState(3, 3, 0, 0)})


# -- pruning ---------------------------------------------------------------------------------------


def test_idle_producers_are_forgotten_after_the_horizon_unless_pending() -> None:
    second = 1_000_000
    log = Paper()
    log.write(P, Flag.OUTSIDE, 1, timestamp_us=0)
    log.write(Q, Flag.CONTINUE, 1, timestamp_us=0)
    sequencer = Sequencer(horizon_seconds=10)
    run(sequencer, log)
    log.write(b"other-", Flag.OUTSIDE, 1, timestamp_us=10 * second)
    run(sequencer, log)
    assert set(sequencer.checkpoint().producers) == {P, Q, b"other-"}
    log.write(b"other-", Flag.OUTSIDE, 2, timestamp_us=10 * second + 1)
    run(sequencer, log)
    assert set(sequencer.checkpoint().producers) == {Q, b"other-"}
    # Beyond the horizon a duplicate is not known as such; what is pending still commits.
    log.write(P, Flag.OUTSIDE, 1, timestamp_us=11 * second)
    log.write(Q, Flag.ACK, 2, timestamp_us=11 * second)
    assert run(sequencer, log)[1] == [b"P1", b"Q1"]


def test_many_short_lived_producers_cost_no_memory() -> None:
    """Forgotten on the way, without anybody taking checkpoints."""
    sequencer = Sequencer(horizon_seconds=1)
    for n in range(1, 3000):
        sequencer.step(message(n, b"%06d" % n, Flag.OUTSIDE, 1, timestamp_us=n * 100_000))
        sequencer.take()
    assert len(sequencer._producers._partials) <= 128


# -- errors ----------------------------------------------------------------------------------------


def test_replay_errors() -> None:
    """Records that were not asked for are refused, and change nothing."""
    log = Paper()
    log.script("P1 P2 P3 P!4")
    sequencer = Sequencer(ring_records=0)
    with pytest.raises(ValueError, match="read again"):
        sequencer.replayed(log.records[0])
    for record in log.records:
        sequencer.step(record)
    with pytest.raises(ValueError, match=r"range\(1, 4\) must be read again"):
        sequencer.take()
    with pytest.raises(ValueError, match="record 2 was read again"):
        sequencer.replayed(log.records[1])
    assert sequencer.replayed(log.records[0]) == log.records[0]
    with pytest.raises(ValueError, match="record 1 was read again"):
        sequencer.replayed(log.records[0])
    assert [found.value for found in drain(sequencer, log)] == [b"P2", b"P3"]


def test_steps_out_of_turn_are_refused() -> None:
    log = Paper()
    log.script("P1 P!2 P3")
    sequencer = Sequencer()
    for record in log.records[:2]:
        sequencer.step(record)
    with pytest.raises(ValueError, match="take"):
        sequencer.step(log.records[2])
    assert [found.value for found in drain(sequencer, log)] == [b"P1"]
    with pytest.raises(ValueError, match="below the position"):
        sequencer.step(log.records[1])
    assert sequencer.step(log.records[2]) is Outcome.SPAN_BEGUN
