"""A segment that was given up lends its file to the next one; nobody takes its old bytes for records."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.effort import first_seed
from tests.local import (
    SMALL,
    PowerCut,
    UnsyncedFileSystem,
    close_opened,
    crashes,
    draft_of,
    open_blocking,
    read_opened,
    segments,
    stored_batches,
)
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.append.log_state import TailError
from walstore.core.files import unlinked_file
from walstore.core.files.frame_walk import find_salt
from walstore.core.files.log_bounds import LedgerView, find_missing
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_header
from walstore.core.files.spare_segment import NAME
from walstore.core.format import frame, segment
from walstore.core.format.ledger import Marks
from walstore.core.settings import KIB, MIB
from walstore.errors import CorruptionError, WalError
from walstore.log.opening import Opened
from walstore.testing import FaultyFileSystem, ManualClock, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

FS = PosixFileSystem()
ROOMY = dataclasses.replace(SMALL, min_free_bytes=0)


def fill(opened: Opened, *, size: int = 10 * KIB) -> None:
    """Append until the active segment is full, and begin the next one."""
    for _ in range(5):
        limit = opened.tail.durable_limit
        opened.tail.commit([draft_of(limit, b"%06d" % limit * (size // 6))])
    opened.tail.rotate()


def give_up(opened: Opened, *, keep: int = 1) -> None:
    """Move the head so that of the sealed segments only so many are left."""
    remove(opened, opened.tail.advance_head(opened.tail.summaries()[-1 - keep].start))


def remove(opened: Opened, starts: list[int]) -> None:
    """Delete segments, in parts as a log does it."""
    for file in opened.tail.remove(starts):
        while not file.is_freed:
            file.free_parts()


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlinked_file, "PART_BYTES", 16 * KIB)


def is_recycled(path: Path) -> bool:
    file = FS.open(path, "r")
    try:
        return read_header(file, path).reuses_blocks
    finally:
        file.close()


def values_in(directory: Path) -> list[bytes]:
    """Return how the values of a log begin, as another process reads them."""
    batches = stored_batches(LogSnapshot.open(directory))
    return [record.value[:6] for batch in batches for record in batch]


@pytest.fixture
def opened(log_directory: Path, clock: ManualClock) -> Iterator[Opened]:
    """A log of three segments whose first one was given up."""
    found = open_blocking(log_directory, clock=clock, settings=ROOMY)
    for _ in range(3):
        fill(found)
    yield found
    close_opened(found, clean=False)


# -- when it is used again -----------------------------------------------------------------------


def test_the_next_segment_gets_the_file(opened: Opened, log_directory: Path) -> None:
    first = segments(log_directory)[0].stat().st_ino
    give_up(opened)
    assert (log_directory / NAME).stat().st_ino == first
    fill(opened)
    newest = segments(log_directory)[-1]
    assert newest.stat().st_ino == first
    assert is_recycled(newest)
    assert not (log_directory / NAME).exists()
    fill(opened)
    assert [is_recycled(path) for path in segments(log_directory)][-2:] == [True, False]
    assert values_in(log_directory) == [b"%06d" % offset for offset in range(11, 26)]


def test_it_is_reserved_already(opened: Opened, log_directory: Path) -> None:
    give_up(opened)
    fill(opened)
    newest = segments(log_directory)[-1]
    assert newest.stat().st_size > 50 * KIB
    assert segment.parse_seal(newest.read_bytes()[-segment.SEAL.size :]) is None
    opened.tail.commit([draft_of(opened.tail.durable_limit, b"x")])
    assert newest.stat().st_size < 64 * KIB
    fill(opened)
    sealed = segments(log_directory)[-2]
    assert sealed == newest
    assert verify_directory(log_directory).problems == ()


def test_a_closed_or_parked_log_keeps_no_spare(opened: Opened, log_directory: Path) -> None:
    give_up(opened)
    opened.tail.park()
    assert not (log_directory / NAME).exists()
    fill(opened)
    give_up(opened)
    assert (log_directory / NAME).exists()
    close_opened(opened)
    assert not (log_directory / NAME).exists()


def test_nor_does_one_that_was_killed_once_it_is_opened_again(
    opened: Opened, log_directory: Path
) -> None:
    give_up(opened)
    close_opened(opened, clean=False)
    assert (log_directory / NAME).exists()
    close_opened(open_blocking(log_directory, settings=ROOMY))
    assert not (log_directory / NAME).exists()


def test_a_log_that_fills_slowly_gives_its_files_back(
    opened: Opened, log_directory: Path, clock: ManualClock
) -> None:
    clock.advance(601)
    fill(opened)
    give_up(opened)
    assert not (log_directory / NAME).exists()
    fill(opened)
    give_up(opened)
    assert (log_directory / NAME).exists()


def test_a_disk_that_is_rather_full_gets_the_space_back(log_directory: Path) -> None:
    faulty = FaultyFileSystem()
    opened = open_blocking(log_directory, fs=faulty, settings=ROOMY)
    for _ in range(3):
        fill(opened)
    give_up(opened, keep=2)
    assert (log_directory / NAME).exists()
    faulty.limit_space(sum(path.stat().st_size for path in log_directory.rglob("*")) + 200 * KIB)
    give_up(opened)
    assert not (log_directory / NAME).exists()
    faulty.heal()
    close_opened(opened)


def test_a_write_that_fails_gives_it_back(log_directory: Path) -> None:
    faulty = FaultyFileSystem()
    opened = open_blocking(log_directory, fs=faulty, settings=ROOMY)
    for _ in range(3):
        fill(opened)
    give_up(opened)
    faulty.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(TailError):
        opened.tail.commit([draft_of(opened.tail.durable_limit, b"x")])
    assert not (log_directory / NAME).exists()
    faulty.heal()
    close_opened(opened, clean=False)


# -- others have it ------------------------------------------------------------------------------

HOLD = "import sys; file = open(sys.argv[1], 'rb'); print(flush=True); input(); print(len(file.read()))"


def test_another_process_that_reads_it_reads_it_to_its_end(
    opened: Opened, log_directory: Path
) -> None:
    first = segments(log_directory)[0]
    before = first.stat().st_size
    reading = subprocess.Popen(
        [sys.executable, "-c", HOLD, first],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reading.stdout is not None
    reading.stdout.readline()
    give_up(opened)
    fill(opened)
    assert not is_recycled(segments(log_directory)[-1])
    assert reading.communicate("\n")[0].strip() == str(before)


def test_a_reader_of_this_process_too(opened: Opened, log_directory: Path) -> None:
    first = segments(log_directory)[0]
    whole = first.read_bytes()
    with first.open("rb") as file:
        give_up(opened)
        fill(opened)
        assert not is_recycled(segments(log_directory)[-1])
        assert file.read() == whole
    give_up(opened)
    fill(opened)
    assert is_recycled(segments(log_directory)[-1])


def test_a_hard_link_keeps_its_content(opened: Opened, log_directory: Path, tmp_path: Path) -> None:
    """Backups are made by links."""
    first, backup = segments(log_directory)[0], tmp_path / "backup.wal"
    whole = first.read_bytes()
    os.link(first, backup)
    give_up(opened)
    fill(opened)
    fill(opened)
    assert backup.read_bytes() == whole


def test_who_opens_it_in_that_moment_waits_and_nobody_is_killed(tmp_path: Path) -> None:
    """The usual signal of a lease that is broken would end the process."""
    assert signal.getsignal(signal.SIGURG) in (signal.SIG_DFL, signal.SIG_IGN)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    opening = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nprint(flush=True)\nwhile not sys.stdin.closed: open(sys.argv[1]).close()",
            path,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert opening.stdout is not None
    opening.stdout.readline()
    try:
        file = FS.open(path, "r+")
        found = {file.is_alone() for _ in range(20_000)}
        file.close()
    finally:
        opening.kill()
        opening.communicate()
    assert found == {True, False}


def test_a_file_system_without_leases_only_costs_the_saving(
    opened: Opened, log_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walstore.core.files.posix.PosixFile.is_alone", lambda _, names=1: False)
    give_up(opened)
    fill(opened)
    fill(opened)
    assert not any(is_recycled(path) for path in segments(log_directory))
    assert not (log_directory / NAME).exists()


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["replace", "free_bytes", "open", "is_alone", "size", "truncate"])
def test_a_call_that_fails_fails_nothing(log_directory: Path, kind: str) -> None:
    faulty = FaultyFileSystem()
    opened = open_blocking(log_directory, fs=faulty, settings=ROOMY)
    for _ in range(3):
        fill(opened)
    # The first cut of a file of that name is the one of the segment that is sealed.
    faulty.fail(kind, name="log" if kind == "free_bytes" else NAME, nth=1 + (kind == "truncate"))
    give_up(opened)
    fill(opened)
    assert values_in(log_directory) == [b"%06d" % offset for offset in range(11, 21)]
    faulty.heal()
    close_opened(opened)
    assert verify_directory(log_directory).problems == ()


def test_T8_its_old_name_is_gone_durably_before_it_is_written_to(log_directory: Path) -> None:
    """A directory that cannot be synced may bring the old name back, which must have the old content."""
    faulty = FaultyFileSystem()
    opened = open_blocking(log_directory, fs=faulty, settings=ROOMY)
    for _ in range(3):
        fill(opened)
    starts = opened.tail.advance_head(opened.tail.summaries()[-2].start)
    faulty.fail("sync_directory", error=errno.EIO)
    opened.tail.remove(starts)
    assert not (log_directory / NAME).exists()
    faulty.heal()
    fill(opened)
    assert not is_recycled(segments(log_directory)[-1])
    close_opened(opened)


def test_something_else_of_that_name_does_not_keep_segments(
    opened: Opened, log_directory: Path
) -> None:
    (log_directory / NAME).mkdir()
    give_up(opened)
    assert len(segments(log_directory)) == 2
    (log_directory / NAME).rmdir()
    fill(opened)


def test_a_directory_of_that_name_is_refused_found_and_set_aside(log_directory: Path) -> None:
    """Else the log opens, and fails when the segment is full."""
    close_opened(open_blocking(log_directory, settings=ROOMY))
    (log_directory / NAME / "of somebody").mkdir(parents=True)
    with pytest.raises(CorruptionError, match="a directory is named like the next segment"):
        open_blocking(log_directory, settings=ROOMY)
    (problem,) = verify_directory(log_directory).problems
    assert "a directory is named like" in problem.message
    plan = plan_repair(log_directory)
    assert [(step.kind, step.path) for step in plan.steps] == [
        ("set-aside", str(log_directory / NAME))
    ]
    apply_repair(plan)
    opened = open_blocking(log_directory, settings=ROOMY)
    fill(opened)
    close_opened(opened)
    assert verify_directory(log_directory).problems == ()


# -- what the old bytes look like ----------------------------------------------------------------


def crashed_copy(directory: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("LOCK"))
    return copy


@pytest.mark.parametrize("hints", ["hints", "no hints"])
@pytest.mark.parametrize("batches", [0, 1, 3])
def test_batches_of_one_size_begin_where_old_ones_began(
    opened: Opened, log_directory: Path, tmp_path: Path, batches: int, hints: str
) -> None:
    """So whole old batches, with headers and trailers, are right behind the end."""
    give_up(opened)
    fill(opened)
    for _ in range(batches):
        limit = opened.tail.durable_limit
        opened.tail.commit([draft_of(limit, b"%06d" % limit * (10 * KIB // 6))])
    assert is_recycled(segments(log_directory)[-1])
    limit = opened.tail.durable_limit
    copy = crashed_copy(log_directory, tmp_path)
    if hints == "no hints":
        for name in ("CHECKPOINT", "DURABLE"):
            (copy / name).unlink()
    verified = verify_directory(copy)
    assert (verified.problems, verified.unfinished_bytes) == ((), 0)
    assert plan_repair(copy).steps == ()
    assert find_missing(FS, copy) is None
    again = open_blocking(copy, settings=ROOMY)
    assert again.tail.durable_limit == limit
    assert again.recovery.broken_copy is None
    assert again.recovery.missing_from is None
    assert values_in(copy)[-1:] == [b"%06d" % (limit - 1)]
    again.tail.commit([draft_of(limit, b"after")])
    close_opened(again)


def lookalikes(start: int) -> bytes:
    """Return a value of nested frames that claim to be of offset ``start``; each would have to be hashed."""
    count = 4000
    data = bytearray(count * (frame.HEADER_BYTES + frame.TRAILER.size))
    for at in range(count):
        low, end = frame.HEADER_BYTES * at, len(data) - frame.TRAILER.size * at
        fields = (end - low, 0, start, 1, 1, frame.FRAME_VERSION, 0, 1, 1, 1, start, 0, 0, 0, 1)
        frame.HEADER.pack_into(data, low, frame.FRAME_MAGIC, 0, *fields)
        frame.TRAILER.pack_into(data, end - frame.TRAILER.size, end - low, frame.TRAILER_MAGIC)
    return bytes(data)


@pytest.mark.parametrize("start", [1, 1_000_000])
def test_an_old_value_that_looks_like_batches_does_not_keep_the_log_from_opening(
    log_directory: Path, tmp_path: Path, start: int
) -> None:
    """It may say that it is of any offset; then what the durable cell says decides."""
    large = ROOMY.replace(segment_bytes=MIB, checkpoint_bytes=MIB)
    opened = open_blocking(log_directory, settings=large)
    value = b"x" * (-frame._VALUE_AT % frame.ALIGNMENT) + lookalikes(start)
    for _ in range(3):
        for part in (value[:8] * 10_000, value, value):
            opened.tail.commit([draft_of(opened.tail.durable_limit, part)])
        opened.tail.rotate()
    give_up(opened)
    opened.tail.rotate()
    opened.tail.commit([draft_of(opened.tail.durable_limit, b"x")])
    assert is_recycled(segments(log_directory)[-1])
    copy = crashed_copy(log_directory, tmp_path)
    limit = opened.tail.durable_limit
    close_opened(opened, clean=False)
    again = open_blocking(copy, settings=large)
    assert again.tail.durable_limit == limit
    close_opened(again)
    assert verify_directory(copy).problems == ()


def test_what_was_lost_by_the_disk_is_told_and_not_found_in_old_bytes(
    opened: Opened, log_directory: Path, tmp_path: Path
) -> None:
    """The durable cell says that a batch is there, and its place has a whole batch: an old one."""
    give_up(opened)
    fill(opened)
    path = segments(log_directory)[-1]
    before = path.read_bytes()
    limit = opened.tail.durable_limit
    opened.tail.commit([draft_of(limit, b"%06d" % limit * (10 * KIB // 6))])
    copy = crashed_copy(log_directory, tmp_path)
    (copy / path.name).write_bytes(before)
    again = open_blocking(copy, settings=ROOMY)
    assert again.recovery.missing_from == limit
    close_opened(again)


def test_a_flipped_bit_in_a_synced_batch_is_told(
    opened: Opened, log_directory: Path, tmp_path: Path
) -> None:
    """Also if its offset looks like one of an earlier segment then."""
    give_up(opened)
    fill(opened)
    opened.tail.commit([draft_of(opened.tail.durable_limit, b"first")])
    path, at = segments(log_directory)[-1], opened.tail.written_position
    opened.tail.commit([draft_of(opened.tail.durable_limit, b"last")])
    copy = crashed_copy(log_directory, tmp_path)
    whole = path.read_bytes()
    for bit in range(8 * frame.HEADER_BYTES):
        data = bytearray(whole)
        data[at + bit // 8] ^= 1 << bit % 8
        (copy / path.name).write_bytes(data)
        with pytest.raises(CorruptionError, match="nothing was changed"):
            open_blocking(copy, settings=ROOMY)


def test_a_torn_batch_is_kept_without_the_old_bytes_behind_it(
    opened: Opened, log_directory: Path, tmp_path: Path
) -> None:
    give_up(opened)
    fill(opened)
    path, at = segments(log_directory)[-1], opened.tail.written_position
    opened.tail.commit([draft_of(opened.tail.durable_limit, b"y" * 3000)], sync=False)
    copy = crashed_copy(log_directory, tmp_path)
    data = bytearray(path.read_bytes())
    data[at + 1000 : at + 1100] = bytes(100)
    (copy / path.name).write_bytes(data)
    again = open_blocking(copy, settings=ROOMY)
    assert 3000 < again.recovery.truncated_bytes < 3300
    close_opened(again)


def test_an_old_value_is_no_end_of_a_footer(log_directory: Path) -> None:
    """A file longer than a segment is cut within a value, which may hold anything."""
    opened = open_blocking(log_directory, settings=ROOMY)
    seals = segment.SEAL.pack(100, segment.SEAL_MAGIC) * 6000
    for shift in range(16):
        opened.tail.commit([draft_of(opened.tail.durable_limit, b"w" * shift + seals)])
        opened.tail.rotate()
        give_up(opened, keep=0)
        data = segments(log_directory)[-1].read_bytes()
        assert segment.parse_seal(data[-segment.SEAL.size :]) is None
    close_opened(opened)


def test_a_lost_header_is_not_mended_by_old_batches(
    opened: Opened, log_directory: Path, tmp_path: Path
) -> None:
    give_up(opened)
    fill(opened)
    path = segments(log_directory)[-1]
    start = opened.tail.active.start
    file = FS.open(path, "r")
    try:
        assert find_salt(file, file.size(), start) is None
        assert find_salt(file, file.size(), 0) is not None
    finally:
        file.close()


def test_old_bytes_do_not_make_other_processes_look_further(
    opened: Opened, log_directory: Path
) -> None:
    give_up(opened)
    fill(opened)
    faulty = FaultyFileSystem()
    view = LedgerView(faulty, log_directory)
    for size in (10, 10_000, 700):
        limit = opened.tail.durable_limit
        draft = draft_of(limit, b"x" * size)
        draft.marks = Marks(registers={"size": str(size)})
        opened.tail.commit([draft])
        assert view.look().registers == {"size": str(size)}
    assert is_recycled(segments(log_directory)[-1])
    assert faulty.count("list") == 0


# -- the power fails -----------------------------------------------------------------------------


class Life:
    """Batches of one size and of any size, rotations, removals and openings, until the power fails."""

    def __init__(self, directory: Path, seed: int, nth: int) -> None:
        directory.mkdir()
        self.power = PowerLossFileSystem(directory, UnsyncedFileSystem())
        self.fs = FaultyFileSystem(self.power)
        self.cut = PowerCut(self.fs, self.power, nth)
        self.directory = directory
        self.chance = random.Random(seed)
        self.sizes = (8 * KIB,) if seed % 2 else (10, 700, 8 * KIB, 30 * KIB)
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: dict[int, bytes] = {}
        self.head = 1
        self.recycled = 0

    def run(self) -> None:
        try:
            for _ in range(2):
                opened = open_blocking(self.directory, fs=self.fs, settings=ROOMY)
                try:
                    self._fill(opened)
                finally:
                    close_opened(opened, clean=self.chance.random() < 0.5)
        except (OSError, TailError, WalError):
            assert self.cut.was_cut

    def _fill(self, opened: Opened) -> None:
        for _ in range(40):
            limit = opened.tail.written_limit
            value = b"%06d" % limit * (self.chance.choice(self.sizes) // 6 + 1)
            self.attempted[limit] = value
            opened.tail.commit([draft_of(limit, value)], sync=self.chance.random() < 0.7)
            if opened.tail.durable_limit > limit:
                self.acknowledged |= self.attempted
            sealed = opened.tail.summaries()[:-1]
            if len(sealed) > 1:
                self.head = sealed[-1].start
                remove(opened, opened.tail.advance_head(self.head))
            header = opened.tail.active.header
            self.recycled += header is not None and header.reuses_blocks

    def check(self, directory: Path) -> None:
        if not segments(directory):
            assert not self.acknowledged
            return
        assert verify_directory(directory).problems == ()
        opened = open_blocking(directory, fs=UnsyncedFileSystem(), settings=ROOMY)
        found = {record.offset: record.value for record in read_opened(opened)}
        first = opened.tail.head
        assert first <= self.head
        assert opened.recovery.missing_from is None
        for offset, value in self.acknowledged.items():
            assert offset < first or found[offset] == value
        for offset, value in found.items():
            assert self.attempted[offset] == value
        limit = opened.tail.durable_limit
        opened.tail.commit([draft_of(limit, b"after")])
        close_opened(opened)
        assert verify_directory(directory).problems == ()


def explore(tmp_path: Path, seed: int, moments: range) -> int:
    recycled = 0
    first = first_seed("spare segments")
    for moment in moments:
        below = tmp_path / f"{moment}"
        below.mkdir()
        life = Life(below / "life", first + seed, moment)
        life.run()
        for crashed in crashes(life.power, (LOSE_ALL, KEEP_ALL, first + moment % 7), below):
            life.check(crashed)
        recycled += life.recycled
        shutil.rmtree(below)
        if not life.cut.was_cut:
            break
    return recycled


@pytest.mark.parametrize("seed", [1, 2])
def test_the_power_fails_now_and_then(tmp_path: Path, seed: int) -> None:
    assert explore(tmp_path, seed, range(20 + seed, 400, 37))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_power_fails_at_any_moment(tmp_path: Path, seed: int, part: int) -> None:
    assert explore(tmp_path, seed, range(1 + part, 1000, 4))
