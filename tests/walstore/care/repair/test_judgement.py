"""Repair judges as opening does, and takes no plan that is not its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tests.local import UnsyncedFileSystem
from tests.walstore.care.repair.test_repairing import batch_at, flip
from walstore import CorruptionError, Wal
from walstore.care.repair.plan import RepairKind, decode_plan, encode_plan
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.core.format import checkpoint, segment

FS = UnsyncedFileSystem()


async def _make(path: Path) -> None:
    async with Wal.open(path) as wal:
        await wal.append(b"one")
        for number in range(3):
            async with wal.transaction(update={"owner": str(number)}):
                pass


async def _registers(path: Path) -> dict[str, str]:
    async with Wal.open(path) as wal:
        return dict(wal.registers)


def damaged_plan(path: Path) -> dict[str, Any]:
    """Return a plan as the map that is stored."""
    asyncio.run(_make(path))
    (file,) = path.glob("*.wal")
    flip(file, batch_at(file, 0) + 100)
    flip(file, batch_at(file, 0) + 105)
    body = encode_plan(plan_repair(path, keep="after", fs=FS)).partition(b"\n")[2]
    fields: dict[str, Any] = json.loads(body)
    return fields


def sealed(fields: object) -> bytes:
    body = json.dumps(fields).encode()
    return b"%08x\n%s\n" % (crc32c(body), body)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "a\0b"])
def test_a_plan_names_files_of_the_directory_only(name: str, log_directory: Path) -> None:
    fields = damaged_plan(log_directory)
    assert decode_plan(sealed(fields), "") is not None
    fields["actions"]["record_name"] = name
    assert decode_plan(sealed(fields), "") is None


@pytest.mark.parametrize("forged", [[], {}, 5, None, "x", {"version": 2}, {"version": "x"}])
def test_what_is_no_plan_counts_as_damaged(forged: object) -> None:
    assert decode_plan(sealed(forged), "") is None


def test_a_plan_with_one_thing_wrong_counts_as_damaged(log_directory: Path) -> None:
    fields = damaged_plan(log_directory)
    for name, value in fields.items():
        for wrong in (-1, [1], {"x": 1}, "x", 1.5):
            is_text = isinstance(wrong, str) and (value is None or isinstance(value, str))
            if not is_text:
                assert decode_plan(sealed({**fields, name: wrong}), "") is None, (name, wrong)
    deep = b'{"version":' + b"[" * 100_000
    assert decode_plan(b"%08x\n%s\n" % (crc32c(deep), deep), "") is None


def test_a_header_of_a_later_epoch_than_its_batches(log_directory: Path) -> None:
    asyncio.run(_make(log_directory))
    (path,) = log_directory.glob("*.wal")
    data = path.read_bytes()
    header = dataclasses.replace(segment.decode_header(data[:64], ""), epoch=9)
    path.write_bytes(segment.encode_header(header) + data[64:])
    plan = plan_repair(log_directory, fs=FS)
    assert RepairKind.REBUILD_HEADER in {step.kind for step in plan.steps}
    assert plan.lost == ()
    apply_repair(plan, fs=FS)
    assert asyncio.run(_registers(log_directory)) == {"owner": "2"}


def test_a_checkpoint_of_a_later_epoch_than_the_batch_behind_it(log_directory: Path) -> None:
    """Opening refuses the batch; repair writes the checkpoint again."""
    asyncio.run(_make(log_directory))
    file = log_directory / checkpoint.FILE_NAME
    before = file.read_bytes()

    async def append() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append(b"behind")

    asyncio.run(append())
    found = checkpoint.decode_checkpoint(before, "")
    file.write_bytes(
        checkpoint.encode_checkpoint(dataclasses.replace(found, epoch=found.epoch + 9))
    )
    with pytest.raises(CorruptionError, match="does not continue the log"):
        asyncio.run(append())
    plan = plan_repair(log_directory, fs=FS)
    assert RepairKind.REBUILD_CHECKPOINT in {step.kind for step in plan.steps}
    assert plan.lost == ()
    apply_repair(plan, fs=FS)
    asyncio.run(append())
    assert asyncio.run(_registers(log_directory)) == {"owner": "2"}


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_damaged_batch_without_records_at_the_end(
    has_checkpoint: bool, log_directory: Path
) -> None:
    """Opening refuses what had been synced; repair names it, cuts it off and says what that means."""
    asyncio.run(_make(log_directory))
    (path,) = log_directory.glob("*.wal")
    if not has_checkpoint:
        (log_directory / "CHECKPOINT").unlink()
    at = path.read_bytes().rindex(b"WBF1")
    flip(path, at + 100)
    flip(path, at + 101)
    plan = plan_repair(log_directory, fs=FS)
    assert any("a batch without records" in damage.message for damage in plan.damages)
    assert [step.kind for step in plan.steps] == [RepairKind.CUT_TAIL]
    assert any("older values" in note for note in plan.notes) != has_checkpoint
    apply_repair(plan, fs=FS)
    assert not plan_repair(log_directory, fs=FS).is_needed
    assert asyncio.run(_registers(log_directory)) == {"owner": "2" if has_checkpoint else "1"}
