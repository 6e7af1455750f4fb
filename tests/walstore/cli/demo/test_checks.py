"""The ledger of the demo: it notices what is missing, double, torn or changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from walstore import Batch, Wal
from walstore.cli.demo.checks import ProducerClaim, ReadTally, compare, compare_batches
from walstore.cli.demo.identity import KEY, digest
from walstore.files.log_snapshot import LogSnapshot

Group = tuple[int, int, list[bytes]]
"""Producer, number of the first record, values."""


def _batches(path: Path, groups: Sequence[Group], *, stream: str = "s") -> list[Batch]:
    async def append() -> None:
        async with Wal.open(path) as wal:
            for number, first, values in groups:
                key = KEY.pack(number, first, len(values))
                await wal.append_many(values, key=key, stream=stream)

    asyncio.run(append())
    return list(LogSnapshot.open(path).batches())


def _read(
    path: Path, groups: Sequence[Group], claims: dict[int, ProducerClaim] | None = None
) -> ReadTally:
    ledger = ReadTally(claims)
    for batch in _batches(path, groups):
        ledger.take(batch)
    return ledger


GOOD: list[Group] = [(1, 0, [b"a", b"b"]), (2, 0, [b""]), (1, 2, [b"c"]), (2, 1, [b"d", b"e"])]


def _claims() -> dict[int, ProducerClaim]:
    return {
        1: ProducerClaim("s", 3, digest([b"a", b"b", b"c"], 0)),
        2: ProducerClaim("s", 1, digest([b""], 0)),
    }


def test_all_is_there(log_directory: Path) -> None:
    ledger = _read(log_directory, GOOD, _claims())
    assert ledger.settle(_claims()) == 0
    assert (ledger.complaints, ledger.duplicated, ledger.skipped) == ([], 0, 0)
    assert (ledger.records, ledger.size_bytes, ledger.position) == (6, 5, 7)
    assert ledger.by_stream() == {"s": (6, 5)}


def test_groups_may_be_read_in_parts(log_directory: Path) -> None:
    ledger = ReadTally(_claims())
    for batch in _batches(log_directory, GOOD):
        for offset in range(batch.start, batch.limit):
            ledger.take(batch.slice(offset, offset + 1))
    assert ledger.settle(_claims()) == 0
    assert ledger.complaints == []


def test_the_checksum_does_not_depend_on_how_values_are_cut() -> None:
    assert digest([b"c"], digest([b"a", b"b"], 0)) == digest([b"a", b"b", b"c"], 0)
    assert digest([b"ab"], 0) != digest([b"a", b"b"], 0)


@pytest.mark.parametrize(
    ("groups", "lost", "duplicated", "complaint"),
    [
        (GOOD[:2] + GOOD[3:], 1, 0, "producer 1 had 3 records acknowledged, 2 are there"),
        (GOOD[1:], 2, 0, "its number 0 is missing before 2"),
        ([*GOOD, GOOD[0]], 0, 2, "there twice, from its number 0"),
        ([*GOOD, GOOD[3]], 0, 2, "there twice, from its number 1"),
        ([*GOOD[:3], (2, 1, [b"d"]), (2, 1, [b"d"])], 0, 1, "there twice"),
        ([(1, 0, [b"a", b"X"]), *GOOD[1:]], 0, 0, "not those that it appended"),
        ([*GOOD, (3, 0, [b"x"])], 0, 0, "producer 3 is not known"),
    ],
)
def test_what_is_wrong_is_noticed(
    log_directory: Path, groups: list[Group], lost: int, duplicated: int, complaint: str
) -> None:
    ledger = _read(log_directory, groups, _claims())
    assert (ledger.settle(_claims()), ledger.duplicated) == (lost, duplicated)
    assert complaint in " ".join(ledger.complaints)


def test_a_torn_group_is_noticed(log_directory: Path) -> None:
    (batch,) = _batches(log_directory, [(1, 0, [b"a", b"b", b"c"])])
    ledger = ReadTally()
    ledger.take(batch.slice(1, 3))
    ledger.settle({1: ProducerClaim("s", 2)})
    assert ledger.complaints == ["a group of producer 1 is not whole"]


def test_holes_in_offsets_foreign_keys_and_other_streams_are_noticed(log_directory: Path) -> None:
    batches = _batches(log_directory, [*GOOD[:2], (1, 2, [b"c"])])
    ledger = ReadTally()
    ledger.take(batches[0])
    ledger.take(batches[2])
    assert "at 3" in ledger.complaints[0]
    foreign = _batches(log_directory / "foreign", [])
    assert foreign == []
    ledger.settle({1: ProducerClaim("other", 3)})
    assert "producer 1 is of other, not s" in ledger.complaints


def test_two_readers_are_compared(log_directory: Path, tmp_path: Path) -> None:
    one = _read(log_directory, GOOD)
    assert compare(one, _read(tmp_path / "same", GOOD)) == []
    other = _read(tmp_path / "other", [*GOOD[:3], (2, 1, [b"d", b"X"])])
    assert compare(one, other) == ["two readers saw different records of producer 2"]


def test_batches_are_compared_column_by_column(log_directory: Path, tmp_path: Path) -> None:
    one = _batches(log_directory, GOOD[:1])[0]
    assert compare_batches(one, one) is None
    other = _batches(tmp_path / "other", [(1, 0, [b"a", b"X"])])[0]
    assert compare_batches(one, other) == "values of [1, 3) differ"
    other = _batches(tmp_path / "third", [(7, 0, [b"a", b"b"])])[0]
    assert compare_batches(one, other) == "keys of [1, 3) differ"
