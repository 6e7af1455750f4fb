"""S14, and blocks with an earlier life: bytes that look like frames of the log and are none.

A write that a crash cut off is removed, whatever it contains or lies upon, and never becomes a record.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from pathlib import Path

import pytest

from tests.evidence import (
    CHECKPOINT,
    DURABLE,
    FS,
    HINTS,
    SECTOR,
    STRIDES,
    change_everything,
    check_flips,
    frames_of,
    frames_of_a_log,
    killed_after,
    look,
    torn,
)
from tests.local import (
    close_opened,
    copy_log,
    open_blocking,
    read_opened,
    read_values,
    segments,
    stored_batches,
)
from walstore import Settings, Wal
from walstore.care.verify.verifying import verify_directory
from walstore.core.files.log_bounds import find_missing
from walstore.core.files.log_files import LogSnapshot
from walstore.core.format import segment
from walstore.core.settings import MIB

ALIGNED = bytes(4)
"""What follows it in a value begins at a multiple of 8, as frames do."""


VALUES = [
    "own frames",
    "frames of another log",
    "unaligned",
    pytest.param("both", marks=pytest.mark.slow),
]


# -- S14: frames inside values ---------------------------------------------------------------------


@pytest.mark.parametrize("hints", ["hints", "no hints"])
@pytest.mark.parametrize(
    "what",
    [
        "own frames",
        "frames of another log",
        pytest.param("both", marks=pytest.mark.slow),
        "unaligned",
    ],
)
async def test_S14_a_torn_write_of_a_value_that_holds_whole_frames_is_torn(
    scratch: Path, what: str, hints: str
) -> None:
    foreign = await frames_of_a_log(scratch / "foreign", 18)
    directory = scratch / "log"
    async with Wal.open(directory) as wal:
        for number in range(12):
            await wal.append(b"%d" % number)
        path = segments(directory)[0]
        begin, end = frames_of(path)[0][0], frames_of(path)[-1][1]
        own = path.read_bytes()[begin:end]
        value = {
            "own frames": ALIGNED + own,
            "frames of another log": ALIGNED + foreign,
            "both": ALIGNED + own + foreign,
            "unaligned": foreign,
        }[what]
        before = await asyncio.to_thread(copy_log, directory, scratch / "before")
        await wal.append(value)
        whole = path.read_bytes()[: frames_of(path)[-1][1]]

    def check() -> None:
        expected = [b"%d" % number for number in range(12)]
        for data in torn(whole, whole[:end]):
            again = copy_log(before, scratch / "torn")
            (again / path.name).write_bytes(data)
            if hints == "no hints":
                for name in (CHECKPOINT, DURABLE):
                    (again / name).unlink()
            assert verify_directory(again).problems == ()
            assert look(again).values == ([*expected, value] if data == whole else expected)
            shutil.rmtree(again)

    await asyncio.to_thread(check)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_S14_seventy_thousand_frames_in_a_torn_value_take_little_time(scratch: Path) -> None:
    """Every frame is looked at once. If each were followed to the end, the time limit would not be enough."""
    foreign = await frames_of_a_log(scratch / "foreign", 9)
    later = foreign[-len(foreign) // 9 :]
    directory = scratch / "log"
    async with Wal.open(directory) as wal:
        await wal.append(b"kept")
        path = segments(directory)[0]
        ((_, end),) = frames_of(path)
        before = await asyncio.to_thread(copy_log, directory, scratch / "before")
        await wal.append((ALIGNED + later * 80_000)[: 8 * MIB])
        whole = path.read_bytes()[: frames_of(path)[-1][1]]
    assert 8 * MIB // len(later) > 70_000

    def check() -> None:
        # The sectors with the header of the batch are lost; and then its last ones.
        for low, high in ((end, end + 4 * SECTOR), (len(whole) - 4 * SECTOR, len(whole))):
            data = bytearray(whole)
            data[low:high] = bytes(high - low)
            (before / path.name).write_bytes(data)
            assert verify_directory(before).problems == ()
            assert look(before).values == [b"kept"]

    await asyncio.to_thread(check)


# -- blocks of an earlier life ---------------------------------------------------------------------


def reuse_blocks(path: Path) -> None:
    """Say in a segment's header that what follows its frames may be of an earlier life."""
    data = bytearray(path.read_bytes())
    header = segment.decode_header(bytes(data[: segment.HEADER_BYTES]), str(path))
    marked = dataclasses.replace(header, flags=segment.REUSES_BLOCKS)
    data[: segment.HEADER_BYTES] = segment.encode_header(marked)
    path.write_bytes(data)


def stale_bytes(own: bytes, foreign: bytes) -> dict[str, bytes]:
    """Return what an earlier life may have left, by name."""
    return {
        "nothing": b"",
        "noise": random.Random(1).randbytes(5000),
        "ones": b"\xff" * 5000,
        "whole frames of an earlier life": foreign * 3,
        "frames of this life elsewhere": bytes(16) + own,
        "a cut frame": foreign[41:],
        "frames and a footer": foreign + b"WALIDX\r\n" + bytes(80) + b"WALEND\r\n",
    }


def check_agreement(directory: Path, values: list[bytes]) -> None:
    """Assert that all who look at the files see the same end of the log, and then open it."""
    limit = len(values) + 1
    assert verify_directory(directory).problems == ()
    assert verify_directory(directory).limit == limit
    assert find_missing(FS, directory) is None
    view = LogSnapshot.open(directory)
    found = [record.value for batch in stored_batches(view) for record in batch]
    assert found == values[: len(found)]
    assert len(found) in (len(values), view.durable_limit - 1)
    opened = open_blocking(directory, fs=FS, settings=Settings())
    assert opened.recovery.missing_from is None
    assert [record.value for record in read_opened(opened)] == values
    close_opened(opened)


@pytest.mark.parametrize("hints", ["hints", "no hints"])
async def test_stale_blocks_behind_the_frames_are_where_the_log_ends(
    scratch: Path, hints: str
) -> None:
    foreign = await frames_of_a_log(scratch / "foreign", 20)
    own = await frames_of_a_log(scratch / "log", 9)
    expected = [b"%d" % number for number in range(9)]
    for name, stale in stale_bytes(own, foreign).items():
        directory = await asyncio.to_thread(copy_log, scratch / "log", scratch / name)
        (path,) = segments(directory)
        reuse_blocks(path)
        path.write_bytes(path.read_bytes() + stale + bytes(4096))
        if hints == "no hints":
            for hint in (CHECKPOINT, DURABLE):
                (directory / hint).unlink()
        async with Wal.open_readonly(directory) as beside:
            assert beside.limit == 10, name
            async with beside.reader(follow=False) as reader:
                assert [record.value async for record in reader] == expected, name
        await asyncio.to_thread(check_agreement, directory, expected)
        async with Wal.open(directory) as wal:
            assert await wal.append(b"next") == 10
            assert await read_values(wal) == [*expected, b"next"], name


async def test_a_torn_write_over_stale_blocks_is_torn(scratch: Path) -> None:
    """Each sector is new, or of the earlier life."""
    foreign = await frames_of_a_log(scratch / "foreign", 40)
    directory = scratch / "log"
    async with Wal.open(directory) as wal:
        for number in range(5):
            await wal.append(b"%d" % number)
        path = segments(directory)[0]
        end = frames_of(path)[-1][1]
        before = await asyncio.to_thread(copy_log, directory, scratch / "before")
        await wal.append(b"new" * 700)
        whole = path.read_bytes()[: frames_of(path)[-1][1]]

    def check() -> None:
        expected = [b"%d" % number for number in range(5)]
        stale = whole[:end] + foreign[: len(whole) - end]
        assert len(stale) == len(whole)
        for data in torn(whole, whole[:end]):
            again = copy_log(before, scratch / "torn")
            mixed = bytes(new or old for new, old in zip(data[end:], stale[end:], strict=True))
            (again / path.name).write_bytes(data[:end] + mixed + foreign)
            reuse_blocks(again / path.name)
            values = look(again).values
            assert values == expected or mixed == whole[end:]
            shutil.rmtree(again)

    await asyncio.to_thread(check)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("without", HINTS)
async def test_damage_in_front_of_stale_blocks_is_reported(
    scratch: Path, without: tuple[str, ...], stride: int
) -> None:
    foreign = await frames_of_a_log(scratch / "foreign", 20)
    original = await killed_after(change_everything, scratch / "log", scratch / "killed", *without)
    (path,) = segments(original)
    reuse_blocks(path)
    end = frames_of(path)[-1][1]
    path.write_bytes(path.read_bytes()[:end] + bytes(64) + foreign * 3)
    await asyncio.to_thread(check_flips, original, scratch, stride, is_last_known=not without)
