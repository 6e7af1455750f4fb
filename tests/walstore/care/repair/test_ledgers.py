"""Repair of what the log remembers: frames without records that are damaged or missing at its end."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from tests.local import UnsyncedFileSystem
from tests.walstore.care.repair.test_repairing import cut, flip
from walstore import Wal
from walstore.care.repair.plan import RepairPlan
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.format import checkpoint, segment
from walstore.errors import CorruptionError

FS = UnsyncedFileSystem()
HINTS = (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)
OLDER = "their older values"


async def _rotated(path: Path) -> None:
    """Three records, three registers, and a last segment that holds only the ledger."""
    async with Wal.open(path) as wal:
        for number in range(3):
            await wal.append(b"%d" % number)
            async with wal.transaction(update={f"r{number}": str(number)}):
                pass
        await wal.rotate()


async def _registers_only(path: Path) -> None:
    async with Wal.open(path) as wal:
        for number in range(8):
            async with wal.transaction(update={f"r{number % 3}": str(number)}):
                pass


async def _opened(path: Path) -> tuple[dict[str, str], int, int | None]:
    async with Wal.open(path) as wal:
        return dict(wal.registers), wal.durable_limit, wal.recovery.missing_from


def opened(path: Path) -> tuple[dict[str, str], int, int | None]:
    return asyncio.run(_opened(path))


def last_segment(path: Path) -> Path:
    return max(path.glob("*.wal"))


def remove(path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (path / name).unlink()


def used_bytes(file: Path) -> int:
    return len(file.read_bytes().rstrip(b"\0"))


def zero_end(file: Path, position: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:position] + bytes(len(data) - position))


def older_checkpoint(path: Path) -> None:
    """Make the checkpoint forget the registers; it was written before they changed."""
    file = path / checkpoint.FILE_NAME
    found = checkpoint.decode_checkpoint(file.read_bytes(), "")
    assert found is not None
    found = dataclasses.replace(
        found, ledger=b"", tail_position=segment.HEADER_BYTES, is_closed=False
    )
    file.write_bytes(checkpoint.encode_checkpoint(found))


def repaired(path: Path) -> RepairPlan:
    """Repair, and return the plan; the log is good afterwards."""
    plan = plan_repair(path, fs=FS)
    assert plan.is_needed
    assert plan.steps
    apply_repair(plan, fs=FS)
    assert not plan_repair(path, fs=FS).is_needed
    assert verify_directory(path, fs=FS).problems == ()
    return plan


@pytest.mark.parametrize("lost", [(), HINTS[:1], HINTS[1:]])
@pytest.mark.parametrize("damaging", ["byte", "magic"])
def test_the_ledger_at_the_beginning_of_the_last_segment(
    damaging: str, lost: tuple[str, ...], log_directory: Path
) -> None:
    asyncio.run(_rotated(log_directory))
    remove(log_directory, lost)
    file = last_segment(log_directory)
    at = segment.HEADER_BYTES if damaging == "magic" else 100
    flip(file, at)
    flip(file, at + 1)
    with pytest.raises(CorruptionError):
        opened(log_directory)
    plan = repaired(log_directory)
    assert [damage.path for damage in plan.damages] == [str(file)]
    assert plan.lost == ()
    assert (plan.head, plan.limit) == (1, 4)
    is_known = checkpoint.FILE_NAME not in lost
    assert any(OLDER in note for note in plan.notes) != is_known
    assert opened(log_directory) == ({"r0": "0", "r1": "1", "r2": "2"}, 4, None)


def test_the_ledger_that_the_segment_itself_holds_survives_losing_the_hints(
    log_directory: Path,
) -> None:
    asyncio.run(_rotated(log_directory))
    flip(last_segment(log_directory), 100)
    flip(last_segment(log_directory), 101)
    repaired(log_directory)
    remove(log_directory, HINTS)
    assert opened(log_directory) == ({"r0": "0", "r1": "1", "r2": "2"}, 4, None)


def test_all_segments_are_gone_and_held_no_records(log_directory: Path) -> None:
    asyncio.run(_registers_only(log_directory))
    last_segment(log_directory).unlink()
    plan = repaired(log_directory)
    (damage,) = plan.damages
    assert "segment" in damage.message
    assert plan.lost == ()
    assert not any(OLDER in note for note in plan.notes)
    assert opened(log_directory) == ({"r0": "6", "r1": "7", "r2": "5"}, 1, None)


def test_all_segments_are_gone_and_the_checkpoint_is_older(log_directory: Path) -> None:
    asyncio.run(_registers_only(log_directory))
    older_checkpoint(log_directory)
    last_segment(log_directory).unlink()
    assert any(OLDER in note for note in repaired(log_directory).notes)
    assert opened(log_directory) == ({}, 1, None)


@pytest.mark.parametrize("damaging", ["cut", "zeroed", "cut at a frame"])
@pytest.mark.parametrize("knows", ["checkpoint", "cell"])
def test_synced_changes_are_missing_from_the_end(
    damaging: str, knows: str, log_directory: Path
) -> None:
    asyncio.run(_registers_only(log_directory))
    if knows == "cell":
        older_checkpoint(log_directory)
    file = last_segment(log_directory)
    used = used_bytes(file)
    at_frame = file.read_bytes().rindex(b"WBF1")
    if damaging == "cut":
        cut(file, used - 20)
    elif damaging == "zeroed":
        zero_end(file, at_frame)
    else:
        cut(file, at_frame)
    plan = plan_repair(log_directory, fs=FS)
    (damage,) = [one for one in plan.damages if one.path == str(file)]
    assert "synced" in damage.message
    assert damage.position is not None
    plan = repaired(log_directory)
    assert plan.lost == ()
    assert any(OLDER in note for note in plan.notes) == (knows == "cell")
    newest = "7" if knows == "checkpoint" else "4"
    assert opened(log_directory) == ({"r0": "6", "r1": newest, "r2": "5"}, 1, None)


def test_a_fresh_last_segment_lost_its_ledger(log_directory: Path) -> None:
    asyncio.run(_rotated(log_directory))
    zero_end(last_segment(log_directory), segment.HEADER_BYTES)
    plan = repaired(log_directory)
    assert not any(OLDER in note for note in plan.notes)
    assert opened(log_directory) == ({"r0": "0", "r1": "1", "r2": "2"}, 4, None)


def test_all_of_the_only_segment_was_cut_but_its_header(log_directory: Path) -> None:
    asyncio.run(_registers_only(log_directory))
    (log_directory / checkpoint.FILE_NAME).unlink()
    cut(last_segment(log_directory), segment.HEADER_BYTES + 40)
    plan = repaired(log_directory)
    assert any("had been synced" in damage.message for damage in plan.damages)
    assert any(OLDER in note for note in plan.notes)
    assert opened(log_directory) == ({}, 1, None)
