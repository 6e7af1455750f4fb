"""LedgerView: registers and streams seen from outside, as of what is durable."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.local import SMALL, UnsyncedFileSystem, copy_log
from walstore import LogNotFoundError, StorageUnavailableError, Wal
from walstore.core.files.log_bounds import LedgerView
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import CELL_FILE_NAME, FILE_NAME
from walstore.log.readonly import ReadonlyWal
from walstore.testing import FaultyFileSystem


async def test_registers_and_streams_are_seen_as_they_change(log_directory: Path) -> None:
    """Through commits, rotations, segments of marks alone, large transactions and restarts."""
    async with Wal.open(log_directory, settings=SMALL):
        pass
    settings = SMALL.replace(transaction_memory_bytes=4096)
    async with ReadonlyWal.open(log_directory) as log:
        assert await log.registers() == {}
        for life in range(3):
            async with Wal.open(log_directory, settings=settings) as wal:
                for step in range(40):
                    update = {f"name {step % 5}": f"{life} {step}", f"gone {step - 1}": None}
                    update[f"gone {step}"] = "x" * 1500
                    async with wal.transaction(update=update) as transaction:
                        if step % 3 == 0:
                            for _ in range(10 if step % 2 else 1):
                                await transaction.append(bytes(900))
                    if step % 7 == 0:
                        await wal.rotate()
                    if step % 9 == 0:
                        await wal.open_stream(f"stream {life} {step}", metadata={"k": "v"})
                        assert await log.streams() == wal.streams()
                    assert await log.registers() == dict(wal.registers)
            assert await log.registers() == dict(wal.registers)
    async with ReadonlyWal.open(log_directory) as log:
        assert await log.registers() == dict(wal.registers)
        assert await log.streams() == wal.streams()


async def test_a_change_is_seen_once_it_is_durable(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    async with Wal.open(log_directory, fs=faulty) as wal, ReadonlyWal.open(log_directory) as log:
        with faulty.hold("datasync") as hold:
            changing = asyncio.create_task(_update(wal, {"a": "1"}))
            await hold.wait_entered()
            assert await log.registers() == {}
        await changing
        assert await log.registers() == {"a": "1"}


async def _update(wal: Wal, update: dict[str, str | None]) -> None:
    async with wal.transaction(update=update):
        pass


async def test_a_second_look_reads_only_what_is_new(log_directory: Path, faulty) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append_many([bytes(1000)] * 500)
        view = LedgerView(faulty, log_directory)
        for number in range(3):
            await _update(wal, {"a": str(number)})
            calls = len(faulty.calls)
            assert (await asyncio.to_thread(view.look)).registers == {"a": str(number)}
            positions = [call.position for call in faulty.calls[calls:] if call.kind == "pread"]
            assert (min(positions) == 0) == (number == 0)


async def test_without_a_cell_all_that_is_whole_counts(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await _update(wal, {"a": "1"})
        await wal.append(b"")
        await _update(wal, {"b": "2"})
    (log_directory / CELL_FILE_NAME).unlink()
    async with ReadonlyWal.open(log_directory) as log:
        for _ in range(2):
            assert await log.registers() == {"a": "1", "b": "2"}


async def test_a_log_that_is_gone_or_out_of_reach(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"")
    async with ReadonlyWal.open(log_directory, fs=faulty) as log:
        faulty.fail("pread")
        with pytest.raises(StorageUnavailableError):
            await log.registers()
        assert await log.registers() == {}
        faulty.fail("open", 2, name="*.wal", times=None)
        with pytest.raises(StorageUnavailableError, match="changes too fast"):
            await log.registers()
        faulty.heal()
        await asyncio.to_thread(shutil.rmtree, log_directory)
        with pytest.raises(LogNotFoundError):
            await log.registers()
        with pytest.raises(LogNotFoundError):
            await asyncio.to_thread(LedgerView(PosixFileSystem(), log_directory).look)


def registers_of(directory: Path) -> dict[str, str]:
    return dict(LedgerView(PosixFileSystem(), directory).look().registers)


def crash_with(cell: bytes, source: Path, target: Path, *, hint: bytes | None = None) -> Path:
    """Copy a log as a power loss may leave it: with any of its last cells."""
    copy_log(source, target)
    (target / CELL_FILE_NAME).write_bytes(cell)
    if hint is not None:
        (target / FILE_NAME).write_bytes(hint)
    return target


@pytest.mark.slow
async def test_a_cell_of_before_a_power_loss_is_overtaken(
    log_directory: Path, tmp_path: Path
) -> None:
    """All but the last change is seen, whichever cell the crash left."""
    settings = SMALL.replace(transaction_memory_bytes=4096)
    cells: list[bytes] = []
    before: dict[str, str] = {}
    async with Wal.open(log_directory, settings=settings, fs=UnsyncedFileSystem()) as wal:
        hint = await asyncio.to_thread((log_directory / FILE_NAME).read_bytes)
        for step in range(24):
            cells.append(await asyncio.to_thread((log_directory / CELL_FILE_NAME).read_bytes))
            async with wal.transaction(update={f"r{step % 4}": str(step)}) as transaction:
                for _ in range((0, 1, 30)[step % 3]):
                    await transaction.append(bytes(300))
            if step % 5 == 4:
                await wal.rotate()
            for at in {0, step // 2, step}:
                target = tmp_path / f"{step} {at}"
                await asyncio.to_thread(
                    crash_with, cells[at], log_directory, target, hint=hint if at % 2 else None
                )
                assert await asyncio.to_thread(registers_of, target) in (before, wal.registers)
            before = dict(wal.registers)
    target = await asyncio.to_thread(crash_with, cells[3], log_directory, tmp_path / "closed")
    assert await asyncio.to_thread(registers_of, target) == before, "the checkpoint knows it"


async def test_what_may_not_be_durable_yet_is_not_shown(
    log_directory: Path, tmp_path: Path
) -> None:
    """A large transaction that is the last segment: a crash may still take its name away."""
    settings = SMALL.replace(transaction_memory_bytes=4096)
    async with Wal.open(log_directory, settings=settings) as wal:
        await _update(wal, {"a": "1"})
        cells = [await asyncio.to_thread((log_directory / CELL_FILE_NAME).read_bytes)]
        await wal.append(b"")
        for number in "23":
            async with wal.transaction(update={"a": number}) as transaction:
                for _ in range(30):
                    await transaction.append(bytes(300))
            cells.append(await asyncio.to_thread((log_directory / CELL_FILE_NAME).read_bytes))
        found = sorted(await asyncio.to_thread(lambda: list(log_directory.glob("*.wal"))))
    target = await asyncio.to_thread(crash_with, cells[0], log_directory, tmp_path / "follows")
    await asyncio.to_thread((target / found[-1].name).unlink)
    await asyncio.to_thread((target / FILE_NAME).unlink)
    assert await asyncio.to_thread(registers_of, target) == {"a": "2"}
    target = await asyncio.to_thread(crash_with, cells[1], log_directory, tmp_path / "replaced")
    await asyncio.to_thread((target / found[-1].name).unlink)
    await asyncio.to_thread((target / FILE_NAME).unlink)
    with pytest.raises(StorageUnavailableError, match="between two segments"):
        await asyncio.to_thread(registers_of, target)
