"""Reached: what became of an append follows from how far the tail had come, to the offset."""

from __future__ import annotations

from walstore.append.commit import Reached


def reached() -> Reached:
    return Reached(
        durable_limit=5,
        written_limit=8,
        attempted_limit=10,
        durable_serial=2,
        written_serial=4,
        attempted_serial=6,
    )


def test_records_are_durable_unknown_or_not_written_by_their_limit() -> None:
    found = {limit: reached().outcome(limit) for limit in (4, 5, 6, 8, 9, 10)}
    assert found == {
        4: "durable",
        5: "durable",
        6: "unknown",
        8: "unknown",
        9: "not_written",
        10: "not_written",
    }


def test_changes_of_the_ledger_are_too_by_their_number() -> None:
    found = {serial: reached().settled_outcome(serial) for serial in (2, 3, 4, 5)}
    assert found == {2: "durable", 3: "unknown", 4: "unknown", 5: "not_written"}


def test_in_doubt_all_that_was_handed_over_may_be_on_disk() -> None:
    doubt = reached().in_doubt()
    assert [doubt.outcome(limit) for limit in (5, 6, 10, 11)] == [
        "durable",
        "unknown",
        "unknown",
        "not_written",
    ]
    assert [doubt.settled_outcome(serial) for serial in (2, 3, 6, 7)] == [
        "durable",
        "unknown",
        "unknown",
        "not_written",
    ]


def test_a_sync_covers_all_that_was_written() -> None:
    found = reached()
    found.note_synced()
    assert (found.outcome(8), found.settled_outcome(4)) == ("durable", "durable")
