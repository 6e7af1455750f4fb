"""Wal: what cannot be opened, and why."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local import (
    contents,
    gather_outcomes,
    open_descriptors,
    turns,
)
from walstore import (
    CorruptionError,
    DiskFullError,
    InvalidSettingsError,
    Settings,
    StorageUnavailableError,
    Wal,
    WalLockedError,
    WalStore,
)


async def test_L15_two_openers_one_wins(log_directory) -> None:
    outcomes = await gather_outcomes(Wal.open(log_directory)._open_it() for _ in range(4))
    winners = [found for found in outcomes if isinstance(found, Wal)]
    assert len(winners) == 1
    losers = [found for found in outcomes if isinstance(found, WalLockedError)]
    assert len(losers) == 3
    assert losers[0].path == str(log_directory)
    with pytest.raises(WalLockedError, match=str(os.getpid())):  # by now the winner has signed
        await Wal.open(log_directory)
    assert await winners[0].append(b"a") == 1
    await winners[0].aclose()
    async with Wal.open(log_directory) as wal:
        assert wal.tail == 2


HOLDER = """
import asyncio, sys
from walstore import Wal

async def main():
    async with Wal.open(sys.argv[1]) as wal:
        print(await wal.append(b"theirs"), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_L15_an_opener_in_another_process_wins_until_it_dies(log_directory) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        log_directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"1\n"
    with pytest.raises(WalLockedError, match=f"process {holder.pid} on"):
        await Wal.open(log_directory)
    holder.send_signal(signal.SIGKILL)
    await holder.communicate()
    assert [record.value for record in await contents(log_directory)] == [b"theirs"]


async def test_a_path_that_is_a_file(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    for place in (path, path / "below"):
        with pytest.raises(InvalidSettingsError, match="not a directory") as found:
            await Wal.open(place)
        assert not found.value.retriable
        assert isinstance(found.value.__cause__, OSError)
        with pytest.raises(InvalidSettingsError, match="not a directory"):
            await WalStore.open(place)
    assert path.read_bytes() == b"hello"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("kind", ["make_directory", "lock", "open"])
async def test_a_directory_that_cannot_be_written(log_directory, faulty, code, kind) -> None:
    faulty.fail(kind, code)
    with pytest.raises(StorageUnavailableError, match="cannot be written") as found:
        await Wal.open(log_directory, fs=faulty)
    assert str(log_directory) in str(found.value)
    assert open_descriptors(log_directory) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_read_only_directory(log_directory) -> None:
    async with Wal.open(log_directory):
        pass
    log_directory.chmod(0o500)
    (log_directory / "LOCK").chmod(0o400)
    with pytest.raises(StorageUnavailableError, match="cannot be written"):
        await Wal.open(log_directory)
    log_directory.chmod(0o700)


async def test_a_full_disk(log_directory, faulty) -> None:
    faulty.limit_space(10)
    with pytest.raises(DiskFullError, match="no space left"):
        await Wal.open(log_directory, fs=faulty)
    faulty.limit_space(100)  # enough for a segment, not for a checkpoint
    async with Wal.open(log_directory, fs=faulty) as wal:
        with pytest.raises(DiskFullError):
            await wal.append(b"a")
        assert await wal.trim(1) == 1
    faulty.limit_space(None)
    async with Wal.open(log_directory, fs=faulty) as wal:
        await wal.append(b"a")


async def test_damaged_files(log_directory) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"a")
    (log_directory / "00000000000000000001.wal").write_bytes(b"hello")
    with pytest.raises(CorruptionError):
        await Wal.open(log_directory)
    assert open_descriptors(log_directory) == []


async def test_settings_that_contradict_are_refused(log_directory) -> None:
    with pytest.raises(InvalidSettingsError, match="needs a log opened with tier="):
        await Wal.open(log_directory, settings=Settings(durability="cloud"))
    assert not log_directory.exists()


@pytest.mark.parametrize("kind", ["make_directory", "lock", "pwrite", "replace", "cell"])
async def test_L14_an_open_that_is_cancelled_leaves_the_log_free(
    log_directory, faulty, kind
) -> None:
    with faulty.hold(kind) as hold:
        opening = asyncio.create_task(Wal.open(log_directory, fs=faulty)._open_it())
        await hold.wait_entered()
        opening.cancel()
        await turns()
        assert not opening.done(), "it waits for the call on the thread, so that nothing is left"
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert open_descriptors(log_directory) == []
    async with Wal.open(log_directory) as wal:
        assert await wal.append(b"a") == 1


async def test_L14_an_open_that_is_cancelled_at_any_turn_leaves_the_log_free(log_directory) -> None:
    for after in sorted({int(1.4**n) for n in range(40)}):
        opening = asyncio.create_task(Wal.open(log_directory)._open_it())
        await turns(after)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().aclose()
            break
        assert open_descriptors(log_directory) == []
        async with Wal.open(log_directory) as wal:
            assert await wal.append(b"") == wal.tail - 1
    else:
        pytest.fail("it never finished")


async def test_L14_a_cancelled_open_that_fails_meanwhile_is_silent(log_directory, faulty) -> None:
    with faulty.hold("list") as hold:
        faulty.fail("list")
        opening = asyncio.create_task(Wal.open(log_directory, fs=faulty)._open_it())
        await hold.wait_entered()
        opening.cancel()
        await turns()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert open_descriptors(log_directory) == []
