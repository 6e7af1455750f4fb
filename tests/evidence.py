"""Logs that are killed, cut or damaged in places, for tests of what recovery takes for evidence."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local import (
    UnsyncedFileSystem,
    close_opened,
    copy_log,
    open_blocking,
    read_opened,
    segments,
)
from walstore import CorruptionError, Settings, Wal
from walstore.care.verify.verifying import verify_directory
from walstore.core.format import checkpoint, frame, segment

FS = UnsyncedFileSystem()
CHECKPOINT, DURABLE = checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME
SECTOR = 512
STRIDES = [pytest.param(41, id="some"), pytest.param(3, id="most", marks=pytest.mark.slow)]
HINTS = [
    pytest.param((), id="all hints"),
    pytest.param((DURABLE,), id="no cell"),
    pytest.param((CHECKPOINT, DURABLE), id="no hints"),
]


@dataclasses.dataclass
class Content:
    """What an opening finds."""

    values: list[bytes]
    registers: dict[str, str]
    streams: set[str]
    producers: set[str]


def look(directory: Path) -> Content:
    """Open the log and return what it holds; the files are changed as any opening does."""
    opened = open_blocking(directory, fs=FS, settings=Settings())
    try:
        ledger = opened.tail.ledger
        values = [record.value for record in read_opened(opened)]
        return Content(values, dict(ledger.registers), set(ledger.streams), set(ledger.producers))
    finally:
        close_opened(opened)


def frames_of(path: Path) -> list[tuple[int, int]]:
    """Return where the frames of a segment begin and end."""
    data = memoryview(path.read_bytes())
    found, at = [], segment.HEADER_BYTES
    while (header := frame.parse_header(data, at)) is not None:
        found.append((at, header.end))
        at = header.end
    return found


def killed(source: Path, target: Path, *without: str) -> Path:
    """Return a log as a killed process leaves it, without some of its hints."""
    copy_log(source, target)
    for name in without:
        (target / name).unlink()
    return target


def flipped(original: Path, scratch: Path, stride: int) -> Iterator[tuple[int, Path, bool]]:
    """Yield copies of a log with one bit flipped in the frames of its last segment: the byte, the copy,
    and whether the byte is in the last frame."""
    path = segments(original)[-1]
    whole = path.read_bytes()
    found = frames_of(path)
    assert len(found) > 5
    for at in range(found[0][0], found[-1][1], stride):
        directory = copy_log(original, scratch / "flipped")
        data = bytearray(whole)
        data[at] ^= 1 << (at * 5 + 3) % 8
        (directory / path.name).write_bytes(data)
        yield at, directory, at >= found[-1][0]
        shutil.rmtree(directory)


def check_flips(original: Path, scratch: Path, stride: int, *, is_last_known: bool) -> None:
    """Assert that each flipped bit is reported by opening and verifying alike.

    Unless something says that the last frame was synced, that one may be taken for an unfinished write.
    """
    expected = look(copy_log(original, scratch / "expected"))
    for at, directory, is_last in flipped(original, scratch, stride):
        if is_last and not is_last_known:
            continue
        problems = verify_directory(directory).problems
        assert problems, f"verify does not see byte {at}"
        with pytest.raises(CorruptionError):  # from opening, not only from reading
            close_opened(open_blocking(directory, fs=FS, settings=Settings()))
            raise AssertionError((at, expected, look(directory)))


async def change_everything(wal: Wal) -> None:
    """Write frames without records, and some with, behind the checkpoint of the opening."""
    for number in range(3):
        async with wal.transaction(update={f"register {number}": "value"}):
            pass
        await wal.open_stream(f"stream {number}")
        await wal.fence(f"owner {number}", register=f"fence {number}")
    await wal.producer("producer").append(b"produced", sequence=1)
    async with wal.transaction(update={"register 0": None, "last": "value"}):
        pass
    await wal.close_stream("stream 1")


async def change_before_records(wal: Wal) -> None:
    async with wal.transaction(update={"register": "value"}):
        pass
    for number in range(8):
        await wal.append(b"%d" % number)


async def change_only(wal: Wal) -> None:
    for number in range(10):
        async with wal.transaction(update={"register": f"{number}"}):
            pass


WORKS = [change_everything, change_before_records, change_only]


async def killed_after(work, directory: Path, target: Path, *without: str) -> Path:
    async with Wal.open(directory) as wal:
        await work(wal)
        return await asyncio.to_thread(killed, directory, target, *without)


async def frames_of_a_log(directory: Path, count: int) -> bytes:
    """Return the bytes of whole frames of a log that appended and synced one by one."""
    async with Wal.open(directory) as wal:
        for number in range(count):
            await wal.append(b"%d" % number)

    def read() -> bytes:
        path = segments(directory)[0]
        found = frames_of(path)
        return path.read_bytes()[found[0][0] : found[-1][1]]

    return await asyncio.to_thread(read)


def torn(whole: bytes, before: bytes) -> Iterator[bytes]:
    """Yield what a crash may leave of the bytes that follow ``before`` in ``whole``: any sectors."""
    cuts = [len(before), *range(-(-(len(before) + 1) // SECTOR) * SECTOR, len(whole), SECTOR)]
    pieces = list(itertools.pairwise([*cuts, len(whole)]))
    for kept in itertools.product([True, False], repeat=len(pieces)):
        data = bytearray(whole)
        for (low, high), is_kept in zip(pieces, kept, strict=True):
            if not is_kept:
                data[low:high] = bytes(high - low)
        yield bytes(data)
