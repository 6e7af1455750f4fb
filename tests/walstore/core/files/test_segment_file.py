"""Reading segments: the right batches from any position, and a typed error for any damage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.cases import case
from tests.local import SMALL, close_opened, draft_of, open_blocking, segments
from walstore import CorruptionError, FormatVersionError
from walstore.core.batches.append_request import make_group
from walstore.core.files import segment_file
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import Segment
from walstore.core.format import frame, segment
from walstore.testing import ManualClock

FS = PosixFileSystem()
BATCHES = 40
ROWS = 5
LIMIT = BATCHES * ROWS + 1
SIZE = 600  # 40 batches of 3 KB: several index entries


def value_of(offset: int) -> bytes:
    return b"%06d" % offset * (SIZE // 6)


@pytest.fixture
def source(log_directory: Path) -> Segment:
    """The only, sealed segment of a log: batches of five records, one millisecond apart."""
    clock = ManualClock(now_us=1_000_000)
    settings = SMALL.replace(segment_bytes=1 << 20)
    opened = open_blocking(log_directory, clock=clock, settings=settings)
    for start in range(1, LIMIT, ROWS):
        clock.advance(0.001)
        opened.tail.commit([draft_of(start, *map(value_of, range(start, start + ROWS)))])
    sealed = opened.tail.rotate()
    close_opened(opened)
    return Segment(sealed.path, sealed.start, sealed.summary)


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def positions_of(path: Path, data_bytes: int) -> list[int]:
    view = memoryview(path.read_bytes())
    found, at = [], segment.HEADER_BYTES
    while at < data_bytes:
        found.append(at)
        header = frame.parse_header(view, at)
        assert header is not None
        at = header.end
    return found


@pytest.mark.parametrize("max_bytes", [1, 4096, 10_000, 1 << 20])
def test_from_every_position_it_returns_exactly_what_follows(source, max_bytes) -> None:
    for position in range(1, LIMIT):
        batches = segment_file.read_batches(FS, source, position, LIMIT, max_bytes)
        assert batches[0].start == position
        expected = position
        for batch in batches:
            assert batch.start == expected
            assert list(batch.values) == [value_of(o) for o in range(batch.start, batch.limit)]
            expected = batch.limit


def test_it_stops_at_the_limit_also_inside_a_batch(source) -> None:
    batches = segment_file.read_batches(FS, source, 3, 14, 1 << 20)
    assert [(batch.start, batch.limit) for batch in batches] == [(3, 6), (6, 11), (11, 14)]


def test_it_reads_about_as_much_as_asked(source) -> None:
    batches = segment_file.read_batches(FS, source, 1, LIMIT, 10_000)
    assert 1 <= len(batches) <= 4
    assert len(segment_file.read_batches(FS, source, 1, LIMIT, 1 << 20)) == BATCHES


def test_a_batch_larger_than_a_read_is_read_by_itself(log_directory) -> None:
    opened = open_blocking(log_directory, settings=SMALL.replace(segment_bytes=1 << 20))
    values = [b"a" * 100, b"b" * 50_000, b"c" * 100]
    for offset, value in enumerate(values, 1):
        opened.tail.commit([draft_of(offset, value)])
    sealed = opened.tail.rotate()
    close_opened(opened)
    for offset, value in enumerate(values, 1):
        (batch,) = segment_file.read_batches(FS, sealed, offset, offset + 1, 1)
        assert list(batch.values) == [value]


def test_the_active_segment_is_read_up_to_the_limit_while_it_grows(log_directory) -> None:
    opened = open_blocking(log_directory)
    opened.tail.commit([draft_of(1, b"a", b"b")])
    active = opened.tail.active
    assert active.path.stat().st_size > 10_000, "there is reserved space behind"
    opened.tail.commit([draft_of(3, b"c")])
    assert [b.limit for b in segment_file.read_batches(FS, active, 1, 3, 1 << 20)] == [3]
    assert [b.limit for b in segment_file.read_batches(FS, active, 1, 4, 1 << 20)] == [3, 4]
    opened.tail.rotate()
    assert [b.limit for b in segment_file.read_batches(FS, active, 2, 4, 1 << 20)] == [3, 4]
    close_opened(opened)


def test_the_index_is_loaded_once_from_the_footer(source) -> None:
    assert source.index is None
    segment_file.read_batches(FS, source, 150, LIMIT, 1)
    assert source.index is not None
    assert len(source.index.starts) > 3
    for start, position in zip(source.index.starts, source.index.positions, strict=True):
        header = frame.parse_header(memoryview(source.path.read_bytes()), position)
        assert header is not None
        assert header.start == start


def test_times_find_the_first_record_that_is_not_older(source) -> None:
    for offset in range(1, LIMIT, 7):
        with case(offset):
            (batch,) = segment_file.read_batches(FS, source, offset, offset + 1, 1)
            moment = batch.timestamps_us[0]
            first = (offset - 1) // ROWS * ROWS + 1
            assert segment_file.find_time(FS, source, moment, LIMIT) == first
            assert segment_file.find_time(FS, source, moment - 1, LIMIT) == first
            after = first + ROWS if first + ROWS < LIMIT else None
            assert segment_file.find_time(FS, source, moment + 1, LIMIT) == after


def test_times_within_a_batch(log_directory) -> None:
    opened = open_blocking(log_directory, clock=ManualClock(now_us=1000))
    draft = draft_of(1, b"a", timestamp_us=100)
    for moment in (200, 200, 300):
        draft.extend(make_group([b"x"], None, None, None, moment))
    opened.tail.commit([draft])
    sealed = opened.tail.rotate()
    close_opened(opened)
    for moment, expected in [(0, 1), (100, 1), (101, 2), (200, 2), (201, 4), (300, 4), (301, None)]:
        assert segment_file.find_time(FS, sealed, moment, 5) == expected
    assert segment_file.find_time(FS, sealed, 300, 4) in (None, 4)


# -- L12 and L13, as the reader sees them: damage is named with file and place ---------------------


@pytest.mark.parametrize(
    "where", ["magic", "crc", "length", "chain", "start", "count", "value", "trailer"]
)
def test_a_flipped_bit_is_found_when_it_is_read(source, where) -> None:
    at = positions_of(source.path, source.summary.data_bytes)[20]
    length = positions_of(source.path, source.summary.data_bytes)[21] - at
    offsets = {"magic": 0, "crc": 4, "length": 8, "chain": 12, "start": 16, "count": 24}
    place = at + {**offsets, "value": 200, "trailer": length - 8}[where]
    for bit in range(8):
        flip(source.path, place, bit)
        with pytest.raises(CorruptionError) as found:
            list(_read_all(source))
        assert found.value.path == str(source.path)
        assert found.value.position == at
        assert found.value.outcome == "not_written"
        flip(source.path, place, bit)
    assert len(list(_read_all(source))) == BATCHES


def _read_all(source: Segment, max_bytes: int = 4096):
    position = 1
    while position < LIMIT:
        for batch in segment_file.read_batches(FS, source, position, LIMIT, max_bytes):
            yield batch
            position = batch.limit


def test_records_before_the_damage_are_still_delivered(source) -> None:
    at = positions_of(source.path, source.summary.data_bytes)[20]
    flip(source.path, at + 300)
    for max_bytes in (4096, 1 << 20):
        limits: list[int] = []
        with pytest.raises(CorruptionError):
            limits.extend(batch.limit for batch in _read_all(source, max_bytes))
        assert limits[-1] == 20 * ROWS + 1


def test_a_damaged_header_or_footer_is_found_on_first_use(source) -> None:
    size = source.path.stat().st_size
    for place in (0, 9, 30, source.summary.data_bytes + 20, size - 20):
        flip(source.path, place)
        with pytest.raises(CorruptionError, match=re.escape(str(source.path))):
            segment_file.read_batches(FS, Segment(source.path, 1, source.summary), 1, LIMIT, 1)
        flip(source.path, place)


def test_a_cut_file_is_found(source) -> None:
    data = source.path.read_bytes()
    source.path.write_bytes(data[: source.summary.data_bytes // 2])
    with pytest.raises(CorruptionError):
        list(_read_all(Segment(source.path, 1, source.summary)))


def test_an_index_that_points_elsewhere_is_found(source) -> None:
    """Nothing may be skipped, even if every frame is whole."""
    segment_file.read_batches(FS, source, 1, LIMIT, 1)
    assert source.index is not None
    source.index.positions[0] = source.index.positions[2]
    with pytest.raises(CorruptionError, match="not where the log says"):
        segment_file.read_batches(FS, source, 1, LIMIT, 1)


def test_a_segment_that_was_replaced_by_another_logs_is_found(source, tmp_path) -> None:
    other = open_blocking(tmp_path / "other", settings=SMALL.replace(segment_bytes=1 << 20))
    for start in range(1, LIMIT, ROWS):
        other.tail.commit([draft_of(start, *[b"foreign"] * ROWS)])
    foreign = other.tail.rotate()
    close_opened(other)
    source.path.write_bytes(foreign.path.read_bytes())
    with pytest.raises(CorruptionError, match="not the one that was sealed"):
        segment_file.read_batches(FS, source, 1, LIMIT, 1)


def test_a_frame_of_a_newer_version_is_named(source) -> None:
    at = positions_of(source.path, source.summary.data_bytes)[0]
    data = bytearray(source.path.read_bytes())
    header = frame.parse_header(memoryview(data), at)
    assert header is not None
    data[at + 30] = frame.FRAME_VERSION + 1
    body = at + frame.HEADER_BYTES
    salt = segment.decode_header(bytes(data), "f").salt
    covered = bytes(data[at + frame.CRC_FROM : body]) + frame.place(salt, at)
    crc = crc32c(covered, crc32c(bytes(data[body : header.end])))
    data[at + 4 : at + 8] = crc.to_bytes(4, "little")
    source.path.write_bytes(data)
    with pytest.raises(FormatVersionError, match=f"at byte {at}"):
        segment_file.read_batches(FS, source, 1, LIMIT, 1)


def test_a_file_that_is_gone_is_a_file_not_found(source) -> None:
    source.path.unlink()
    with pytest.raises(FileNotFoundError):
        segment_file.read_batches(FS, source, 1, LIMIT, 1)


def test_no_descriptor_stays_open(source, log_directory, faulty) -> None:
    flip(source.path, source.summary.data_bytes // 2)
    for position in range(1, LIMIT, 10):
        try:
            segment_file.read_batches(faulty, source, position, LIMIT, 4096)
        except CorruptionError:
            continue
    with pytest.raises(CorruptionError):
        segment_file.find_time(faulty, source, 1_020_000, LIMIT)
    assert faulty.count("open") == faulty.count("close") > 10
    assert segments(log_directory)
