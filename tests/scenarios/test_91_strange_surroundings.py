"""Files that are emptied, names that others leave, and places that nobody may write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local import SMALL, contents, copy_log, read_all
from walstore import CorruptionError, Wal, WalError, WalStore

SETTINGS = SMALL.replace(max_record_bytes=32 * 1024)
VALUES = [b"%d;" % number * 900 for number in range(60)]
WITHOUT_DATA = ("CHECKPOINT", "DURABLE", "LOCK", "cursors/.lock")
"""Files that are made again from others."""


@pytest.fixture
async def log(scratch: Path) -> Path:
    """A log of several segments, with a cursor and a group, as a killed process leaves it."""
    async with Wal.open(scratch / "log", settings=SETTINGS) as wal:
        for value in VALUES:
            await wal.append(value)
        await (await wal.cursor("billing")).commit(20)
        async with wal.group("workers") as group:
            for job in await group.fetch(3):
                await job.ack()
        return copy_log(scratch / "log", scratch / "killed")


async def test_each_file_may_be_emptied(log: Path, scratch: Path) -> None:
    """The log then has all records, or says what is damaged; it never has fewer."""
    names = sorted(str(path.relative_to(log)) for path in log.rglob("*") if path.is_file())
    assert {"CHECKPOINT", "DURABLE", "cursors/billing", "groups/workers"} < set(names)
    for name in names:
        emptied = copy_log(log, scratch / name.replace("/", "-"))
        (emptied / name).write_bytes(b"")
        if name.endswith(".wal"):
            with pytest.raises(CorruptionError, match=name):
                await contents(emptied, SETTINGS)
            assert (emptied / name).stat().st_size == 0, "the evidence stays as it is"
            continue
        async with Wal.open(emptied, settings=SETTINGS) as wal:
            assert [record.value for record in await read_all(wal)] == VALUES
            assert await wal.append(b"after") == len(VALUES) + 1
            problems = [one.problem for one in await wal.cursors() if one.problem is not None]
            problems += [one.problem for one in await wal.groups() if one.problem is not None]
            assert bool(problems) is (name not in WITHOUT_DATA), name
            assert all(isinstance(problem, CorruptionError) for problem in problems)
            await _enter(wal, is_refused=name not in WITHOUT_DATA)


async def _enter(wal: Wal, *, is_refused: bool) -> None:
    refusals = []
    try:
        assert (await wal.cursor("billing")).position == 20
    except CorruptionError as error:
        refusals.append(error)
    try:
        async with wal.group("workers") as group:
            assert [job.offset for job in await group.fetch(1)] == [4]
    except CorruptionError as error:
        refusals.append(error)
    assert len(refusals) == is_refused


async def test_names_of_others_in_a_store_are_no_logs(scratch: Path) -> None:
    async with WalStore.open(scratch / "store") as store:
        await (await store.wal("orders")).append(b"one")
    for name in ("lost+found", ".Trash-0"):
        (scratch / "store" / name).mkdir()
    (scratch / "store" / ".nfs000000000042").touch()
    (scratch / "store" / "dangling").symlink_to("/nowhere")
    async with WalStore.open(scratch / "store") as store:
        assert await store.logs() == ["orders"]
        assert (await store.wal("orders")).tail == 2
        with pytest.raises(WalError):
            await store.wal("dangling")
        await store.delete("orders")
        assert await store.logs() == []


async def test_names_of_others_in_a_log_are_no_cursors_and_no_groups(scratch: Path) -> None:
    async with Wal.open(scratch / "log") as wal:
        await wal.append(b"one")
    for name in ("cursors", "groups"):
        (scratch / "log" / name / "lost+found").mkdir(parents=True)
        (scratch / "log" / name / ".nfs000000000042").touch()
    (scratch / "log" / "cursors" / "dangling").symlink_to("/nowhere")
    async with Wal.open(scratch / "log") as wal:
        assert await wal.cursors() == []
        assert await wal.groups() == []
        async with wal.group("workers") as group:
            assert [job.value for job in await group.fetch(1)] == [b"one"]


async def test_a_directory_with_the_name_of_a_cursor_or_a_group_is_reported(scratch: Path) -> None:
    async with Wal.open(scratch / "log") as wal:
        await wal.append(b"one")
        for name in ("cursors", "groups"):
            (scratch / "log" / name / "mine").mkdir(parents=True)
        found = [*await wal.cursors(), *await wal.groups()]
        assert [one.name for one in found] == ["mine", "mine"]
        assert all("a directory" in str(one.problem) for one in found)


READING = """
import asyncio, sys
from walstore import StorageUnavailableError, Wal, WalStore

async def main(store):
    async with Wal.open_readonly(store + "/orders") as wal, wal.reader(follow=False) as reader:
        print([record.value async for record in reader])
    for opening in (lambda: Wal.open(store + "/orders"), lambda: WalStore.open(store)):
        try:
            async with opening():
                print("opened")
        except StorageUnavailableError as error:
            print("refused" if "check owner and mount" in str(error) else error)

asyncio.run(main(sys.argv[1]))
"""
READ = "[b'one']\nrefused\nrefused\n"


FILLING = """
import asyncio, os, sys
from walstore import DiskFullError, Settings, Wal

async def main(mount):
    settings = Settings(
        segment_bytes=65536, checkpoint_bytes=65536, max_record_bytes=32768, min_free_bytes=0
    )
    acknowledged = 0
    try:
        async with Wal.open(mount + "/log", settings=settings) as wal:
            while True:
                await wal.append(bytes(8000))
                acknowledged += 1
    except DiskFullError as error:
        print(error.outcome, "df -i" in str(error))
    space = os.statvfs(mount)
    print(space.f_favail, space.f_bavail * space.f_frsize > 1_000_000)
    os.remove(mount + "/filler")
    async with Wal.open(mount + "/log", settings=settings) as wal:
        print(wal.tail - 1 - acknowledged)
        await wal.append(b"after")

asyncio.run(main(sys.argv[1]))
"""


def _as_far_as_allowed(*command: str) -> str:
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if "permitted" in run.stderr or "denied" in run.stderr:
        pytest.skip(f"this machine does not allow it: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
async def store(scratch: Path) -> Path:
    async with WalStore.open(scratch / "store") as store:
        await (await store.wal("orders")).append(b"one")
    return scratch / "store"


@pytest.mark.slow
def test_a_mount_that_is_read_only_is_read(store: Path, scratch: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare, which mounts for one process")
    mount = 'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && exec "$3" -c "$4" "$2"'
    (scratch / "mounted").mkdir()
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(store), str(scratch / "mounted")]
    assert _as_far_as_allowed(*command, sys.executable, READING) == READ


@pytest.mark.slow
def test_files_that_nobody_may_write_are_read(store: Path) -> None:
    """Without the rights that root has over all files."""
    if not shutil.which("setpriv"):
        pytest.skip("there is no setpriv, which gives up the rights of root")
    for path in [*store.rglob("*"), store]:
        path.chmod(0o444 if path.is_file() else 0o555)
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    try:
        assert _as_far_as_allowed(*command, sys.executable, "-c", READING, str(store)) == READ
    finally:
        for path in [store, *store.rglob("*")]:
            path.chmod(0o755)


@pytest.mark.slow
def test_a_file_system_without_inodes_is_a_full_disk(scratch: Path) -> None:
    """Which ``min_free_bytes`` does not see: there is room for bytes."""
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare, which mounts for one process")
    mount = 'mount -t tmpfs -o nr_inodes=30,size=64m tmpfs "$1" && touch "$1/filler"'
    mount += ' && exec "$2" -c "$3" "$1"'
    (scratch / "mounted").mkdir()
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(scratch / "mounted")]
    said = _as_far_as_allowed(*command, sys.executable, FILLING)
    assert said == "not_written True\n0 True\n0\n"
