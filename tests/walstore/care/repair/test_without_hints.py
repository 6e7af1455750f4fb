"""Repair without checkpoint, durable cell, or both: what is called good opens, the rest is healed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local import UnsyncedFileSystem, close_opened, open_blocking, read_opened
from tests.walstore.care.repair.test_repairing import FIRST, HINTS, SECOND, THIRD, cut, flip
from walstore import Wal
from walstore.care.repair.plan import RepairKind, RepairPlan
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.format import checkpoint
from walstore.errors import CorruptionError, LogNotFoundError

FS = UnsyncedFileSystem()
ALL = {offset: b"value %d " % offset * 3 for offset in range(1, 16)}
LOST = [HINTS[:1], HINTS[1:], HINTS]
CELL = checkpoint.CELL_FILE_NAME


async def _make(path: Path, trimmed: int) -> None:
    """Three segments of five records, a record a batch: [1, 6), [6, 11), [11, 16)."""
    async with Wal.open(path, fs=FS) as wal:
        for offset, value in ALL.items():
            await wal.append(value)
            if offset in (5, 10):
                await wal.rotate()
        before = {name: (path / name).read_bytes() for name in (FIRST, CELL)}
        if trimmed:
            await wal.trim(trimmed)
    (path.parent / "before").mkdir()
    for name, data in before.items():
        (path.parent / "before" / name).write_bytes(data)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Logs that were trimmed at some offset, or not at all; next to each a file of before that."""
    found = {}
    for trimmed in (0, 11, 13, 16):
        found[trimmed] = tmp_path_factory.mktemp(f"trimmed{trimmed}") / "log"
        asyncio.run(_make(found[trimmed], trimmed))
    return found


def copy_of(log: Path, to: Path, lost: tuple[str, ...] = ()) -> Path:
    shutil.copytree(log, to)
    for name in lost:
        (to / name).unlink()
    return to


def bring_back(log: Path, to: Path, name: str) -> None:
    shutil.copy(log.parent / "before" / name, to / name)


def check_opens(path: Path, head: int, limit: int) -> None:
    opened = open_blocking(path, fs=FS)
    try:
        assert (opened.tail.head, opened.tail.durable_limit) == (head, limit)
        found = {record.offset: record.value for record in read_opened(opened)}
    finally:
        close_opened(opened)
    assert found == {offset: ALL[offset] for offset in range(head, limit)}


def check_plan(path: Path, keep: str | None = None) -> RepairPlan:
    """Plan, and do what the plan says; then the log opens, or it does as it is."""
    plan = plan_repair(path, keep=keep, fs=FS)
    if plan.needs_choice:
        check_plan(copy_of(path, path.with_name("before"), ()), "before")
        return check_plan(path, "after")
    apply_repair(plan, fs=FS)
    assert not plan_repair(path, fs=FS).is_needed
    check_opens(path, plan.head, plan.limit)
    assert verify_directory(path, fs=FS).problems == ()
    assert not plan_repair(path, fs=FS).is_needed
    return plan


def ends_of(path: Path, name: str, size: int) -> None:
    """Cut bytes off the end of a file, not counting what is reserved."""
    cut(path / name, len((path / name).read_bytes().rstrip(b"\0")) - size)


def flip_two(path: Path, name: str, position: int) -> None:
    """Damage two bytes, so that no single bit explains it; counted from the end if negative."""
    at = position % len((path / name).read_bytes().rstrip(b"\0"))
    flip(path / name, at)
    flip(path / name, at + 1)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "a torn end": lambda log: ends_of(log, THIRD, 9),
    "the last batch": lambda log: flip_two(log, THIRD, -20),
    "a batch of the last segment": lambda log: flip_two(log, THIRD, -200),
    "the first batch of the last segment": lambda log: flip_two(log, THIRD, 100),
    "the last header": lambda log: flip_two(log, THIRD, 20),
    "the last segment is empty": lambda log: cut(log / THIRD, 0),
    "the last segment has a header only": lambda log: cut(log / THIRD, 64),
    "the last segment is gone": lambda log: (log / THIRD).unlink(),
}
"""What may happen to a log of which the last segment is left, whatever was trimmed."""
MORE: dict[str, Callable[[Path], object]] = {
    "the first segment is gone": lambda log: (log / FIRST).unlink(),
    "the second segment is gone": lambda log: (log / SECOND).unlink(),
    "two segments are gone": lambda log: [(log / name).unlink() for name in (SECOND, THIRD)],
    "the first header": lambda log: flip_two(log, FIRST, 20),
    "a footer": lambda log: ends_of(log, FIRST, 30),
    "a footer that is the last": lambda log: ((log / THIRD).unlink(), ends_of(log, SECOND, 30)),
    "a batch of a sealed segment": lambda log: flip_two(log, SECOND, 200),
}


def cases(logs: dict[int, Path]) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    for trimmed, log in logs.items():
        for name, damage in DAMAGES.items():
            if trimmed <= 10 or "gone" not in name:  # else nothing is left but the hints
                yield log, damage
    for damage in MORE.values():
        yield logs[0], damage


@pytest.mark.slow
@pytest.mark.parametrize("lost", LOST, ids=" ".join)
def test_what_is_called_good_opens_and_what_is_repaired_is_good(
    lost: tuple[str, ...], logs: dict[int, Path], tmp_path: Path
) -> None:
    for number, (log, damage) in enumerate(cases(logs)):
        path = tmp_path / str(number) / "log"
        copy_of(log, path, lost)
        damage(path)
        check_plan(path)


@pytest.mark.parametrize("lost", LOST, ids=" ".join)
@pytest.mark.parametrize("trimmed", [11, 13])
def test_a_hole_among_segments_that_were_to_be_removed(
    trimmed: int, lost: tuple[str, ...], logs: dict[int, Path], log_directory: Path
) -> None:
    """A power failure may keep one removal and lose the one before."""
    copy_of(logs[trimmed], log_directory, lost)
    bring_back(logs[trimmed], log_directory, FIRST)
    plan = check_plan(log_directory)
    assert (plan.head, plan.limit) == (trimmed, 16)
    if trimmed == 13 and len(lost) == 2:
        assert [step.kind for step in plan.steps] == [RepairKind.REBUILD_CHECKPOINT]
        assert FIRST in plan.damages[0].message
        assert not plan.is_lossy


def test_a_cell_of_before_a_trim(logs: dict[int, Path], log_directory: Path) -> None:
    """Versions that did not sync the cell before they removed segments may leave that behind."""
    copy_of(logs[11], log_directory, HINTS)
    bring_back(logs[11], log_directory, CELL)
    with pytest.raises(CorruptionError, match=r"older than their removal.*at offset 11 with"):
        open_blocking(log_directory, fs=FS)
    plan = check_plan(log_directory)
    assert (plan.head, plan.limit) == (11, 16)
    assert any("if [1, 11) had been trimmed" in note for note in plan.notes)


def test_all_segments_are_gone_and_only_the_cell_knows(
    logs: dict[int, Path], log_directory: Path
) -> None:
    log_directory.mkdir()
    shutil.copy(logs[0] / CELL, log_directory / CELL)
    with pytest.raises(CorruptionError, match="begins the log at offset 16"):
        open_blocking(log_directory, fs=FS)
    plan = check_plan(log_directory)
    assert (plan.head, plan.limit) == (16, 16)
    assert [str(one) for one in plan.lost] == ["[1, 16)"]
    assert any("identity is lost" in note for note in plan.notes)


def test_a_cell_that_knows_of_no_record_is_no_log(log_directory: Path) -> None:
    log_directory.mkdir()
    cell = checkpoint.DurableCell(1, 1, 1, 1, 64, 1, 7)
    (log_directory / CELL).write_bytes(checkpoint.encode_cell(cell))
    with pytest.raises(LogNotFoundError):
        plan_repair(log_directory, fs=FS)


def test_a_footer_is_not_called_wrong_for_a_damaged_batch_before(
    logs: dict[int, Path], log_directory: Path
) -> None:
    copy_of(logs[0], log_directory, HINTS)
    flip_two(log_directory, SECOND, 200)
    (damage,) = plan_repair(log_directory, fs=FS).damages
    assert damage.message == "the batch at offset 7 is damaged"


def test_damaged_batches_are_not_said_to_be_without_records(
    logs: dict[int, Path], log_directory: Path
) -> None:
    """The cell knows that there was a record."""
    copy_of(logs[0], log_directory, HINTS[:1])
    flip_two(log_directory, THIRD, -20)
    plan = plan_repair(log_directory, fs=FS)
    assert [str(one) for one in plan.lost] == ["[15, 16)"]
    assert [step.message for step in plan.steps if step.kind is RepairKind.CUT_TAIL] == [
        f"cut 136 bytes off {THIRD}, damaged batches"
    ]
