"""Verifying: a clean log has no problem; damage anywhere is named with its place, and nothing is changed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.local import UnsyncedFileSystem
from walstore import FormatVersionError, LogNotFoundError, Settings, Wal
from walstore.care.verify.segment import MAX_PROBLEMS
from walstore.care.verify.verifying import VerifyReport, verify_directory
from walstore.core.files.posix import PosixFile, PosixFileSystem
from walstore.core.format import frame, segment
from walstore.core.format.checkpoint import CELL_FILE_NAME, FILE_NAME
from walstore.core.format.segment import SegmentStreams
from walstore.testing import FaultyFileSystem

SMALL = Settings(segment_bytes=64 << 10, checkpoint_bytes=64 << 10)


def _fill(path: Path, *, records: int = 600, size: int = 500) -> int:
    """Make a log of several segments; return its limit."""

    async def fill() -> int:
        async with Wal.open(path, settings=SMALL) as wal:
            for at in range(0, records, 20):
                values = [bytes([at % 251]) * size] * 19
                await wal.append_many(values, key=b"k%d" % at, stream="s", headers={"h": b"1"})
                await wal.append(b"")
            return wal.tail

    return asyncio.run(fill())


def _segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.wal"))


def _flip(path: Path, position: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def _contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def _frame_places(path: Path) -> list[tuple[int, frame.FrameHeader]]:
    view = memoryview(path.read_bytes())
    places = []
    at = segment.HEADER_BYTES
    while (header := frame.parse_header(view, at)) is not None:
        places.append((at, header))
        at = header.end
    return places


def test_a_clean_log_has_no_problems(log_directory: Path) -> None:
    limit = _fill(log_directory)
    before = _contents(log_directory)
    seen: list[Path] = []
    report = verify_directory(log_directory, on_progress=seen.append)
    assert report.is_ok
    assert (report.head, report.limit, report.records) == (1, limit, limit - 1)
    assert report.segments == len(_segments(log_directory)) > 3
    assert seen == _segments(log_directory)
    assert report.unfinished_bytes == 0
    assert _contents(log_directory) == before


def test_a_log_that_was_reopened_and_one_without_hints_have_no_problems(
    log_directory: Path,
) -> None:
    _fill(log_directory, records=100)
    limit = _fill(log_directory, records=300)
    assert verify_directory(log_directory).is_ok
    (log_directory / FILE_NAME).unlink()
    (log_directory / CELL_FILE_NAME).unlink()
    report = verify_directory(log_directory)
    assert report.is_ok
    assert report.limit == limit


def test_an_empty_log_has_no_problems(log_directory: Path) -> None:
    _fill(log_directory, records=0)
    report = verify_directory(log_directory)
    assert report.is_ok
    assert (report.records, report.limit) == (0, 1)


@pytest.mark.slow
def test_every_flipped_bit_of_a_sealed_segment_is_found(
    log_directory: Path, tmp_path: Path
) -> None:
    _fill(log_directory, records=400, size=400)
    victim = _segments(log_directory)[1]
    whole = victim.read_bytes()
    places = _frame_places(victim)
    footer = segment.parse_seal(whole[-segment.SEAL.size :])
    assert footer is not None
    positions = {*range(0, segment.HEADER_BYTES, 3), *range(footer, len(whole), 11)}
    positions |= {at + step for at, header in places[:2] for step in range(0, header.length, 501)}
    positions |= {at + step for at, _ in places for step in (0, 5, 8, 12, 17, 25, 50, 79)}
    for position in sorted(positions):
        _flip(victim, position, 1 << (position % 8))
        report = verify_directory(log_directory)
        assert not report.is_ok, position
        if segment.HEADER_BYTES <= position < footer:
            begin = max(at for at, _ in places if at <= position)
            problem = report.problems[0]
            assert (problem.path, problem.position) == (str(victim), begin), position
            assert report.records == _count(places, log_directory, victim, begin), position
        victim.write_bytes(whole)


def _count(
    places: list[tuple[int, frame.FrameHeader]], path: Path, victim: Path, damaged: int
) -> int:
    """All records but those of the damaged batch: verifying goes on behind it."""
    total = sum(
        h.count for file in _segments(path) if file != victim for _, h in _frame_places(file)
    )
    return total + sum(header.count for at, header in places if at != damaged)


def test_each_of_several_damaged_places_is_named(log_directory: Path) -> None:
    _fill(log_directory)
    expected = []
    for victim in _segments(log_directory)[:3]:
        for at, _ in _frame_places(victim)[1:4:2]:
            _flip(victim, at + 100)
            expected.append((str(victim), at))
    report = verify_directory(log_directory)
    assert [(p.path, p.position) for p in report.problems] == expected
    assert report.problem_count == len(expected)
    assert f"{expected[0][0]} at byte {expected[0][1]}: batch at offset" in str(report.problems[0])


def test_a_footer_that_denies_a_stream_is_found(log_directory: Path) -> None:
    """Readers of that stream would pass over its records."""
    _fill(log_directory)
    path = _segments(log_directory)[1]
    data = path.read_bytes()
    at = segment.parse_seal(data[-segment.SEAL.size :])
    assert at is not None
    summary, index = segment.decode_footer(data[at:], int(path.stem), str(path))
    for names, is_right in ((["other"], False), (["s", "other"], True)):
        index.streams = SegmentStreams()
        index.streams.add(names)
        path.write_bytes(data[:at] + segment.encode_footer(summary, index))
        problems = verify_directory(log_directory).problems
        assert not problems if is_right else all("denies stream 's'" in p.message for p in problems)
        assert is_right or len(problems) > 3


@pytest.mark.slow
def test_damage_to_synced_batches_of_the_active_segment_is_found(log_directory: Path) -> None:
    _fill(log_directory)
    victim = _segments(log_directory)[-1]
    whole = victim.read_bytes()
    places = _frame_places(victim)
    assert len(places) > 2
    for at, header in places:
        for position in (at, at + 9, at + 100, at + header.length - 2):
            _flip(victim, position)
            report = verify_directory(log_directory)
            assert str(victim) in str(report.problems[0]), position
            victim.write_bytes(whole)
    # Without hints, the batches behind it still tell that it was synced.
    (log_directory / FILE_NAME).unlink()
    (log_directory / CELL_FILE_NAME).unlink()
    _flip(victim, places[0][0] + 100)
    report = verify_directory(log_directory)
    assert [(p.path, p.position) for p in report.problems] == [(str(victim), places[0][0])]


def test_a_torn_tail_is_no_problem(log_directory: Path) -> None:
    limit = _fill(log_directory)
    victim = _segments(log_directory)[-1]
    at, header = _frame_places(victim)[-1]
    copy = victim.read_bytes()[at : at + header.length // 2]
    with victim.open("ab") as file:
        file.write(copy + bytes(5000))
    report = verify_directory(log_directory)
    assert report.is_ok
    assert report.limit == limit
    assert report.unfinished_bytes == len(copy.rstrip(b"\0"))


def test_synced_records_cut_off_at_the_end_are_missed(log_directory: Path) -> None:
    _fill(log_directory)
    victim = _segments(log_directory)[-1]
    at, header = _frame_places(victim)[-1]
    os.truncate(victim, at)
    report = verify_directory(log_directory)
    assert f"the log ends at offset {header.start}" in report.problems[-1].message


@pytest.mark.parametrize(("which", "message"), [(0, "begins at offset 1"), (1, "log continues at")])
def test_a_missing_segment_is_found(log_directory: Path, which: int, message: str) -> None:
    _fill(log_directory)
    _segments(log_directory)[which].unlink()
    report = verify_directory(log_directory)
    assert message in report.problems[0].message


def test_a_missing_last_segment_is_found(log_directory: Path) -> None:
    _fill(log_directory)
    _segments(log_directory)[-1].unlink()
    messages = " ".join(p.message for p in verify_directory(log_directory).problems)
    assert "it is gone" in messages


def test_segments_of_another_log_are_found(log_directory: Path, tmp_path: Path) -> None:
    _fill(log_directory)
    _fill(tmp_path / "other")
    name = _segments(log_directory)[1].name
    shutil.copy(tmp_path / "other" / name, log_directory / name)
    messages = [p.message for p in verify_directory(log_directory).problems]
    assert any("belongs to log" in message for message in messages)
    assert any("does not continue the segment before" in message for message in messages)


def test_a_renamed_segment_and_a_foreign_file_are_found(log_directory: Path) -> None:
    _fill(log_directory)
    second, third = _segments(log_directory)[1:3]
    shutil.copy(third, second)
    (log_directory / "mine.wal").write_bytes(b"hello")
    problems = verify_directory(log_directory).problems
    assert any("a foreign file" in problem.message for problem in problems)
    assert any("the header says first offset" in problem.message for problem in problems)


def test_a_foreign_file_named_like_a_segment_is_found(log_directory: Path) -> None:
    _fill(log_directory)
    _segments(log_directory)[1].write_bytes(b"hello")
    assert verify_directory(log_directory).problems[0].message == "not a walstore segment"


@pytest.mark.slow
def test_damaged_and_lying_checkpoints_are_found(log_directory: Path, tmp_path: Path) -> None:
    _fill(log_directory)
    path = log_directory / FILE_NAME
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        _flip(path, position)
        assert verify_directory(log_directory).problems[0].path == str(path)
        path.write_bytes(whole)
    _fill(tmp_path / "other", records=500, size=450)
    shutil.copy(tmp_path / "other" / FILE_NAME, path)
    assert any(p.path == str(path) for p in verify_directory(log_directory).problems)


def test_a_damaged_cell_is_no_problem(log_directory: Path) -> None:
    _fill(log_directory)
    (log_directory / CELL_FILE_NAME).write_bytes(bytes(64))
    assert verify_directory(log_directory).is_ok


@pytest.mark.slow
def test_problems_are_counted_beyond_those_that_are_kept(log_directory: Path) -> None:
    _fill(log_directory, records=6000, size=50)
    for victim in _segments(log_directory):
        data = bytearray(victim.read_bytes())
        for at, _ in _frame_places(victim)[::2]:
            data[at + 90] ^= 1
        victim.write_bytes(data)
    report = verify_directory(log_directory)
    assert len(report.problems) == MAX_PROBLEMS < report.problem_count


def test_no_log(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LogNotFoundError):
            verify_directory(path)


def test_a_newer_version_is_told_apart_from_damage(log_directory: Path) -> None:
    _fill(log_directory)
    victim = _segments(log_directory)[0]
    data = bytearray(victim.read_bytes())
    data[12:14] = (99).to_bytes(2, "little")
    from crc32c import crc32c

    data[8:12] = crc32c(bytes(data[12 : segment.HEADER_BYTES])).to_bytes(4, "little")
    victim.write_bytes(data)
    with pytest.raises(FormatVersionError):
        verify_directory(log_directory)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_live_writer_finishes_batches_in_the_middle_of_a_read(
    log_directory: Path, damaged: bool
) -> None:
    """The read returns the first batch as it was before, and the later ones that say it was synced."""
    _fill(log_directory)
    (log_directory / FILE_NAME).unlink()
    (log_directory / CELL_FILE_NAME).unlink()
    victim = _segments(log_directory)[-1]
    whole = bytearray(victim.read_bytes())
    (at, _), *later = _frame_places(victim)[1:]
    assert any(header.synced_position > at for _, header in later)
    victim.write_bytes(whole[:at] + bytes(len(whole) - at))
    if damaged:
        whole[at + 100] ^= 1
    torn: list[int] = []

    class ReadInTwo(PosixFileSystem):
        def open(self, path: Path, mode: str) -> PosixFile:
            file = super().open(path, mode)
            read = file.pread

            def pread(size: int, position: int) -> bytes:
                if path.name != victim.name or position != at or size <= 64 or torn:
                    return read(size, position)
                torn.append(size)
                before = read(64, at)
                victim.write_bytes(whole)
                return before + read(size - 64, at + 64)

            file.pread = pread  # type: ignore[method-assign]
            return file

    report = verify_directory(log_directory, fs=ReadInTwo())
    assert torn
    found = [(problem.path, problem.position) for problem in report.problems]
    assert found == ([(str(victim), at)] if damaged else [])
    assert report.unfinished_bytes == 0


async def test_beside_a_live_writer(log_directory: Path) -> None:
    """Commits and rotation go on under it; there is never a problem."""
    reports: list[VerifyReport] = []
    stop = threading.Event()

    def verify_again_and_again() -> None:
        while not stop.is_set():
            reports.append(verify_directory(log_directory))

    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"first")
        async with asyncio.TaskGroup() as group:
            verifying = group.create_task(asyncio.to_thread(verify_again_and_again))
            while not verifying.done() and (len(reports) < 20 or reports[-1].segments < 3):
                await asyncio.gather(*(wal.append(bytes(700)) for _ in range(16)))
            stop.set()
    assert [problem for report in reports for problem in report.problems] == []
    assert reports[-1].segments > 2


async def test_a_transaction_may_take_the_name_of_the_empty_segment_that_the_checkpoint_describes(
    log_directory: Path,
) -> None:
    fs = FaultyFileSystem(UnsyncedFileSystem())
    settings = SMALL.replace(transaction_memory_bytes=4096)
    async with Wal.open(log_directory, settings=settings, fs=fs) as wal:
        await wal.append_many([b"first"], update={"r": "1"})
        await wal.rotate()
        fs.fail("open", errno.ENOSPC, name="CHECKPOINT*", times=None)
        for _ in range(2):
            async with wal.transaction() as transaction:
                for at in range(40):
                    await transaction.append(b"%d" % at * 200)
    report = await asyncio.to_thread(verify_directory, log_directory)
    assert report.problems == ()
    assert (report.limit, report.segments) == (82, 4)
