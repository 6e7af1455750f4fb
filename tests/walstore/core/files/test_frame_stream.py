"""Bytes of segments on their way to another copy: none of a damaged frame leaves, whatever is asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.effort import first_seed
from walstore import CorruptionError, Settings, Wal
from walstore.core.files.frame_stream import CheckedReads, FrameStream
from walstore.core.files.frame_walk import frames_of
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.segment import HEADER_BYTES, decode_header

FS = PosixFileSystem()


@pytest.fixture
async def sealed(tmp_path: Path) -> Path:
    """Return a sealed segment with small and large frames, and a transaction."""
    chance = random.Random(5)
    async with Wal.open(tmp_path / "log", settings=Settings(segment_bytes=65536)) as wal:
        while wal.statistics().rotations < 1:
            await wal.append(b"v" * chance.randrange(6000), stream="s")
    return min((tmp_path / "log").glob("*.wal"))


def created(path: Path) -> int:
    return decode_header(path.read_bytes()[:HEADER_BYTES], str(path)).created_us


def read_all(path: Path, created_us: int, position: int, chance: random.Random) -> bytes:
    reads, found = CheckedReads(FS), b""
    while data := reads.read(path, 1, created_us, position, chance.choice((1, 100, 5000, 1 << 20))):
        found += data
        position += len(data)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_what_is_whole_is_read_from_any_byte(sealed: Path, seed: int) -> None:
    """Also from the middle of a frame, or of the footer, by one who did not read the bytes before."""
    chance = random.Random(seed + first_seed("frame stream"))
    data = sealed.read_bytes()
    begin = 0 if seed == 0 else chance.randrange(len(data))
    assert read_all(sealed, created(sealed), begin, chance) == data[begin:]


@pytest.mark.parametrize("seed", range(100))
def test_nothing_of_a_damaged_frame_is_read(sealed: Path, seed: int) -> None:
    chance = random.Random(seed + first_seed("damaged stream"))
    made, data = created(sealed), bytearray(sealed.read_bytes())
    ends = [0, HEADER_BYTES, *(end for end, _ in frames_of(FS, sealed))]
    at = chance.randrange(8, len(data))
    last = max(end for end in ends if end <= at)
    data[at] ^= 1 << chance.randrange(8)
    sealed.write_bytes(data)
    reads, position = CheckedReads(FS), 0
    with pytest.raises(CorruptionError) as caught:
        while found := reads.read(sealed, 1, made, position, chance.choice((1, 100, 5000))):
            position += len(found)
            assert position <= last
    assert caught.value.path == str(sealed)
    assert caught.value.position in (last, None)
    with pytest.raises(CorruptionError):
        reads.read(sealed, 1, made, at, 1)


def test_a_file_that_is_too_short_ends_within_a_frame(sealed: Path) -> None:
    whole = sealed.read_bytes()
    ends = [end for end, _ in frames_of(FS, sealed)]
    sealed.write_bytes(whole[: ends[3] + 100])
    reads = CheckedReads(FS)
    assert reads.read(sealed, 1, created(sealed), 0, ends[3]) == whole[: ends[3]]
    with pytest.raises(CorruptionError):
        reads.read(sealed, 1, created(sealed), ends[3], 50)


@pytest.mark.parametrize("swapped", [False, True])
def test_whole_frames_that_do_not_follow_each_other_are_damage(sealed: Path, swapped: bool) -> None:
    data = sealed.read_bytes()
    ends = [HEADER_BYTES, *(end for end, _ in frames_of(FS, sealed))]
    stream = FrameStream(sealed, 1)
    stream.feed(data[: ends[2]])
    follows = data[ends[3] : ends[4]] if swapped else data[ends[2] : ends[3]]
    if not swapped:
        stream.feed(follows)
        assert stream.boundary == ends[3]
        return
    with pytest.raises(CorruptionError, match="does not continue"):
        stream.feed(follows)
