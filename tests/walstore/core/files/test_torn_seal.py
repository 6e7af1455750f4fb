"""A power failure within the sealing of a segment: any sectors of the footer may be kept.

The frames before the footer were synced, so nothing is lost, and whoever looks at the log sees that.
"""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest

from tests.cases import case
from tests.effort import first_seed
from tests.local import close_opened, draft_of, open_blocking, read_opened, segments
from walstore.care.repair.repairing import plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.append.log_state import TailError
from walstore.core.files.log_bounds import find_missing, read_bounds
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import Segment
from walstore.core.format import checkpoint
from walstore.log.opening import Opened
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import SECTOR_BYTES

HINTS = (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)
FS = PosixFileSystem()


def sealed_in_place(directory: Path, value: bytes) -> Segment:
    """Make a log of one record whose only segment is sealed, as a crash before the next one leaves it."""
    opened = open_blocking(directory)
    opened.tail.commit([draft_of(1, value)])
    sealed = opened.tail.rotate()
    close_opened(opened, clean=False)
    segments(directory)[-1].unlink()
    for name in HINTS:  # both already speak of the next segment
        (directory / name).unlink()
    return sealed


def torn(whole: bytes, at: int) -> list[bytes]:
    """Return what may be left of a file whose bytes from ``at`` on were not synced."""
    cuts = [at, *range(at - at % SECTOR_BYTES + SECTOR_BYTES, len(whole), SECTOR_BYTES), len(whole)]
    sectors = list(pairwise(cuts))
    found = []
    for kept in product((True, False), repeat=len(sectors)):
        data = bytearray(whole)
        for (low, high), is_kept in zip(sectors, kept, strict=True):
            if not is_kept:
                data[low:high] = bytes(high - low)
        found.append(bytes(data))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(300, 340, 8))
def test_any_sector_of_the_footer_may_be_lost(first: int, tmp_path: Path) -> None:
    for size in range(first, 820, 40):
        with case(size):
            check_every_loss_of_sectors(size, tmp_path / f"{size}")


def check_every_loss_of_sectors(size: int, log_directory: Path) -> None:
    value = bytes([7]) * size
    sealed = sealed_in_place(log_directory, value)
    assert sealed.summary is not None
    whole = sealed.path.read_bytes()
    assert segments(log_directory) == [sealed.path]
    for data in torn(whole, sealed.summary.data_bytes):
        sealed.path.write_bytes(data)
        for name in HINTS:
            (log_directory / name).unlink(missing_ok=True)

        assert read_bounds(FS, log_directory).limit == 2
        assert LogSnapshot.open(log_directory).durable_limit == 2
        assert find_missing(FS, log_directory) is None
        report = verify_directory(log_directory)
        assert (report.problems, report.limit) == ((), 2)
        plan = plan_repair(log_directory, fs=FS)
        assert plan.unreadable == plan.lost == ()

        opened = open_blocking(log_directory)
        assert [record.value for record in read_opened(opened)] == [value]
        assert opened.recovery.missing_from is None
        if data != whole:
            assert opened.tail.active.path == sealed.path
        opened.tail.commit([draft_of(2, b"next")])
        close_opened(opened)
        for path in segments(log_directory):
            if path != sealed.path:
                path.unlink()


@pytest.mark.slow
def test_the_power_fails_at_any_call_of_a_rotation(tmp_path: Path) -> None:
    """The log is opened again with and without what helps recovery."""
    calls = 0
    while rotated_until(tmp_path / f"cut {calls}", calls):
        calls += 1
    assert calls > 8


def rotated_until(root: Path, calls: int) -> bool:
    """Cut the power at a call of a rotation, and look at what the disk may hold then; False if the
    rotation needs fewer calls."""
    (root / "live").mkdir(parents=True)
    power = PowerLossFileSystem(root / "live", FS)
    fs = FaultyFileSystem(power)
    opened = open_blocking(root / "live" / "log", fs=fs)
    values = [b"x" * 780]  # so that the footer begins in one sector and ends in the next
    for offset, value in enumerate(values, 1):
        opened.tail.commit([draft_of(offset, value)])
    last = len(fs.calls) + calls
    fs.before_each(lambda _: len(fs.calls) > last and power.cut())
    is_over = not _is_cut(opened)
    close_opened(opened, clean=False)
    first = first_seed("torn seals")
    for seed in range(first, first + 40):
        power.crash(seed, root / str(seed))
        log = root / str(seed) / "log"
        if seed % 2:
            for name in HINTS:
                (log / name).unlink(missing_ok=True)
        assert verify_directory(log).problems == ()
        again = open_blocking(log)
        assert [record.value for record in read_opened(again)] == values
        close_opened(again)
    return not is_over


def _is_cut(opened: Opened) -> bool:
    try:
        opened.tail.rotate()
    except TailError:
        return True
    return False
