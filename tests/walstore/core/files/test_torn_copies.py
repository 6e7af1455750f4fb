"""Copies of torn tails: the newest few of a log, none longer than its segment, and none in anybody's way."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.local import SMALL, segments
from walstore import Wal
from walstore.core.files.torn_copies import MOST_COPIES
from walstore.testing import FaultyFileSystem


def copies(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.broken*"))


def tear(directory: Path, turn: int) -> None:
    with segments(directory)[-1].open("ab") as file:
        file.write(b"torn %d" % turn)


async def write(directory: Path, *, fills: bool = False) -> int:
    """Append a record, or so many that there is another segment; return the end."""
    async with Wal.open(directory, settings=SMALL) as log:
        before = len(segments(directory))
        await log.append(b"x" * 6000)
        while fills and len(segments(directory)) == before:
            await log.append(b"x" * 6000)
        return log.tail


async def test_the_newest_few_are_kept(log_directory):
    await write(log_directory)
    for turn in range(MOST_COPIES + 3):
        tear(log_directory, turn)
        await write(log_directory)
    kept = {(log_directory / name).read_bytes() for name in copies(log_directory)}
    assert kept == {b"torn %d" % turn for turn in range(3, MOST_COPIES + 3)}


async def test_they_go_with_their_segment(log_directory):
    await write(log_directory)
    for turn in range(2):
        tear(log_directory, turn)
        tail = await write(log_directory, fills=turn == 1)
    assert copies(log_directory) == [
        "00000000000000000001.broken",
        "00000000000000000001.broken.2",
    ]
    tear(log_directory, 2)
    async with Wal.open(log_directory, settings=SMALL) as log:
        await log.trim(tail - 1)
    (kept,) = copies(log_directory)
    assert kept.removesuffix(".broken") == segments(log_directory)[0].stem


async def test_those_of_segments_that_are_gone_go_at_opening(log_directory):
    tail = await write(log_directory, fills=True)
    async with Wal.open(log_directory, settings=SMALL) as log:
        await log.trim(tail - 1)
    (log_directory / "00000000000000000001.broken").write_bytes(b"of an earlier version")
    own = segments(log_directory)[0].with_suffix(".broken")
    own.write_bytes(b"stays")
    await write(log_directory)
    assert copies(log_directory) == [own.name]


async def test_one_that_cannot_be_removed_stops_nothing(log_directory):
    await write(log_directory)
    tear(log_directory, 0)
    tail = await write(log_directory, fills=True)
    faulty = FaultyFileSystem()
    faulty.fail("remove", errno.EACCES, name="*.broken", times=None)
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as log:
        assert await log.trim(tail - 1) == tail - 1
    assert copies(log_directory) == ["00000000000000000001.broken"]
    await write(log_directory)
    assert copies(log_directory) == []
