"""LogBounds: what a look from outside finds, whatever state writer, cell and checkpoint are in."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.local import (
    SMALL,
    close_opened,
    copy_log,
    draft_of,
    open_blocking,
    segments,
    stored_batches,
)
from walstore import CorruptionError, LogNotFoundError, StorageUnavailableError, Wal
from walstore.core.files.log_bounds import LogBounds, read_bounds
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import (
    CELL_BYTES,
    CELL_FILE_NAME,
    FILE_NAME,
    DurableCell,
    decode_cell,
    encode_cell,
)
from walstore.testing import FaultyFileSystem

FS = PosixFileSystem()


def look(directory: Path) -> LogBounds:
    return read_bounds(FS, directory)


async def look_aside(directory: Path) -> LogBounds:
    return await asyncio.to_thread(read_bounds, FS, directory)


async def offsets(directory: Path) -> list[int]:
    """Return the offsets that can be read up to the extent's limit."""

    def read() -> list[int]:
        return [record.offset for batch in stored_batches(directory) for record in batch]

    return await asyncio.to_thread(read)


async def fill(directory: Path, commits: int, *, size: int = 3000, settings: Any = SMALL) -> int:
    """Append so many commits of two records each; return the limit."""
    async with Wal.open(directory, settings=settings) as wal:
        for _ in range(commits):
            await wal.append_many([bytes(size)] * 2)
        return wal.tail


async def test_it_says_how_far_a_live_log_reaches(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        found = await look_aside(log_directory)
        assert (found.head, found.limit, found.written_limit, found.epoch) == (1, 1, 1, 1)
        assert found.starts == (1,)
        assert found.log_id.hex() == wal.log_id
        for _ in range(40):
            limit = (await wal.append_many([bytes(3000)] * 2)).stop
            found = await look_aside(log_directory)
            assert (found.head, found.limit, found.written_limit) == (1, limit, limit)
        assert len(found.starts) == len(segments(log_directory)) > 2
    assert (await look_aside(log_directory)).limit == limit
    assert await offsets(log_directory) == list(range(1, limit))


def test_there_may_be_no_log(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(LogNotFoundError):
            look(path)


# -- the cell is missing or damaged ----------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "torn", "short", "zeroes", "of another log"])
@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_without_a_cell_the_frames_say_where_the_log_ends(
    log_directory: Path, damage: str, has_checkpoint: bool
) -> None:
    limit = await fill(log_directory, 30)
    cell = log_directory / CELL_FILE_NAME
    whole = cell.read_bytes()
    if damage == "missing":
        cell.unlink()
    elif damage == "torn":
        cell.write_bytes(whole[:20] + bytes(8) + whole[28:])
    elif damage == "short":
        cell.write_bytes(whole[:10])
    elif damage == "zeroes":
        cell.write_bytes(bytes(CELL_BYTES))
    else:
        cell.write_bytes(encode_cell(DurableCell(1, 10_000, 7, 9_000, 64, 10_000)))
    if not has_checkpoint:
        (log_directory / FILE_NAME).unlink()
    found = await look_aside(log_directory)
    assert (found.head, found.limit, found.written_limit) == (1, limit, limit)
    assert await offsets(log_directory) == list(range(1, limit))


async def test_a_cell_that_is_half_updated_is_read_again(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    limit = await fill(log_directory, 3)
    cell = log_directory / CELL_FILE_NAME
    whole = cell.read_bytes()
    cell.write_bytes(whole[:20] + bytes(8) + whole[28:])
    reads = 0

    def finish_the_update(call) -> None:
        nonlocal reads
        if call.matches("read", CELL_FILE_NAME):
            reads += 1
            if reads == 5:
                cell.write_bytes(whole)

    faulty.before_each(finish_the_update)
    assert (await asyncio.to_thread(read_bounds, faulty, log_directory)).limit == limit
    assert reads == 5


# -- the cell is behind the truth ------------------------------------------------------------------


async def stale_copy(directory: Path, target: Path, *, commits: int, rotate: bool) -> int:
    """Make what a crash of the machine may leave: all files, but an old cell and checkpoint."""
    async with Wal.open(directory, settings=SMALL) as wal:
        await wal.append_many([bytes(100)] * 2)
        old = {
            name: await asyncio.to_thread((directory / name).read_bytes)
            for name in (CELL_FILE_NAME, FILE_NAME)
        }
        for _ in range(commits):
            await wal.append_many([bytes(100)] * 2)
            if rotate:
                await wal.rotate()
                await wal.append_many([bytes(100)] * 2)
        await asyncio.to_thread(copy_log, directory, target)
        limit = wal.tail
    for name, content in old.items():
        (target / name).write_bytes(content)
    return limit


@pytest.mark.parametrize("rotate", [False, True])
async def test_frames_testify_to_what_an_old_cell_does_not_know(
    log_directory: Path, tmp_path: Path, rotate: bool
) -> None:
    """All but the last commit: nothing in the files says whether that was synced."""
    limit = await stale_copy(log_directory, tmp_path / "copy", commits=5, rotate=rotate)
    found = await look_aside(tmp_path / "copy")
    cell = found.cell
    assert cell is not None
    assert cell.visible_limit == 3
    assert (found.limit, found.written_limit) == (limit - 2, limit)
    assert await offsets(tmp_path / "copy") == list(range(1, limit - 2))
    async with Wal.open(tmp_path / "copy", settings=SMALL) as wal:
        assert wal.durable_limit == limit
        assert (await look_aside(tmp_path / "copy")).limit == limit


async def test_a_checkpoint_testifies_too(log_directory: Path, tmp_path: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"1")
        old = await asyncio.to_thread((log_directory / CELL_FILE_NAME).read_bytes)
        await wal.append(b"2")
    (log_directory / CELL_FILE_NAME).write_bytes(old)
    found = await look_aside(log_directory)
    assert found.limit == 3


async def test_damaged_frames_behind_the_cell_are_no_testimony(
    log_directory: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    limit = await stale_copy(log_directory, copy, commits=5, rotate=False)
    path = segments(copy)[-1]
    data = bytearray(path.read_bytes())
    cell = decode_cell((copy / CELL_FILE_NAME).read_bytes())
    assert cell is not None
    data[cell.tail_position + 100] ^= 1
    path.write_bytes(data)
    found = await look_aside(copy)
    assert (found.limit, found.written_limit) == (3, 3)
    assert limit > 3


# -- beside a writer at work -----------------------------------------------------------------------


class Watcher:
    """Looks at a log before every call that its writer makes, and compares with what is synced."""

    def __init__(self, directory: Path, faulty: FaultyFileSystem) -> None:
        self.directory = directory
        self.wal: Wal | None = None
        self.limits: list[int] = []
        self.least = 1
        faulty.before_each(self.look)

    def look(self, call: Any) -> None:
        if call.kind == "close":
            return
        try:
            found = read_bounds(FS, self.directory)
        except LogNotFoundError:
            assert not self.limits
            return
        if self.wal is not None:
            tail = self.wal._engine.opened.tail
            assert found.limit <= tail.durable_limit, call
        assert found.limit >= self.least, call
        assert not self.limits or found.limit >= self.limits[-1], call
        self.limits.append(found.limit)


async def test_it_never_shows_what_is_not_synced(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """At every call of the writer, through commits, rotations and large transactions."""
    watcher = Watcher(log_directory, faulty)
    settings = SMALL.replace(transaction_memory_bytes=4096)
    async with Wal.open(log_directory, settings=settings, fs=faulty) as wal:
        watcher.wal = wal
        for step in range(12):
            watcher.least = (await wal.append_many([bytes(5000)] * 3)).stop
            if step % 3 == 0:
                await wal.rotate()
            if step % 4 == 0:
                async with wal.transaction() as transaction:
                    for _ in range(10):
                        await transaction.append(bytes(3000))
                watcher.least = transaction.span.stop
        tail = wal.tail
    faulty.before_each(None)
    assert len(watcher.limits) > 100
    assert (await look_aside(log_directory)).limit == tail


@pytest.mark.parametrize("torn", [b"", b"torn" * 100])
async def test_nothing_goes_back_while_a_writer_comes_back_after_a_crash(
    log_directory: Path, tmp_path: Path, faulty: FaultyFileSystem, torn: bytes
) -> None:
    copy = tmp_path / "copy"
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for _ in range(10):
            await wal.append_many([bytes(3000)] * 3)
        limit = wal.tail
        await asyncio.to_thread(copy_log, log_directory, copy)
    cell = decode_cell((copy / CELL_FILE_NAME).read_bytes())
    assert cell is not None
    with segments(copy)[-1].open("r+b") as file:
        file.seek(cell.tail_position)
        file.write(torn)
    watcher = Watcher(copy, faulty)
    watcher.least = limit
    async with Wal.open(copy, settings=SMALL, fs=faulty) as wal:
        watcher.wal = wal
        await wal.append(b"more")
    faulty.before_each(None)
    assert set(watcher.limits) == {limit, limit + 1}


async def test_a_segment_that_is_deleted_meanwhile_is_looked_for_no_more(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    await fill(log_directory, 40)
    (log_directory / CELL_FILE_NAME).unlink()
    gone = segments(log_directory)[-1]
    faulty.before_each(lambda call: gone.unlink(missing_ok=True) if call.kind == "open" else None)
    found = await asyncio.to_thread(read_bounds, faulty, log_directory)
    assert found.starts == tuple(int(path.stem) for path in segments(log_directory))
    assert found.limit == int(gone.stem)


async def test_a_log_that_never_stands_still(log_directory: Path, faulty: FaultyFileSystem) -> None:
    await fill(log_directory, 1)
    faulty.fail("open", 2, name="*.wal", times=None)
    with pytest.raises(StorageUnavailableError, match="changes too fast"):
        await asyncio.to_thread(read_bounds, faulty, log_directory)


async def test_a_damaged_header_is_corruption(log_directory: Path) -> None:
    await fill(log_directory, 1)
    path = segments(log_directory)[-1]
    path.write_bytes(b"?" + path.read_bytes()[1:])
    with pytest.raises(CorruptionError):
        await look_aside(log_directory)


async def test_a_copy_may_be_taken_to_another_place(log_directory: Path, tmp_path: Path) -> None:
    limit = await fill(log_directory, 5)
    copy = tmp_path / "copy"
    await asyncio.to_thread(shutil.copytree, log_directory, copy)
    assert (await look_aside(copy)).limit == limit


@pytest.mark.parametrize("hint", [True, False])
@pytest.mark.parametrize("at", [0, 3])
def test_without_a_cell_a_reader_learns_of_damage_before_the_end(
    log_directory: Path, at: int, hint: bool
) -> None:
    """It must not take the place of the damage for the end of the log."""
    opened = open_blocking(log_directory)
    for offset in range(1, 7):
        opened.tail.commit([draft_of(offset, b"value %d" % offset)])
    close_opened(opened)
    (log_directory / "DURABLE").unlink()
    if not hint:
        (log_directory / "CHECKPOINT").unlink()
    (path,) = segments(log_directory)
    data = bytearray(path.read_bytes())
    data[data.index(b"value %d" % (at + 1))] ^= 0x10
    path.write_bytes(data)
    assert read_bounds(FS, log_directory).limit > at + 1
    found = []
    with pytest.raises(CorruptionError):
        for batch in stored_batches(log_directory):
            found += [record.offset for record in batch]
    assert found == list(range(1, at + 1))
