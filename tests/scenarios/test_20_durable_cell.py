"""The durable cell tells others how far a log reaches; whatever becomes of it, the log goes on."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local import SMALL, contents, segments
from walstore import StorageUnavailableError, Wal, WalStore
from walstore.core.format.checkpoint import CELL_FILE_NAME, decode_cell
from walstore.log.readonly import ReadonlyWal
from walstore.store.store_settings import StoreSettings


def cut(cell: Path) -> None:
    os.truncate(cell, 0)


def remove(cell: Path) -> None:
    cell.unlink()


def copy_over(cell: Path) -> None:
    """As ``cp`` does: in place, with a moment in which there is nothing."""
    data = cell.read_bytes()
    with cell.open("r+b") as file:
        file.truncate(0)
        file.write(data)


def replace(cell: Path) -> None:
    """As ``rsync`` does: another file takes its place."""
    shutil.copy(cell, cell.with_name("copy"))
    cell.with_name("copy").rename(cell)


def link(cell: Path) -> None:
    cell.rename(cell.with_name("elsewhere"))
    cell.symlink_to("elsewhere")


@pytest.mark.parametrize("harm", [cut, remove, copy_over, replace, link])
@pytest.mark.parametrize("most_open", [1, 8])
async def test_a_cell_that_is_harmed_is_whole_again_with_the_next_commit(
    tmp_path: Path, harm: Callable[[Path], None], most_open: int
) -> None:
    shared = StoreSettings(max_open_logs=most_open)
    async with WalStore.open(tmp_path, settings=SMALL, store_settings=shared) as store:
        wal = await store.wal("a")
        await wal.append(b"1")
        cell = wal.path / CELL_FILE_NAME
        async with ReadonlyWal.open(wal.path) as log:
            assert log.limit == 2
            if most_open == 1:
                await (await store.wal("b")).append(b"parks the other")
            await asyncio.to_thread(harm, cell)
            assert log.limit == 2
            await wal.append(b"2")
            await log.refresh()  # else done within a second of waiting
            assert log.limit == 3
            await wal.append(b"3")
            assert log.limit == 4
            async with log.reader(follow=False) as reader:
                assert [record.value async for record in reader] == [b"1", b"2", b"3"]
        if harm is not link or most_open == 1:
            found = decode_cell(await asyncio.to_thread(cell.read_bytes))
            assert found is not None
            assert found.durable_limit == 4


@pytest.mark.parametrize("kind", ["cell", "store"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
async def test_a_cell_that_cannot_be_stored_to_does_not_fail_the_log(
    log_directory: Path, faulty, caplog, kind: str, error: int
) -> None:
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as wal:
        await wal.append(b"1")
        async with ReadonlyWal.open(log_directory) as log:
            faulty.fail(kind, error, times=None)
            if kind == "cell":
                await asyncio.to_thread(wal._engine.opened.tail.park)
            with caplog.at_level(logging.WARNING, "walstore"):
                for number in range(2, 30):
                    await wal.append(b"%d" % number)
                await wal.rotate()
                await wal.trim(3)
            assert len(caplog.records) == 1  # said once
            assert not (log_directory / CELL_FILE_NAME).exists()
            await log.refresh()
            assert log.limit == 30  # by the frames
            faulty.heal()
            await wal.append(b"30")
            await log.refresh()
            assert log.limit == 31
            assert (log_directory / CELL_FILE_NAME).exists()
    assert [record.offset for record in await contents(log_directory)] == list(range(3, 31))


async def test_a_log_is_opened_on_a_disk_without_room_for_a_cell(
    log_directory: Path, faulty
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"1")
    (log_directory / CELL_FILE_NAME).unlink()
    faulty.fail("cell", errno.ENOSPC, times=None)
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as wal:
        await wal.append(b"2")
    assert [record.value for record in await contents(log_directory)] == [b"1", b"2"]


async def test_a_lock_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"somebody's file")
    log = tmp_path / "log"
    async with Wal.open(log, settings=SMALL) as wal:
        await wal.append(b"1")
    (log / "LOCK").unlink()
    (log / "LOCK").symlink_to(victim)
    with pytest.raises(StorageUnavailableError, match="symbolic link") as caught:
        await Wal.open(log)
    assert str(log / "LOCK") in str(caught.value)
    (log / "LOCK").unlink()
    (log / CELL_FILE_NAME).unlink()
    (log / CELL_FILE_NAME).symlink_to(victim)
    async with Wal.open(log, settings=SMALL) as wal:
        await wal.append(b"2")
    assert not (log / CELL_FILE_NAME).is_symlink()
    assert await asyncio.to_thread(victim.read_bytes) == b"somebody's file"


@pytest.mark.parametrize("harm", [remove, replace, cut])
async def test_segments_are_removed_whatever_became_of_the_cell(
    log_directory: Path, harm: Callable[[Path], None]
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for number in range(3):
            await wal.append(b"%d" % number)
            await wal.rotate()
        await asyncio.to_thread(harm, log_directory / CELL_FILE_NAME)
        assert await wal.trim(3) == 3
        assert len(await asyncio.to_thread(segments, log_directory)) == 2
        found = decode_cell(await asyncio.to_thread((log_directory / CELL_FILE_NAME).read_bytes))
        assert found is not None
        assert found.head == 3


@pytest.mark.parametrize("kind", ["open", "datasync"])
async def test_segments_stay_while_the_cell_cannot_be_synced(
    log_directory: Path, faulty, kind: str
) -> None:
    """What a power failure may bring back must not speak of segments that are gone."""
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as wal:
        for number in range(3):
            await wal.append(b"%d" % number)
            await wal.rotate()
        faulty.fail(kind, errno.EIO, name=CELL_FILE_NAME, times=None)
        assert await wal.trim(3) == 3
        assert len(await asyncio.to_thread(segments, log_directory)) == 4
        faulty.heal()
        assert await wal.trim(4) == 4
        assert len(await asyncio.to_thread(segments, log_directory)) == 1
    assert await contents(log_directory) == []


async def test_a_cell_that_cannot_be_stored_to_is_gone_durably_before_segments_are(
    log_directory: Path, faulty
) -> None:
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as wal:
        for number in range(3):
            await wal.append(b"%d" % number)
            await wal.rotate()
        faulty.fail("store", errno.EIO, times=None)
        before = len(faulty.calls)
        assert await wal.trim(3) == 3
        calls = [(call.kind, call.path.name) for call in faulty.calls[before:]]
    gone = len(calls) - calls[::-1].index(("remove", CELL_FILE_NAME))
    first = min(
        at for at, (kind, name) in enumerate(calls) if (kind, name[-4:]) == ("remove", ".wal")
    )
    assert "sync_directory" in [kind for kind, _ in calls[gone:first]]
