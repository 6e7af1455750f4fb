"""Frames inside values are never taken for records, and looking at them takes one pass.

In both versions of the format. In version 1 they are whole wherever they are found, so only what links them
to the log makes records of the log differ from them.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from tests.frames import build, columns_of, header_of, values_only
from tests.fuzz import model
from tests.local import UnsyncedFileSystem
from tests.version_1 import make_version_1
from walstore import CorruptionError, FormatVersionError, Record, Settings, Wal, WalError
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.repair.runs import Keep
from walstore.core.format import frame, segment
from walstore.core.format.frame import Column, ColumnKind
from walstore.core.format.ledger import Marks

FS = UnsyncedFileSystem()
SECTOR = 512
COLUMN_OF_A_NEWER_VERSION = frame.uint_column(frame.IGNORABLE_KINDS_FROM - 1, [0])


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    """Version of the format that the log has."""
    return int(request.param)


def forged(start: int, count: int, *, previous_crc: int = 0) -> bytes:
    """Return a value that is a log of its own: frames that continue each other."""
    pieces = [bytes(-(frame.HEADER_BYTES + 20) % 8)]
    for offset in range(start, start + count):
        data = build(
            values_only(b"forged", start=offset),
            epoch=9,
            previous_crc=previous_crc,
            synced_limit=offset,
        )
        previous_crc = int.from_bytes(data[4:8], "little")
        pieces.append(data)
    return b"".join(pieces)


async def _make(path: Path, value: bytes, behind: int, *, rotate: bool) -> None:
    async with Wal.open(path, settings=Settings(segment_bytes=64 << 20)) as wal:
        await wal.append(b"before")
        await wal.append(value)
        for _ in range(behind):
            await wal.append(b"behind")
        if rotate:
            await wal.rotate()
            await wal.append(b"in another segment")


def make(
    path: Path, version: int, value: bytes, *, behind: int = 0, rotate: bool = False
) -> tuple[Path, int]:
    """Make a log whose second record has that value; return its file, and where that batch begins."""
    asyncio.run(_make(path, value, behind, rotate=rotate))
    if version == 1:
        make_version_1(path)
    file = min(path.glob("*.wal"))
    at = file.read_bytes().index(b"WBF1", file.read_bytes().index(b"before"))
    return file, at


def lose(file: Path, at: int, size: int) -> None:
    """Make zeros of ``size`` bytes; of a single one, what no flip of one bit brings back."""
    data = bytearray(file.read_bytes())
    size = min(size, len(data) - at)
    data[at : at + size] = bytes(size) if size > 1 else bytes([data[at] ^ 0x55])
    file.write_bytes(data)


async def _values(path: Path) -> list[bytes]:
    async with Wal.open(path) as wal:
        return [record.value async for record in wal.reader("earliest", follow=False)]


def values(path: Path) -> list[bytes]:
    return asyncio.run(_values(path))


@pytest.mark.parametrize("alignment", range(0, 8, 2))
@pytest.mark.parametrize("keep", [None, "before", "after"])
def test_a_torn_write_of_frames(
    log_directory: Path, version: int, keep: Keep | None, alignment: int
) -> None:
    """Its first sector is lost. The frames in its value are nobody's, whatever is kept."""
    file, at = make(log_directory, version, bytes(alignment) + forged(2, 30))
    for name in ("CHECKPOINT", "DURABLE"):
        (log_directory / name).unlink()
    lose(file, at, SECTOR)
    plan = plan_repair(log_directory, keep=keep, fs=FS)
    assert plan.choices == (plan.choices[0],)
    assert (plan.head, plan.limit, plan.needs_choice) == (1, 2, False)
    apply_repair(plan, fs=FS)
    assert values(log_directory) == [b"before"]


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("keep", ["before", "after"])
def test_damaged_frames_of_frames(
    log_directory: Path, version: int, keep: Keep, rotate: bool
) -> None:
    """Behind the damaged batch the log goes on with its own records."""
    file, at = make(log_directory, version, forged(3, 30), behind=3, rotate=rotate)
    lose(file, at, SECTOR)
    plan = plan_repair(log_directory, keep=keep, fs=FS)
    assert [str(one) for one in plan.unreadable] == ["[2, 3)"]
    apply_repair(plan, fs=FS)
    behind = [b"behind"] * 3 + [b"in another segment"] * rotate
    assert values(log_directory) == ([b"before"] if keep == "before" else behind)


def nested(size_bytes: int) -> bytes:
    """Return headers and trailers that claim frames within frames, none of which is whole."""
    depth = size_bytes // (frame.HEADER_BYTES + frame.TRAILER.size)
    data = bytearray()
    lengths = [88 * level for level in range(depth, 0, -1)]
    header = bytearray(build(values_only(b""), epoch=9)[: frame.HEADER_BYTES])
    for length in lengths:
        struct.pack_into("<I", header, 8, length)
        data += header
    for length in reversed(lengths):
        data += frame.TRAILER.pack(length, frame.TRAILER_MAGIC)
    return bytes(-(frame.HEADER_BYTES + 20) % 8) + bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(
    60
)  # one pass takes less than a second on an idle machine, a quadratic search minutes
@pytest.mark.parametrize("kind", ["chained", "alike", "nested"])
@pytest.mark.parametrize("lost_bytes", [SECTOR, pytest.param(1, marks=pytest.mark.slow)])
def test_many_frames_in_a_value(
    log_directory: Path, version: int, kind: str, lost_bytes: int
) -> None:
    """An 8 MiB value that holds 70 000 frames, or what looks like as many."""
    if kind == "nested":
        value = nested(8 << 20)
    elif kind == "chained":
        value = forged(3, 70_000)
    else:
        value = forged(3, 1) * 70_000
    file, at = make(log_directory, version, value, behind=3)
    lose(file, at + 4, lost_bytes)
    plan = plan_repair(log_directory, keep="after", fs=FS)
    assert [str(one) for one in plan.unreadable] == ["[2, 3)"]
    assert (plan.head, plan.limit) == (3, 6)


def test_a_small_file_of_forged_frames(log_directory: Path, version: int) -> None:
    file, _ = make(log_directory, version, b"x", behind=3)
    data = file.read_bytes()[:64]
    for content in (nested(64 << 10), forged(1, 500) * 2, forged(7, 1) * 600):
        file.write_bytes(data + content)
        plan_repair(log_directory, keep="after", fs=FS)


@pytest.mark.parametrize(
    ("marks", "extra", "expected"),
    [
        (b"no marks", [], CorruptionError),
        (Marks().encode(), [COLUMN_OF_A_NEWER_VERSION], FormatVersionError),
    ],
    ids=["malformed", "newer"],
)
def test_repair_and_opening_agree_on_a_batch_that_cannot_be_read(
    log_directory: Path, version: int, marks: bytes, extra: list[Column], expected: type[WalError]
) -> None:
    """The batch is whole, and continues the log."""
    file, at = make(log_directory, version, b"replaced")
    (log_directory / "CHECKPOINT").unlink()
    data = bytearray(file.read_bytes())
    salt = segment.decode_header(bytes(data[: segment.HEADER_BYTES]), str(file)).salt
    old = header_of(bytes(data[at:]), at=frame.place(salt, at))
    new, _ = frame.encode(
        [
            frame.blob_column(ColumnKind.MARKS, [marks], len(marks)),
            *columns_of([Record(2, b"")]),
            *extra,
        ],
        start=2,
        count=1,
        base_timestamp_us=0,
        max_timestamp_us=old.max_timestamp_us,
        epoch=old.epoch,
        previous_crc=old.previous_crc,
        synced_limit=2,
        at=frame.place(salt, at),
    )
    data[at : at + len(new)] = new
    file.write_bytes(data)
    with pytest.raises(expected) as opening:
        values(log_directory)
    with pytest.raises(expected) as repairing:
        plan_repair(log_directory, fs=FS)
    assert str(repairing.value) == str(opening.value)


async def _make_trimmed(path: Path) -> None:
    async with Wal.open(path) as wal:
        for _ in range(3):
            await wal.append_many([b"a", b"b", b"c"])
            await wal.rotate()
        await wal.append(b"end")
        await wal.trim(before=5)


@pytest.mark.parametrize(("keep", "left"), [("before", [b"b", b"c"]), ("after", [b"end"])])
def test_a_segment_that_says_it_is_before_the_head_is_no_leftover(
    log_directory: Path, keep: Keep, left: list[bytes]
) -> None:
    """Its name is behind the head: it is damage, and what is kept opens without it."""
    asyncio.run(_make_trimmed(log_directory))
    files = {path.name: path.read_bytes() for path in log_directory.glob("*.wal")}
    segments = model.parse(files)
    third = next(one for one in segments if one.frames[0].fields["start"] == 7)
    third.frames[0].forced["start"] = 0
    for name, data in model.write(segments, is_chained=True).items():
        (log_directory / name).write_bytes(data)
    (log_directory / "CHECKPOINT").unlink()
    plan = plan_repair(log_directory, keep=keep, fs=FS)
    assert plan.is_needed
    apply_repair(plan, fs=FS)
    assert values(log_directory) == left
