"""L8, L12, L13: what damage does to a log. A torn tail costs itself only; anything else is found."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.local import (
    SMALL,
    UnsyncedFileSystem,
    check_contiguous,
    close_opened,
    contents,
    copy_log,
    draft_of,
    open_blocking,
    open_descriptors,
    read_opened,
    segments,
    stored_batches,
)
from walstore import Record, Wal, WalError
from walstore.core.format import checkpoint, segment

FS = UnsyncedFileSystem()
_UNSEEN_BYTES = 8
"""Length of the magic that ends a sealed segment; damaged it is not noticed, for the checkpoint knows
what the footer says."""
HINTS = (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)


def append_blocking(directory: Path, *values: bytes) -> int:
    """Open, append a commit for each value, close; return the first offset."""
    opened = open_blocking(directory, fs=FS)
    try:
        first = opened.tail.durable_limit
        for at, value in enumerate(values, first):
            opened.tail.commit([draft_of(at, value)])
        return first
    finally:
        close_opened(opened)


def read_blocking(directory: Path) -> list[Record]:
    """Open, read everything, close."""
    opened = open_blocking(directory, fs=FS)
    try:
        return read_opened(opened)
    finally:
        close_opened(opened)


def frame_starts(path: Path) -> list[int]:
    """Return where the frames of a cleanly closed active segment begin, and where they end."""
    data = path.read_bytes()
    found, at = [], segment.HEADER_BYTES
    while at < len(data):
        found.append(at)
        at += struct.unpack_from("<I", data, at + 8)[0]
    return [*found, at]


# -- L8 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hints", ["with hints", "without hints"])
@pytest.mark.parametrize("tail", ["cut", pytest.param("zeroed", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_L8_torn_tail_at_every_byte(scratch: Path, hints, tail) -> None:
    """Cut anywhere in the last three batches; reopen, append, reread: the prefix plus the new."""
    values = [b"first", b"second", b"third" * 5, b"4", b"fifth" * 3]
    original = scratch / "log"
    append_blocking(original, *values)
    (path,) = segments(original)
    starts = frame_starts(path)
    whole = path.read_bytes()
    for size in range(starts[2], starts[-1] + 1):
        directory = copy_log(original, scratch / "torn")
        data = whole[:size] + (bytes(len(whole) - size + 4096) if tail == "zeroed" else b"")
        (directory / path.name).write_bytes(data)
        if hints == "without hints":
            for name in HINTS:
                (directory / name).unlink()
        survivors = sum(start <= size for start in starts[1:])
        assert append_blocking(directory, b"new", b"newer") == survivors + 1
        records = read_blocking(directory)
        check_contiguous(records)
        assert [r.value for r in records] == [*values[:survivors], b"new", b"newer"], size
        shutil.rmtree(directory)


async def test_L8_through_the_public_api(log_directory: Path, tmp_path: Path) -> None:
    async with Wal.open(log_directory) as wal:
        for n in range(50):
            await wal.append(b"%d" % n)
        await wal.append_many([b"%d" % n for n in range(50, 60)])
    (path,) = segments(log_directory)
    whole = path.read_bytes()
    group_begins = frame_starts(path)[-2]
    for size in range(group_begins + 1, len(whole), 23):
        directory = copy_log(log_directory, tmp_path / f"torn-{size}")
        (directory / path.name).write_bytes(whole[:size])
        async with Wal.open(directory) as wal:
            assert wal.tail == 51, "the group is gone as a whole"
            assert wal.recovery.truncated_bytes > 0
            assert wal.recovery.broken_copy is not None
            assert Path(wal.recovery.broken_copy).read_bytes() == whole[group_begins:size].rstrip(
                b"\0"
            )
            assert await wal.append_many([b"new"] * 101) == range(51, 152)
            await wal.flush()
        records = await contents(directory)
        check_contiguous(records)
        assert [r.value for r in records] == [*(b"%d" % n for n in range(50)), *[b"new"] * 101]


def test_L8_torn_again_and_again(log_directory: Path) -> None:
    """Each opening tears the batch that the one before wrote."""
    for round_ in range(30):
        assert append_blocking(log_directory, b"kept %d" % round_, b"torn") == round_ + 1
        (path,) = segments(log_directory)
        path.write_bytes(path.read_bytes()[: -1 - 3 * round_ % 80])
    assert [r.value for r in read_blocking(log_directory)] == [b"kept %d" % n for n in range(30)]


# -- L12, L13 --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_log(tmp_path_factory) -> Path:
    """Two sealed segments and an active one, with few bytes."""
    directory = tmp_path_factory.mktemp("small") / "log"
    opened = open_blocking(directory, fs=FS, settings=SMALL)
    offset = 1
    for _ in range(2):
        for _ in range(2):
            opened.tail.commit([draft_of(offset, b"ab", b"")])
            offset += 2
        opened.tail.rotate()
    for _ in range(2):
        opened.tail.commit([draft_of(offset, b"cd", b"e")])
        offset += 2
    close_opened(opened)
    return directory


def flips(size: int, *, every_bit: bool) -> list[tuple[int, int]]:
    return [
        (at, bit) for at in range(size) for bit in (range(8) if every_bit else ((at * 5 + 3) % 8,))
    ]


def check_flips(small_log: Path, scratch: Path, which: int, *, hints: bool, every_bit: bool):
    """Flip bits of one file; the log must say so, or still hold exactly what it held."""
    directory = copy_log(small_log, scratch / "flipped")
    if not hints:
        for name in HINTS:
            (directory / name).unlink()
    expected = read_blocking(copy_log(small_log, scratch / "expected"))
    path = segments(directory)[which]
    whole = path.read_bytes()
    before = {other.name: other.read_bytes() for other in directory.iterdir()}
    torn_from = frame_starts(path)[-2] if which == 2 and not hints else len(whole)
    harmless = 0
    messages: set[str] = set()
    for at, bit in flips(len(whole), every_bit=every_bit):
        data = bytearray(whole)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            records = read_blocking(directory)
        except WalError as error:
            messages.add(str(error))
        else:
            # Without its hints nothing says that the last batch was synced: it counts as torn.
            assert records == (expected[:-2] if torn_from <= at else expected), (at, bit)
            harmless += 1
        assert open_descriptors(directory) == []
        for name, content in before.items():
            (directory / name).write_bytes(content)
        for other in directory.iterdir():
            if other.name not in before:
                other.unlink()
    assert all(str(directory) in message for message in messages)
    return harmless, len(whole), torn_from


@pytest.mark.slow
@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_L12_L13_a_flipped_bit_in_every_byte_is_found(
    small_log: Path, scratch: Path, which: int, hints: bool
) -> None:
    harmless, size, torn_from = check_flips(small_log, scratch, which, hints=hints, every_bit=False)
    assert harmless <= (_UNSEEN_BYTES if which < 2 and hints else size - torn_from)


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_L12_L13_readers_of_the_files_alone_find_it_too(
    small_log: Path, scratch: Path, which: int
) -> None:
    directory = copy_log(small_log, scratch / "flipped")
    path = segments(directory)[which]
    whole = path.read_bytes()
    expected = [record for batch in stored_batches(directory) for record in batch]
    assert len(expected) == 12
    for at in range(len(whole) - _UNSEEN_BYTES):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(WalError):
                list(stored_batches(directory))


@pytest.mark.slow
@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_L12_L13_every_flipped_bit_is_found(
    small_log: Path, scratch: Path, which: int, hints: bool
) -> None:
    harmless, size, torn_from = check_flips(small_log, scratch, which, hints=hints, every_bit=True)
    assert harmless <= 8 * (_UNSEEN_BYTES if which < 2 and hints else size - torn_from)
