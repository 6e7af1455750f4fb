"""What a repair writes: the bytes that differ, or a segment that was missing, once it is whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from walstore import Settings, Wal
from walstore.core.files.frame_stream import check_segment
from walstore.core.files.mended_segment import NAME, drop_unfinished, mend_segment
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_header
from walstore.testing import FaultyFileSystem


@pytest.fixture
async def sealed(tmp_path: Path) -> Path:
    """A sealed segment of a log that is closed."""
    async with Wal.open(tmp_path / "log", settings=Settings(segment_bytes=65536)) as wal:
        for at in range(30):
            await wal.append(b"%d" % at * 500)
        await wal.rotate()
    return min((tmp_path / "log").glob("*.wal"))


def created_us(path: Path) -> int:
    file = PosixFileSystem().open(path, "r")
    try:
        return read_header(file, path).created_us
    finally:
        file.close()


def written(disk: FaultyFileSystem) -> list[tuple[int | None, int | None]]:
    return [(one.position, one.size_bytes) for one in disk.calls if one.kind == "pwrite"]


@pytest.mark.parametrize("seed", range(20))
def test_only_what_differs_is_written_and_counted(sealed: Path, seed: int) -> None:
    chance, disk = random.Random(seed), FaultyFileSystem()
    whole, made = sealed.read_bytes(), created_us(sealed)
    damaged = bytearray(whole)
    places = sorted(chance.sample(range(100, len(whole)), chance.randint(0, 9)))
    for at in places:
        damaged[at] ^= chance.randint(1, 255)
    sealed.write_bytes(damaged)
    assert mend_segment(disk, sealed, made, 0, whole) == len(places)
    assert sealed.read_bytes() == whole
    expected = [(places[0], places[-1] + 1 - places[0])] if places else []
    assert written(disk) == expected


@pytest.mark.parametrize("size", [1, 4096, 9000])
def test_a_file_that_ends_early_gets_its_end(sealed: Path, size: int) -> None:
    whole, made = sealed.read_bytes(), created_us(sealed)
    sealed.write_bytes(whole[:-size])
    assert mend_segment(PosixFileSystem(), sealed, made, 0, whole) == size
    assert sealed.read_bytes() == whole


def test_a_missing_segment_has_its_name_once_it_is_whole(sealed: Path) -> None:
    fs, whole, made = PosixFileSystem(), sealed.read_bytes(), created_us(sealed)
    sealed.unlink()
    mend_segment(fs, sealed, made, 0, whole[:8000])
    assert not sealed.exists()
    assert mend_segment(fs, sealed, made, 8000, whole[8000:]) == len(whole) - 8000
    assert sealed.read_bytes() == whole
    assert not (sealed.parent / NAME).exists()
    size, start = len(whole), int(sealed.stem)
    assert check_segment(fs, sealed, start, made, size, is_sealed=True) == size


def test_parts_that_do_not_follow_each_other_are_refused(sealed: Path) -> None:
    fs, whole, made = PosixFileSystem(), sealed.read_bytes(), created_us(sealed)
    sealed.unlink()
    with pytest.raises(FileNotFoundError):
        mend_segment(fs, sealed, made, 8000, whole[8000:])
    mend_segment(fs, sealed, made, 0, whole[:8000])
    for place, time in ((9000, made), (8000, made + 1)):
        with pytest.raises(OSError, match=r"again|anew"):
            mend_segment(fs, sealed, time, place, whole[place:])
    mend_segment(fs, sealed, made, 0, whole[:4000])  # from the beginning
    mend_segment(fs, sealed, made, 4000, whole[4000:])
    assert sealed.read_bytes() == whole


def test_what_was_not_completed_is_deleted(sealed: Path) -> None:
    fs, whole, made = PosixFileSystem(), sealed.read_bytes(), created_us(sealed)
    drop_unfinished(fs, sealed.parent)
    sealed.unlink()
    mend_segment(fs, sealed, made, 0, whole[:8000])
    drop_unfinished(fs, sealed.parent)
    assert not (sealed.parent / NAME).exists()
