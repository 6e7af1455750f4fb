"""The check of the demo: records that are missing, doubled or altered, and torn appends, are named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from walstore import Batch, Wal
from walstore.cli.demo.checks import KEY, STREAMS, ReadTally, compare_batches, digest

Group = tuple[int, int, list[bytes]]
"""Producer, number of the first record, values."""
ONE, TWO = 100, 102
"""Producers of the first life, of the streams cpu and disk."""
GOOD: list[Group] = [
    (ONE, 0, [b"a", b"b"]),
    (TWO, 0, [b""]),
    (ONE, 2, [b"c"]),
    (TWO, 1, [b"d", b"e"]),
]
WRITTEN = {ONE: [b"a", b"b", b"c"], TWO: [b"", b"d", b"e"]}
ACKNOWLEDGED = {ONE: 3, TWO: 1}


def _key(group: Group) -> bytes:
    number, first, values = group
    written = WRITTEN.get(number, [])[: first + len(values)] or values
    return KEY.pack(number, first, len(values), digest(written, 0))


def _batches(path: Path, groups: Sequence[Group]) -> list[Batch]:
    async def append() -> list[Batch]:
        async with Wal.open(path) as wal:
            for group in groups:
                stream = STREAMS[group[0] % 100 % len(STREAMS)]
                await wal.append_many(group[2], key=_key(group), stream=stream)
            return [batch async for batch in wal.reader(follow=False).batches()]

    return asyncio.run(append())


def _read(path: Path, groups: Sequence[Group]) -> ReadTally:
    tally = ReadTally()
    for batch in _batches(path, groups):
        tally.take(batch)
    return tally


def test_all_is_there(log_directory: Path) -> None:
    tally = _read(log_directory, GOOD)
    assert tally.settle(ACKNOWLEDGED, 1) == 0
    assert (tally.complaints, tally.duplicated, tally.skipped) == ([], 0, 0)
    assert (tally.records, tally.size_bytes, tally.position) == (6, 5, 7)
    assert tally.by_stream() == {"cpu": (3, 3), "disk": (3, 2)}


def test_appends_may_be_read_in_parts(log_directory: Path) -> None:
    tally = ReadTally()
    for batch in _batches(log_directory, GOOD):
        for offset in range(batch.start, batch.limit):
            tally.take(batch.slice(offset, offset + 1))
    assert tally.settle(ACKNOWLEDGED, 1) == 0
    assert tally.complaints == []


def test_the_checksum_does_not_depend_on_how_values_are_divided() -> None:
    assert digest([b"c"], digest([b"a", b"b"], 0)) == digest([b"a", b"b", b"c"], 0)
    assert digest([b"ab"], 0) != digest([b"a", b"b"], 0)


@pytest.mark.parametrize(
    ("groups", "lost", "duplicated", "complaint"),
    [
        (GOOD[:2] + GOOD[3:], 1, 0, "producer 100 had 3 records acknowledged, 2 are there"),
        (GOOD[1:], 2, 0, "its number 0 is missing before 2"),
        ([*GOOD, GOOD[0]], 0, 2, "there twice, from its number 0"),
        ([*GOOD, GOOD[3]], 0, 2, "there twice, from its number 1"),
        ([*GOOD[:3], (TWO, 1, [b"d"]), (TWO, 1, [b"d"])], 0, 1, "there twice"),
        ([(ONE, 0, [b"a", b"X"]), *GOOD[1:]], 0, 0, "producer 100 are not those"),
        ([*GOOD[:3], (TWO, 1, [b"d", b"X"])], 0, 0, "producer 102 are not those"),
        ([*GOOD, (200, 0, [b"x"])], 0, 0, "producer 200 is not known"),
    ],
)
def test_what_is_wrong_is_noticed(
    log_directory: Path, groups: list[Group], lost: int, duplicated: int, complaint: str
) -> None:
    tally = _read(log_directory, groups)
    assert (tally.settle(ACKNOWLEDGED, 1), tally.duplicated) == (lost, duplicated)
    assert complaint in " ".join(tally.complaints)


def test_a_torn_append_is_noticed(log_directory: Path) -> None:
    (batch,) = _batches(log_directory, [(ONE, 0, [b"a", b"b", b"c"])])
    tally = ReadTally()
    tally.take(batch.slice(1, 3))
    tally.settle({ONE: 2}, 1)
    assert tally.complaints == ["an append of producer 100 is not whole"]


def test_holes_in_offsets_and_other_streams_are_noticed(log_directory: Path) -> None:
    batches = _batches(log_directory, GOOD[:3])
    tally = ReadTally()
    tally.take(batches[0])
    tally.take(batches[-1])
    assert "at 3" in tally.complaints[0]
    tally.producers[ONE].stream = "text"
    tally.settle({}, 1)
    assert "producer 100 is of cpu, not text" in tally.complaints


def test_batches_are_compared_column_by_column(log_directory: Path, tmp_path: Path) -> None:
    one = _batches(log_directory, GOOD[:1])[0]
    assert compare_batches(one, one) is None
    other = _batches(tmp_path / "other", [(ONE, 0, [b"a", b"X"])])[0]
    assert compare_batches(one, other) == "values of [1, 3) differ"
    other = _batches(tmp_path / "third", [(TWO, 0, [b"a", b"b"])])[0]
    assert compare_batches(one, other) == "keys of [1, 3) differ"
