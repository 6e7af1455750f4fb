"""A process that forks while logs are open: the child touches nothing, the parent goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests import programs
from tests.cloud import URL, cloud_values
from tests.local import SMALL, contents, open_descriptors
from tests.scenarios.stores import Holder
from tests.waiting import until
from tests.walstore.serve.served import serving
from uploader import CloudWriter, DirtyLog, WriterSettings
from uploader.stores import MemoryStore
from walstore import Wal, WalClosedError, WalLockedError, WalStore
from walstore.core.files.posix import PosixFileSystem

QUICK = WriterSettings(interval_seconds=0)

Act = Callable[[], Awaitable[object]]


class Child:
    """A fork of this process that runs something, says what came of it, and lives on until released."""

    def __init__(self, act: Act) -> None:
        said, say = os.pipe()
        released, release = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
            self.pid = os.fork()
        if not self.pid:
            _live(act, say, released, (said, release))
        os.close(say)
        os.close(released)
        self._said, self._release = said, release

    async def said(self) -> str:
        """Return what came of it: "done", or the problem."""
        return (await asyncio.to_thread(os.read, self._said, 1 << 16)).decode()

    async def end(self) -> None:
        os.close(self._release)
        os.close(self._said)
        await asyncio.to_thread(os.waitpid, self.pid, 0)


def _live(act: Act, say: int, released: int, others: tuple[int, int]) -> None:
    """Be the child. Never returns."""
    try:
        signal.alarm(20)  # a child that hangs ends, and says nothing
        for descriptor in others:
            os.close(descriptor)
        try:
            asyncio.run(act())
            said = "done"
        except BaseException:  # noqa: BLE001 - the parent is told
            said = traceback.format_exc()
        os.write(say, said.encode() or b"?")
        os.read(released, 1)
    finally:
        os._exit(0)


@contextlib.asynccontextmanager
async def forked(act: Act) -> AsyncIterator[Child]:
    """A child that did something without a problem, and lives for the length of the block."""
    child = Child(act)
    try:
        said = await child.said()
        if said != "done":
            pytest.fail(f"in the child:\n{said}", pytrace=False)
        yield child
    finally:
        await child.end()


async def refuses(*calls: Callable[[], object]) -> None:
    """Assert that each call says at once in which process the log was opened."""
    for number, call in enumerate(calls):
        with pytest.raises(WalClosedError, match="opened in process") as caught:
            async with asyncio.timeout(60):
                found = call()
                if isinstance(found, Awaitable):
                    await found
                pytest.fail(f"call {number} was accepted")
        assert f"process {os.getppid()}," in str(caught.value)
        assert caught.value.outcome == "not_written"


async def test_a_log_cannot_be_used_in_a_child(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"1")
        cursor = await wal.cursor("c")
        reader = wal.follow()
        producer = wal.producer("p")

        async def use() -> None:
            await refuses(
                lambda: wal.append_nowait(b"x"),
                lambda: wal.append(b"x"),
                lambda: wal.append(b"x", durability="memory"),
                lambda: wal.append_many([b"x"]),
                lambda: producer.append(b"x", sequence=1),
                lambda: wal.transaction().__aenter__(),
                lambda: wal.fence("owner"),
                lambda: wal.open_stream("s"),
                lambda: wal.trim(1),
                lambda: wal.rotate(),
                lambda: wal.flush(),
                lambda: anext(reader),
                lambda: anext(wal.follow("earliest")),
                lambda: anext(wal.follow("latest")),
                lambda: anext(wal.follow("latest", visibility="accepted")),
                lambda: wal.offset_at(0),
                lambda: wal.timestamp_at(1),
                lambda: wal.cursor("d"),
                lambda: wal.cursors(),
                lambda: cursor.commit(1),
                lambda: wal.aclose(),
            )
            assert wal.is_closing
            assert wal.statistics().failure is not None
            with pytest.raises(WalLockedError) as caught:
                await Wal.open(log_directory)
            assert f"process {os.getppid()} " in str(caught.value)
            assert open_descriptors(log_directory) == []

        async with forked(use):
            await wal.append(b"2")
            await wal.rotate()
    assert [record.value for record in await contents(log_directory)] == [b"1", b"2"]


async def test_a_writer_in_object_storage_cannot_be_used_in_a_child() -> None:
    store = MemoryStore()
    async with (
        DirtyLog.open("memory://dirty", settings=QUICK) as dirty,
        CloudWriter.open(URL, store=store, settings=QUICK, note=dirty.note_for("log")) as log,
    ):
        await log.append(b"1")

        async def use() -> None:
            await refuses(
                lambda: log.append(b"x"),
                lambda: log.append(b"x", stream="eu"),
                lambda: log.append_many([b"x"]),
                lambda: log.flush(),
                lambda: log.open_stream("eu"),
                lambda: log.close_stream("eu"),
                lambda: log.streams(),
                lambda: log.cursors.commit("c", 1),
                lambda: log.aclose(),
                lambda: dirty.mark("log", 1, 2),
                lambda: dirty.dirty(),
                lambda: dirty.roll_up({}),
                lambda: dirty.aclose(),
            )
            assert log.statistics().tail == 2

        async with forked(use):
            await log.append(b"2")
        assert [found.name for found in await dirty.dirty()] == ["log"]
    assert await cloud_values(store) == [b"1", b"2"]


async def test_nothing_hangs_that_was_under_way_at_the_fork(log_directory: Path, faulty) -> None:
    """Not even with a call on each thread, and every lock of the log held by one of them."""
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as wal:
        await wal.append(b"1")
        cursor = await wal.cursor("c")
        with faulty.hold("datasync") as hold, faulty.hold("lock", name=".lock") as cursors:
            appending = asyncio.create_task(wal.append(b"2"))
            committing = asyncio.create_task(cursor.commit(1))
            await hold.wait_entered()
            await cursors.wait_entered()
            wal.append_nowait(b"3")
            writes = faulty.count("pwrite")

            async def use() -> None:
                await refuses(
                    lambda: wal.append(b"x"),
                    lambda: wal.flush(),
                    lambda: wal.wait_durable(3),
                    lambda: wal.rotate(),
                    lambda: cursor.commit(1),
                    lambda: wal.aclose(),
                )
                assert faulty.count("pwrite") == writes

            async with forked(use):
                hold.release()
                cursors.release()
                await appending
                await committing
    found = await contents(log_directory)
    assert [record.value for record in found] == [b"1", b"2", b"3"]


@pytest.mark.slow
async def test_the_log_can_be_opened_again_while_a_child_lives(log_directory: Path) -> None:
    wal = await Wal.open(log_directory, settings=SMALL)
    await wal.append(b"1")

    async def nothing() -> None:
        pass

    async with forked(nothing):
        await wal.aclose()
        async with Wal.open(log_directory, settings=SMALL) as again:
            await again.append(b"2")
        async with Holder("log", log_directory) as other:
            assert other.said == b"open"


async def test_a_child_may_open_what_its_parent_closed(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"1")

    async def append() -> None:
        async with Wal.open(log_directory, settings=SMALL) as wal:
            await wal.append(b"of the child")
        grandchild = Child(lambda: refuses(lambda: wal.append(b"x")))
        assert "opened in process" not in await grandchild.said()
        await grandchild.end()

    async with forked(append):
        pass
    found = await contents(log_directory)
    assert [record.value for record in found] == [b"1", b"of the child"]


async def test_a_copy_of_the_lock_in_a_child_does_not_hold_it(log_directory: Path) -> None:
    """A descriptor may reach a child past the hook: one that was just being opened by a thread."""
    fs = PosixFileSystem()
    path = log_directory.parent / "LOCK"
    lock = await asyncio.to_thread(fs.lock, path, "the owner")
    copy = os.dup(lock._fd)

    async def nothing() -> None:
        pass

    async with forked(nothing):
        with pytest.raises(WalLockedError, match="the owner"):
            await asyncio.to_thread(fs.lock, path, "another")
        await asyncio.to_thread(lock.release)
        again = await asyncio.to_thread(fs.lock, path, "another")
        os.close(copy)
        with pytest.raises(WalLockedError, match="another"):
            await asyncio.to_thread(fs.lock, path, "a third")
        await asyncio.to_thread(again.release)


async def test_a_reader_of_another_process_cannot_be_used_in_a_child(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"1")
        async with Wal.open_readonly(log_directory) as log:
            waiting = asyncio.create_task(log.wait_limit(3))
            await asyncio.sleep(0)

            async def use() -> None:
                await refuses(
                    lambda: log.refresh(),
                    lambda: log.wait_limit(9),
                    lambda: log.read(1, 2, 1),
                    lambda: anext(log.follow()),
                    lambda: log.registers(),
                    lambda: log.cursor("c"),
                    lambda: log.aclose(),
                )
                assert open_descriptors(log_directory) == []
                async with Wal.open_readonly(log_directory) as own:
                    assert own.limit >= 2

            async with forked(use):
                await wal.append(b"2")
                await waiting


async def test_a_connection_cannot_be_used_in_a_child(tmp_path: Path) -> None:
    """Nor does a child keep it from ending."""
    async with serving(tmp_path / "log") as served, served.connect() as remote:
        await remote.append(b"1")
        waiting = asyncio.create_task(anext(remote.follow("latest")))
        async with remote.transaction() as txn, remote.group("g", start="latest") as group:
            await txn.append(b"2")

            async def use() -> None:
                await refuses(
                    lambda: remote.append(b"x"),
                    lambda: txn.append(b"x"),
                    lambda: txn.rollback(),
                    lambda: group.fetch(),
                    lambda: group.__aexit__(None, None, None),
                    lambda: remote.aclose(),
                )
                assert remote.is_closing
                gc.collect()

            async with forked(use):
                await remote.append(b"3")
        assert (await waiting).value == b"3"
        assert (txn.span, remote.client.reconnects) == (range(3, 4), 0)

        async def nothing() -> None:
            pass

        async with forked(nothing):
            await remote.aclose()
            await until(lambda: not served.server.connections)


async def test_a_store_cannot_be_used_in_a_child(tmp_path: Path) -> None:
    async with WalStore.open(tmp_path / "store", settings=SMALL) as store:
        wal = await store.wal("a")
        await wal.append(b"1")

        async def use() -> None:
            await refuses(
                lambda: store.wal("a"),
                lambda: store.wal("b"),
                lambda: store.logs(),
                lambda: store.close_log("a"),
                lambda: store.delete("a"),
                lambda: store.aclose(),
                lambda: wal.append(b"x"),
                lambda: wal.append_nowait(b"x"),
            )
            with pytest.raises(WalLockedError):
                await WalStore.open(tmp_path / "store")
            assert open_descriptors(tmp_path) == []

        async with forked(use):
            await wal.append(b"2")
            await (await store.wal("b")).append(b"3")
            await store.aclose()
            async with WalStore.open(tmp_path / "store") as again:
                assert await again.logs() == ["a", "b"]


async def test_a_lock_of_a_pool_that_is_held_at_the_fork(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        with wal._engine.worker._pool.guard, wal._engine.fs._anchor._guard:
            child = Child(lambda: refuses(lambda: wal.append(b"x"), lambda: wal.aclose()))
        assert await child.said() == "done"
        await child.end()


PROGRAM = """
import asyncio, atexit, os, sys, warnings
from walstore import Wal

warnings.simplefilter("ignore", DeprecationWarning)
with asyncio.Runner() as runner:
    async def begin():
        wal = await Wal.open(sys.argv[1])
        await wal.append(b"1")
        return wal

    async def end():
        await wal.append(b"2")
        await wal.aclose()

    wal = runner.run(begin())
    pid = os.fork()
    if not pid:
        atexit._run_exitfuncs()  # as multiprocessing ends a child
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    runner.run(end())
"""


@pytest.mark.slow
async def test_the_interpreter_of_a_child_ends(log_directory: Path) -> None:
    """It joins no thread: it has none."""
    done = await asyncio.to_thread(programs.run, PROGRAM, log_directory)
    assert (done.stdout, done.stderr) == ("7\n", "")
    found = await contents(log_directory)
    assert [record.value for record in found] == [b"1", b"2"]
