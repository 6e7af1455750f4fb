"""The directory store: what survives a kill or a power cut, and what it says when the disk fails.

The order of durable system calls is observed, and faults and deaths are injected, at the system calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import hashlib
import os
import stat
import subprocess
import sys
import threading
import weakref
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.local import turns
from uploader.stores import LocalStore, ObjectNotFoundError, PreconditionFailedError, open_store
from walstore.core.runtime.clock import SystemClock
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    InvalidSettingsError,
    StorageUnavailableError,
    WalClosedError,
)
from walstore.testing import ManualClock

KEY = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"


class Died(BaseException):
    """The process was killed at a system call."""


class SystemCalls:
    """Watches, fails or kills at the system calls that change something durable.

    A call that fails or dies is not made. After a death no call is made any more.
    """

    NAMES = ("fsync", "link", "replace", "unlink", "write", "mkdir")

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.made: list[tuple[str, str]] = []
        self.failures: dict[tuple[str, str], int] = {}
        self.die_at: int | None = None
        self.on_call = lambda name, where: None
        self._lock = threading.Lock()
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _where(self, place: object) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place)
        if not path.is_relative_to(self.root):
            return "outside"
        relative = path.relative_to(self.root)
        is_temporary = relative.parts[:1] == (".tmp",) and len(relative.parts) == 2
        return "temporary" if is_temporary else str(relative)

    def _wrapped(self, name, real):
        def call(first, *rest, **options):
            target = rest[0] if name in {"link", "replace"} else first
            where = self._where(target)
            with self._lock:
                self.made.append((name, where))
                if self.die_at is not None and len(self.made) > self.die_at:
                    raise Died
                failure = self.failures.pop((name, where), 0)
            if failure:
                raise OSError(failure, os.strerror(failure))
            self.on_call(name, where)
            return real(first, *rest, **options)

        return call


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def calls(root, monkeypatch) -> SystemCalls:
    return SystemCalls(root, monkeypatch)


@pytest.fixture
async def store(root):
    async with aclosing(LocalStore(root)) as store:
        yield store


async def settled(root: Path) -> LocalStore:
    """A store that trusts the age of directories, since its clock is far ahead."""
    ahead = ManualClock(SystemClock().now_us() + 60_000_000)
    return LocalStore(root, clock=ahead)


async def test_objects_are_files_of_the_same_name(store, root):
    await store.put_if_absent(KEY, b"content")
    assert (root / KEY).read_bytes() == b"content"
    assert stat.S_IMODE((root / KEY).stat().st_mode) & 0o444
    assert list((root / ".tmp").iterdir()) == []


async def test_reading_creates_nothing(store, root):
    assert [listed async for listed in store.list("")] == []
    assert await store.head("a") is None
    with pytest.raises(ObjectNotFoundError):
        await store.get("a")
    assert not root.exists()


async def test_create_is_durable_before_it_returns(store, calls):
    await store.put_if_absent("a/b/key", b"content")
    made = calls.made
    steps = [
        made.index(("mkdir", "."), 0),
        made.index(("write", "temporary")),
        made.index(("fsync", "temporary")),
        made.index(("link", "a/b/key")),
    ]
    assert steps == sorted(steps)
    after = made[steps[-1] :]
    assert {("fsync", "a/b"), ("fsync", "a"), ("fsync", ".")} <= set(after)


async def test_swap_is_durable_before_it_returns(store, calls):
    etag = await store.put_if_absent("a/key", b"1")
    calls.made.clear()
    await store.put_if_match("a/key", b"2", etag)
    made = [(name, where) for name, where in calls.made if name != "unlink"]
    assert made[:4] == [
        ("write", "temporary"),
        ("fsync", "temporary"),
        ("replace", "a/key"),
        ("fsync", "a"),
    ]


async def test_delete_is_durable_before_it_returns(store, calls):
    await store.put_if_absent("a/key", b"1")
    calls.made.clear()
    await store.delete(["a/key"])
    assert calls.made[:2] == [("unlink", "a/key"), ("fsync", "a")]


async def test_a_read_makes_durable_what_a_killed_writer_left(store, root, calls):
    """Somebody linked an object and died before the fsync of the directory."""
    await store.put_if_absent("a/first", b"1")
    reader = await settled(root)
    async with aclosing(reader):
        for read in (reader.get, reader.head, lambda key: reader.get_range(key, 0, 1)):
            name = f"a/orphan-{read.__name__}"
            (root / name).write_bytes(b"2")
            calls.made.clear()
            await read(name)
            assert ("fsync", "a") in calls.made
            calls.made.clear()
            await read(name)
            assert calls.made == []


async def test_a_create_that_lost_makes_the_winner_durable(store, root, calls):
    await store.put_if_absent("a/first", b"1")
    writer = await settled(root)
    async with aclosing(writer):
        await writer.get("a/first")
        (root / "a/orphan").write_bytes(b"2")
        calls.made.clear()
        with pytest.raises(PreconditionFailedError):
            await writer.put_if_absent("a/orphan", b"2")
    assert ("fsync", "a") in calls.made


async def test_a_young_directory_is_synced_again(store, calls):
    """Its time stamp may not show a change within the same tick."""
    await store.put_if_absent("a/key", b"1")
    calls.made.clear()
    await store.get("a/key")
    assert ("fsync", "a") in calls.made


async def test_killed_at_every_system_call_of_a_create(tmp_path, monkeypatch):
    """Either nothing is to be seen or all of it, and the next one can go on from there."""
    seen = set()
    for step in range(30):
        root = tmp_path / str(step)
        with monkeypatch.context() as patched:
            calls = SystemCalls(root, patched)
            calls.die_at = step
            async with aclosing(LocalStore(root)) as victim:
                try:
                    await victim.put_if_absent("a/key", b"content")
                except Died:
                    pass
                else:
                    break
        async with aclosing(LocalStore(root)) as successor:
            listed = [item.key async for item in successor.list("")]
            assert listed in ([], ["a/key"])
            seen.add(len(listed))
            if listed:
                assert (await successor.get("a/key")).data == b"content"
            else:
                await successor.put_if_absent("a/key", b"other")
    assert seen == {0, 1}
    assert step > 8


async def test_killed_at_every_system_call_of_a_swap(tmp_path, monkeypatch):
    """The object holds the old content or the new one, and can be swapped on from what it holds."""
    seen = set()
    for step in range(30):
        root = tmp_path / str(step)
        async with aclosing(LocalStore(root)) as first:
            etag = await first.put_if_absent("a/key", b"old")
        with monkeypatch.context() as patched:
            calls = SystemCalls(root, patched)
            async with aclosing(LocalStore(root)) as victim:
                await victim.get("a/key")
                calls.made.clear()
                calls.die_at = step
                try:
                    await victim.put_if_match("a/key", b"new", etag)
                except Died:
                    pass
                else:
                    break
        async with aclosing(LocalStore(root)) as successor:
            found = await successor.get("a/key")
            seen.add(found.data)
            await successor.put_if_match("a/key", b"next", found.etag)
    assert seen == {b"old", b"new"}


async def test_a_failed_write_or_sync_of_the_content_is_not_written(store, calls):
    for name, failure, expected in (
        ("write", errno.ENOSPC, DiskFullError),
        ("write", errno.EIO, StorageUnavailableError),
        ("fsync", errno.EIO, StorageUnavailableError),
        ("fsync", errno.EDQUOT, DiskFullError),
        ("link", errno.EIO, StorageUnavailableError),
    ):
        where = "a/key" if name == "link" else "temporary"
        calls.failures[name, where] = failure
        with pytest.raises(expected) as caught:
            await store.put_if_absent("a/key", b"content")
        assert caught.value.outcome == "not_written"
        assert await store.head("a/key") is None
    await store.put_if_absent("a/key", b"content")


async def test_a_failed_sync_of_a_directory_is_unknown_and_final(store, root, calls):
    """The system reports such a failure once; trying again would pretend that all is well."""
    await store.put_if_absent("a/first", b"1")
    calls.failures["fsync", "a"] = errno.EIO
    with pytest.raises(StorageUnavailableError, match="could not be synced") as caught:
        await store.put_if_absent("a/key", b"content")
    assert caught.value.outcome == "unknown"
    assert not caught.value.retriable
    for call in (store.get("a/key"), store.head("a/key"), store.put_if_absent("b", b"")):
        with pytest.raises(StorageUnavailableError, match="could not be synced") as caught:
            await call
        assert not caught.value.retriable
    async with aclosing(LocalStore(root)) as reopened:
        assert (await reopened.get("a/key")).data == b"content"


async def test_no_permission_is_final_and_says_so():
    """The kernel's own file system takes no directories, from root neither."""
    async with aclosing(open_store("file:///sys/walstore-test")) as store:
        with pytest.raises(StorageUnavailableError, match="permission") as caught:
            await store.put_if_absent("a", b"")
    assert not caught.value.retriable
    assert caught.value.outcome == "not_written"


async def test_the_root_may_not_be_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    async with aclosing(LocalStore(tmp_path / "file")) as store:
        with pytest.raises(InvalidSettingsError, match="directory"):
            await store.put_if_absent("a", b"")
        assert [listed async for listed in store.list("")] == []


async def test_a_key_is_an_object_or_a_folder(store):
    await store.put_if_absent("a/b", b"")
    with pytest.raises(InvalidSettingsError, match="below"):
        await store.put_if_absent("a", b"")
    with pytest.raises(InvalidSettingsError, match="directory"):
        await store.put_if_absent("a/b/c", b"")
    with pytest.raises(ObjectNotFoundError):
        await store.get("a/b/c")


async def test_a_name_too_long_for_a_file(store):
    with pytest.raises(InvalidSettingsError, match="too long"):
        await store.put_if_absent("x" * 300, b"")


async def test_foreign_files_are_no_objects(store, root):
    await store.put_if_absent("a/key", b"1")
    (root / ".hidden").write_bytes(b"")
    (root / "a/.hidden").write_bytes(b"")
    (root / "a/dangling").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(root) + b"/not-utf8-\xff")).write_bytes(b"")
    os.mkfifo(root / "pipe")
    (root / "empty-directory").mkdir()
    assert [listed.key async for listed in store.list("")] == ["a/key"]


async def test_a_listing_of_many_comes_in_pages(store, root):
    (root / "many").mkdir(parents=True)
    names = [f"many/{number:05}" for number in range(1100)]
    for name in names:
        (root / name).touch()
    assert [listed.key async for listed in store.list("many/")] == names


async def test_left_overs_of_killed_writers_are_removed_when_old(root):
    temporary = root / ".tmp"
    temporary.mkdir(parents=True)
    now_us = SystemClock().now_us()
    for name, age_seconds in (("old", 3700), ("young", 3500), ("lock", 4000)):
        (temporary / name).write_bytes(b"")
        seconds = now_us / 1_000_000 - age_seconds
        os.utime(temporary / name, (seconds, seconds))
    async with aclosing(LocalStore(root)) as store:
        assert [listed async for listed in store.list("")] == []
        assert (temporary / "old").exists()
        await store.put_if_absent("a", b"")
    assert {path.name for path in temporary.iterdir()} == {"young", "lock"}


async def test_a_process_that_keeps_the_lock_is_named_and_not_waited_for_without_end(
    store, root, monkeypatch
):
    monkeypatch.setattr("uploader.stores.local_directory._LOCK_SECONDS", 0.05)
    etag = await store.put_if_absent("a", b"1")
    with (root / ".tmp/lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        with pytest.raises(
            StorageUnavailableError, match="another process has had the lock"
        ) as raised:
            await store.put_if_match("a", b"2", etag)
        assert (raised.value.retriable, raised.value.outcome) == (True, "not_written")
        with pytest.raises(
            StorageUnavailableError, match="another process has had the lock"
        ) as raised:
            await store.delete(["a"])
        assert raised.value.outcome == "unknown"
        assert (await store.get("a")).data == b"1"
        monkeypatch.undo()
        waiting = asyncio.ensure_future(store.put_if_match("a", b"3", etag))
        await asyncio.sleep(0)
    assert await waiting
    assert (await store.get("a")).data == b"3"


async def test_etags_name_the_content(store, root):
    """Whoever writes the same bytes, at whatever time, gets the same ETag."""
    first = await store.put_if_absent("a", b"1")
    second = await store.put_if_match("a", b"2", first)
    assert second != first
    assert await store.put_if_match("a", b"1", second) == first
    (root / "a").write_bytes(b"meddled with")
    with pytest.raises(PreconditionFailedError):
        await store.put_if_match("a", b"3", first)


async def test_a_cancelled_put_goes_on(store, calls):
    """The thread cannot be stopped, so the outcome is open; here it is committed."""
    reached, release = threading.Event(), threading.Event()

    def hold(name: str, where: str) -> None:
        if (name, where) == ("link", "a/key"):
            reached.set()
            release.wait(60)

    calls.on_call = hold
    async with asyncio.TaskGroup() as group:
        task = group.create_task(store.put_if_absent("a/key", b"content"))
        await asyncio.to_thread(reached.wait, 60)
        task.cancel()
    assert task.cancelled()
    release.set()
    await store.aclose()
    assert (calls.root / "a/key").read_bytes() == b"content"


async def test_a_closed_store_says_so(store):
    await store.aclose()
    with pytest.raises(WalClosedError):
        await store.get("a")


COUNT_TO_TWENTY = """
import asyncio, sys
from pathlib import Path
from uploader.stores import LocalStore, PreconditionFailedError

async def main():
    store = LocalStore(Path(sys.argv[1]))
    for _ in range(20):
        while True:
            found = await store.get("counter")
            try:
                await store.put_if_match("counter", b"%d" % (int(found.data) + 1), found.etag)
                break
            except PreconditionFailedError:
                continue
    await store.aclose()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_swaps_of_several_processes_exclude_each_other(store, root):
    await store.put_if_absent("counter", b"0")
    command = [sys.executable, "-c", COUNT_TO_TWENTY, str(root)]

    def count() -> list[int]:
        children = [subprocess.Popen(command) for _ in range(2)]
        return [child.wait(30) for child in children]

    assert await asyncio.to_thread(count) == [0, 0]
    assert (await store.get("counter")).data == b"40"


# -- symbolic links ----------------------------------------------------------------------------


async def test_links_are_not_followed(store, root, tmp_path):
    """Neither to a file nor to a directory, by no call: a listing would not show what lies behind one."""
    outside = tmp_path / "outside"
    (outside / "log").mkdir(parents=True)
    (outside / "log/x").write_bytes(b"theirs")
    await store.put_if_absent("a", b"1")
    (root / "file").symlink_to(outside / "log/x")
    (root / "log").symlink_to(outside / "log")
    assert [listed.key async for listed in store.list("")] == ["a"]
    for key in ("file", "log/x", "log/new"):
        for call in (
            store.get(key),
            store.get_range(key, 0, 1),
            store.head(key),
            store.put_if_absent(key, b"ours"),
            store.put_if_match(key, b"ours", hashlib.sha256(b"theirs").hexdigest()),
            store.delete([key]),
        ):
            with pytest.raises(InvalidSettingsError, match="symbolic link"):
                await call
    assert (outside / "log/x").read_bytes() == b"theirs"
    assert list((outside / "log").iterdir()) == [outside / "log/x"]
    assert (root / "file").is_symlink()


async def test_temporary_files_are_not_looked_for_behind_a_link(store, root, tmp_path):
    """Old ones are removed, which would be somebody else's files."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "old").write_bytes(b"theirs")
    os.utime(outside / "old", (0, 0))
    root.mkdir()
    (root / ".tmp").symlink_to(outside)
    with pytest.raises(InvalidSettingsError, match="symbolic link"):
        await store.put_if_absent("a", b"1")
    assert (outside / "old").exists()


async def test_the_root_may_be_a_link(root, tmp_path):
    """Where the store lies is its owner's choice."""
    (tmp_path / "there").mkdir()
    root.symlink_to(tmp_path / "there")
    async with aclosing(LocalStore(root)) as store:
        await store.put_if_absent("a/b", b"1")
        assert (await store.get("a/b")).data == b"1"
        assert [listed.key async for listed in store.list("")] == ["a/b"]
    assert (tmp_path / "there/a/b").read_bytes() == b"1"


async def test_what_tells_no_length_is_read_to_its_end_or_to_the_limit(tmp_path):
    """A pipe, for one: it has no length, and its content comes when its writer likes."""
    async with aclosing(LocalStore(tmp_path)) as store:
        os.mkfifo(tmp_path / "pipe")
        for limit in (None, 5_000_000, 3_000_000):
            writing = asyncio.create_task(
                asyncio.to_thread(_write_to, tmp_path / "pipe", 4_000_000)
            )
            if limit == 3_000_000:
                with pytest.raises(CorruptionError, match="longer"):
                    await store.get("pipe", max_bytes=limit)
            else:
                assert len((await store.get("pipe", max_bytes=limit)).data) == 4_000_000
            await writing


async def test_ranges_of_a_pipe_are_refused_and_nobody_waits_for_its_writer(store, root):
    await store.put_if_absent("key", b"12345")
    os.mkfifo(root / "pipe")
    of_pipe, of_file = await asyncio.gather(
        store.get_range("pipe", 0, 10), store.get_range("key", 1, 3), return_exceptions=True
    )
    assert isinstance(of_pipe, StorageUnavailableError)
    assert of_file == b"23"


async def test_a_range_behind_all_that_a_file_can_have_is_empty(store):
    await store.put_if_absent("key", b"12345")
    for start in (1 << 40, (1 << 63) - 1, 1 << 63, 1 << 80):
        assert await store.get_range("key", start, start + 1) == b""
        assert await store.get_range("key", start, start + (2 << 20)) == b""
    assert await store.get_range("key", 2, 1 << 80) == b"345"
    with pytest.raises(ObjectNotFoundError):
        await store.get_range("none", 1 << 63, 1 << 64)


def test_reads_that_the_end_of_a_loop_left_behind_are_forgotten(root):
    """A program may use one store in several event loops, one after the other."""
    store = LocalStore(root)
    root.mkdir(exist_ok=True)
    os.mkfifo(root / "pipe")

    async def leave_one() -> None:
        reading = asyncio.ensure_future(store.get("pipe"))
        await turns(3)
        reading.cancel()

    loops = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave_one())
        loop.close()
        loops.append(weakref.ref(loop))
        del loop
    for _ in range(1000):
        _answer_one(root / "pipe")  # the threads of all three reads open it at some time
        asyncio.run(store.head("none"))
        gc.collect()
        if not any(one() for one in loops):
            return
    pytest.fail("event loops that ended are kept")


def _answer_one(path):
    """Write to a pipe if somebody reads it."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def _write_to(path, size_bytes):
    with contextlib.suppress(BrokenPipeError), path.open("wb") as file:
        file.write(bytes(size_bytes))
