"""The check of a soak: a log that is 1:1 with what was made passes, and whatever is not is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.local import stored_batches
from walstore import Batch, Wal
from walstore.cli.soak.child import MOST_PROBLEMS, STREAMS, Checker, Generator

SEED = 7
MADE = Generator(SEED)
Row = tuple[str, bytes, bytes]
"""Stream, key, value."""


def _row(stream: int, number: int) -> Row:
    name = STREAMS[stream]
    return name, name.encode(), MADE.value(stream, number)


GOOD = [_row(stream, number) for number in range(1, 5) for stream in (0, 1, 3)]
FIRST = [1] * len(STREAMS)


def _batches(path: Path, rows: list[Row]) -> list[Batch]:
    async def append() -> None:
        async with Wal.open(path) as wal:
            for stream, key, value in rows:
                wal.append_nowait(value, key=key, stream=stream)

    asyncio.run(append())
    return list(stored_batches(path))


def _check(path: Path, rows: list[Row]) -> Checker:
    checker = Checker(SEED, 1, FIRST)
    for batch in _batches(path, rows):
        checker.take(batch)
    return checker


def test_what_was_made_passes(log_directory: Path) -> None:
    checker = _check(log_directory, GOOD)
    assert checker.problems == []
    assert checker.position == 1 + len(GOOD)
    assert checker.numbers == [5, 5, 1, 5, *[1] * (len(STREAMS) - 4)]


def test_it_goes_on_from_any_place(log_directory: Path) -> None:
    """With the numbers of that place, or by what is there when they are not known."""
    batches = _batches(log_directory, GOOD)
    whole = batches[0].slice(4, batches[0].limit)
    for numbers in ([2, 2, 1, 2, *FIRST[4:]], [0] * len(STREAMS)):
        checker = Checker(SEED, 4, numbers)
        checker.take(whole)
        assert checker.problems == []
        assert checker.numbers[:2] == [5, 5]


def _altered(at: int) -> Row:
    stream, key, value = GOOD[3]
    return stream, key, value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :]


SPOILT = {
    "lost": ([*GOOD[:3], *GOOD[4:]], ["offset 6: stream 0 has record 3 where 2 is missing"]),
    "doubled": ([*GOOD[:4], GOOD[0], *GOOD[4:]], ["offset 5: record 1 of stream 0 is there twice"]),
    "appended twice": ([*GOOD, GOOD[-3]], ["offset 13: record 4 of stream 0 is there twice"]),
    "swapped": (
        [*GOOD[:3], GOOD[6], *GOOD[4:6], GOOD[3], *GOOD[7:]],
        [
            "offset 4: stream 0 has record 3 where 2 is missing",
            "offset 7: record 2 of stream 0 is out of order",
        ],
    ),
    "altered filler": (
        [*GOOD[:3], _altered(-1), *GOOD[4:]],
        ["offset 4: record 2 of stream 0 was altered"],
    ),
    "altered number": (
        [*GOOD[:3], _altered(9), *GOOD[4:]],
        ["offset 4: record 2 of stream 0 was altered"],
    ),
    "cut off": (
        [*GOOD[:3], (*GOOD[3][:2], b"\0"), *GOOD[4:]],
        ["offset 4: record 2 of stream 0 was altered"],
    ),
    "another seed": (
        [*GOOD[:3], (*GOOD[3][:2], Generator(8).value(0, 2)), *GOOD[4:]],
        ["offset 4: record 2 of stream 0 was altered"],
    ),
    "another stream": (
        [*GOOD, (STREAMS[1], b"stream-1", MADE.value(3, 5))],
        ["offset 13: a record of stream 3 is in stream 1"],
    ),
    "another key": (
        [*GOOD, (STREAMS[1], b"stream-2", MADE.value(1, 5))],
        ["offset 13: nobody appended key b'stream-2' to stream stream-1"],
    ),
    "no stream of ours": (
        [*GOOD, ("orders", b"k", b"v")],
        ["offset 13: nobody appended key b'k' to stream orders"],
    ),
    "far ahead": (
        [*GOOD, _row(0, 10**15)],
        ["offset 13: stream 0 has record 1000000000000000 where 5 is missing"],
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_wrong_is_named(log_directory: Path, name: str) -> None:
    rows, problems = SPOILT[name]
    assert _check(log_directory, rows).problems == problems


def test_offsets_that_do_not_follow_each_other_are_named(log_directory: Path) -> None:
    (batch,) = _batches(log_directory, GOOD)
    checker = Checker(SEED, 1, FIRST)
    checker.take(batch.slice(1, 4))
    checker.take(batch.slice(7, 10))
    assert checker.problems[0] == "3 records of offsets [7, 10) were read at 4"


def test_only_the_first_problems_are_kept(log_directory: Path) -> None:
    rows = [("orders", b"k", b"v")] * (MOST_PROBLEMS + 5)
    assert len(_check(log_directory, rows).problems) == MOST_PROBLEMS
