"""S9: a log belongs to the thread and event loop that opened it; any other is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import FAST, URL, cloud_values, snapshot
from tests.local import KIB, SMALL, UnsyncedFileSystem, contents, read_values
from tests.waiting import until, wait_until
from uploader import CloudLog, CloudWriter, DirtyLog, WriterSettings
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.layouts.log_session import Layout
from uploader.stores import MemoryStore
from walstore import (
    Consumer,
    Cursor,
    ReadonlyWal,
    Transaction,
    Wal,
    WalClosedError,
    WalError,
    WalStore,
    WrongLoopError,
)
from walstore.core.read.reader import Reader

_SPILLING = replace(SMALL, transaction_memory_bytes=16 * KIB)

CALLS: dict[str, Callable[[Wal], object]] = {
    "append_nowait": lambda wal: wal.append_nowait(b"x"),
    "append_nowait with a key": lambda wal: wal.append_nowait(b"x", b"k"),
}
COROUTINES: dict[str, Callable[[Wal], object]] = {
    "append": lambda wal: wal.append(b"x"),
    "append at memory": lambda wal: wal.append(b"x", durability="memory"),
    "append_many": lambda wal: wal.append_many([b"x"]),
    "flush": lambda wal: wal.flush(),
    "rotate": lambda wal: wal.rotate(),
    "trim": lambda wal: wal.trim(1),
    "read": lambda wal: anext(wal.follow()),
    "wait_durable": lambda wal: wal.wait_durable(1),
    "offset_at": lambda wal: wal.offset_at(0),
    "timestamp_at": lambda wal: wal.timestamp_at(1),
    "cursor, a new one": lambda wal: wal.cursor("new"),
    "cursor, one that exists": lambda wal: wal.cursor("mine"),
    "cursors": lambda wal: wal.cursors(),
    "delete_cursor": lambda wal: wal.delete_cursor("mine"),
    "transaction": lambda wal: wal.transaction().__aenter__(),
    "consumer": lambda wal: wal.consumer("new").__aenter__(),
    "producer": lambda wal: wal.producer("p").append(b"x"),
    "close_stream": lambda wal: wal.close_stream("eu"),
    "fence": lambda wal: wal.fence("me"),
    "open_stream": lambda wal: wal.open_stream("eu"),
    "aclose": lambda wal: wal.aclose(),
}


CURSOR: dict[str, Callable[[Cursor], object]] = {
    "commit": lambda cursor: cursor.commit(2),
    "rewind": lambda cursor: cursor.rewind(1),
    "refresh": lambda cursor: cursor.refresh(),
    "renew": lambda cursor: cursor.renew(),
    "delete": lambda cursor: cursor.delete(),
}
TRANSACTION: dict[str, Callable[[Transaction], object]] = {
    "append": lambda txn: txn.append(b"x"),
    "append of what spills": lambda txn: txn.append(bytes(_SPILLING.transaction_memory_bytes)),
    "append of what is no record": lambda txn: txn.append("x"),  # type: ignore[arg-type]
    "set_registers": lambda txn: txn.set_registers({"a": "b"}),
    "rollback": lambda txn: txn.rollback(),
    "leaving the block": lambda txn: txn.__aexit__(None, None, None),
    "leaving the block by an error": lambda txn: txn.__aexit__(ValueError, ValueError(), None),
}
CONSUMER: dict[str, Callable[[Consumer[Any]], object]] = {
    "anext": lambda consumer: anext(consumer),
    "fetch": lambda consumer: consumer.fetch(max_wait_seconds=0.1),
    "batches": lambda consumer: anext(consumer.batches()),
    "seek": lambda consumer: consumer.seek(3),
    "commit": lambda consumer: consumer.commit(),
    "commit of an offset": lambda consumer: consumer.commit(3),
    "leaving the block": lambda consumer: consumer.__aexit__(None, None, None),
}
READONLY: dict[str, Callable[[ReadonlyWal], object]] = {
    "head": lambda log: log.head,
    "limit": lambda log: log.limit,
    "tail": lambda log: log.tail,
    "epoch": lambda log: log.epoch,
    "refresh": lambda log: log.refresh(),
    "read": lambda log: anext(log.follow()),
    "wait_durable": lambda log: log.wait_durable(1),
    "offset_at": lambda log: log.offset_at(0),
    "timestamp_at": lambda log: log.timestamp_at(1),
    "registers": lambda log: log.registers(),
    "streams": lambda log: log.streams(),
    "cursor": lambda log: log.cursor("new"),
    "cursors": lambda log: log.cursors(),
    "delete_cursor": lambda log: log.delete_cursor("mine"),
    "consumer": lambda log: log.consumer("new").__aenter__(),
    "aclose": lambda log: log.aclose(),
}
STORE: dict[str, Callable[[WalStore], object]] = {
    "wal, one that is open": lambda store: store.wal("open"),
    "wal, one that is closed": lambda store: store.wal("closed"),
    "wal, a new one": lambda store: store.wal("new"),
    "logs": lambda store: store.logs(),
    "close_log": lambda store: store.close_log("open"),
    "delete": lambda store: store.delete("open"),
    "delete of one that is closed": lambda store: store.delete("closed"),
    "aclose": lambda store: store.aclose(),
}
WRITER: dict[str, Callable[[CloudWriter], object]] = {
    "append": lambda log: log.append(b"x"),
    "append to a stream": lambda log: log.append(b"x", stream="eu"),
    "append to a new stream": lambda log: log.append(b"x", stream="us"),
    "append at an offset": lambda log: log.append(b"x", expect_offset=2),
    "append of what is no record": lambda log: log.append("x"),  # type: ignore[arg-type]
    "append_many": lambda log: log.append_many([b"x", b"y"]),
    "flush": lambda log: log.flush(),
    "open_stream": lambda log: log.open_stream("us"),
    "close_stream": lambda log: log.close_stream("eu"),
    "streams": lambda log: log.streams(),
    "cursors.load": lambda log: log.cursors.load("mine"),
    "cursors.list": lambda log: log.cursors.list(),
    "cursors.create": lambda log: log.cursors.create("new", 1),
    "cursors.commit": lambda log: log.cursors.commit("mine", 2),
    "cursors.rewind": lambda log: log.cursors.rewind("mine", 1),
    "cursors.pin": lambda log: log.cursors.pin("pin", 1, seconds=9),
    "cursors.renew": lambda log: log.cursors.renew("mine", seconds=9),
    "cursors.delete": lambda log: log.cursors.delete("mine"),
    "cursors.delete_damaged": lambda log: log.cursors.delete_damaged("mine"),
    "aclose": lambda log: log.aclose(),
}
DIRTY: dict[str, Callable[[DirtyLog], object]] = {
    "mark": lambda log: log.mark("a", 1, 2),
    "a note": lambda log: log.note_for("a")([Fragment("f", 1, 1, 2, 1, Setsum())]),
    "purge": lambda log: log.purge("a"),
    "dirty": lambda log: log.dirty(),
    "roll_up": lambda log: log.roll_up({"a": 2}),
    "aclose": lambda log: log.aclose(),
}


async def awaited(call: Callable[[], object]) -> object:
    """Make a call, and wait for it if it is one to be awaited."""
    found = call()
    return await found if isinstance(found, Awaitable) else found


async def refused(call: Callable[[], object]) -> None:
    """Assert that a call is refused on the event loop of another thread, as one that did nothing."""
    error = await in_thread(lambda: asyncio.run(awaited(call)))
    assert isinstance(error, WrongLoopError), repr(error)
    assert error.outcome == "not_written"


async def in_thread(call: Callable[[], object]) -> object:
    """Return what a call returned or raised in a thread of its own."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join)
    return outcome[0]


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_S9_a_call_from_another_thread(log_directory: Path, name: str, is_busy: bool) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"first")
        if is_busy:
            wal.append_nowait(b"waits")  # from here on the fast path would be taken
        tail = wal.tail
        error = await in_thread(lambda: CALLS[name](wal))
        assert isinstance(error, WrongLoopError)
        assert error.outcome == "not_written"
        assert "run_coroutine_threadsafe" in str(error)
        assert wal.tail == tail
        assert await wal.append(b"last") == tail
    assert [record.value for record in await contents(log_directory)][-1] == b"last"


@pytest.mark.parametrize("name", COROUTINES)
async def test_S9_a_call_from_another_event_loop(log_directory: Path, name: str) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"first")
        await wal.cursor("mine")
        await refused(lambda: COROUTINES[name](wal))
        assert [cursor.name for cursor in await wal.cursors()] == ["mine"]
        assert await wal.append(b"second") == 2
        assert await read_values(wal) == [b"first", b"second"]


@pytest.mark.parametrize("name", CURSOR)
async def test_S9_a_cursor(log_directory: Path, name: str) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append_many([b"1", b"2", b"3"])
        cursor = await wal.cursor("mine", lease_seconds=1000)
        await cursor.commit(3)
        await refused(lambda: CURSOR[name](cursor))
        assert (cursor.position, cursor.target) == (3, 3)
        await cursor.commit(4)
        assert await cursor.refresh() == 4


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("name", TRANSACTION)
async def test_S9_a_transaction(log_directory: Path, name: str, spills: bool) -> None:
    values = [bytes(_SPILLING.transaction_memory_bytes // 2)] * 3 if spills else [b"1", b"2"]
    async with Wal.open(log_directory, settings=_SPILLING) as wal:
        async with wal.transaction() as txn:
            for value in values:
                await txn.append(value)
            await refused(lambda: TRANSACTION[name](txn))
            assert await txn.append(b"last") == len(values)
        assert txn.span == range(1, len(values) + 2)
        assert await read_values(wal) == [*values, b"last"]
        assert wal.registers == {}


@pytest.mark.parametrize("name", CONSUMER)
async def test_S9_a_consumer(log_directory: Path, name: str) -> None:
    """Also what was handed out last is as unprocessed as before."""
    async with Wal.open(log_directory) as wal:
        await wal.append_many([b"1", b"2", b"3"])
        async with wal.consumer("mine", auto_commit_seconds=1000) as consumer:
            assert (await anext(consumer)).value == b"1"
            await refused(lambda: CONSUMER[name](consumer))
            assert consumer.position == 2
            with pytest.raises(KeyError):
                async with wal.consumer("other", auto_commit_seconds=1000) as other:
                    await anext(other)
                    await refused(lambda: CONSUMER[name](other))
                    raise KeyError
            assert other.committed == 1
            assert (await anext(consumer)).value == b"2"
        assert consumer.committed == 3


async def test_S9_a_transaction_of_a_consumer(log_directory: Path, tmp_path: Path) -> None:
    async with Wal.open(log_directory) as wal, Wal.open(tmp_path / "output") as output:
        await wal.append_many([b"1", b"2", b"3"])
        async with wal.consumer("mine", output=output) as consumer:
            await refused(lambda: consumer.transaction().__aenter__())
            transaction = consumer.transaction()
            async with transaction as txn:
                await txn.append((await anext(consumer)).value)
                await refused(lambda: transaction.__aexit__(None, None, None))
                await refused(lambda: transaction.__aexit__(ValueError, ValueError(), None))
                assert consumer.position == 2
            assert consumer.committed == 2
        assert await read_values(output) == [b"1"]


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("name", READONLY)
async def test_S9_a_log_open_for_reading(log_directory: Path, name: str, is_waiting: bool) -> None:
    """Also while somebody waits at home, whom a look from elsewhere would wake on the wrong thread."""
    async with Wal.open(log_directory) as wal, Wal.open_readonly(log_directory) as log:
        await wal.append(b"first")
        await wal.cursor("mine")
        waiting = None
        if is_waiting:
            assert log.limit == 2
            waiting = asyncio.create_task(log.wait_durable(2))
            await until(lambda: log.is_polling)
        await wal.append(b"second")
        await refused(lambda: READONLY[name](log))
        if waiting is not None:
            await waiting
        assert [cursor.name for cursor in await log.cursors()] == ["mine"]
        found = [record.value async for record in log.reader(follow=False)]
        assert found == [b"first", b"second"]
        await log.refresh()


@pytest.mark.parametrize("name", STORE)
async def test_S9_a_store(tmp_path: Path, name: str) -> None:
    async with WalStore.open(tmp_path / "store") as store:
        opened = await store.wal("open")
        await opened.append(b"1")
        await store.wal("closed")
        await store.close_log("closed")
        await refused(lambda: STORE[name](store))
        assert store.statistics().open_logs == 1
        assert await store.logs() == ["closed", "open"]
        assert await store.wal("open") is opened
        assert await opened.append(b"2") == 2
        assert await (await store.wal("closed")).append(b"1") == 1
    async with WalStore.open(tmp_path / "store") as store:  # its lock was given back
        assert await read_values(await store.wal("open")) == [b"1", b"2"]


@contextlib.asynccontextmanager
async def cloud_writer(layout: Layout) -> AsyncIterator[tuple[CloudWriter, MemoryStore]]:
    """Yield a writer of a log with one record, a stream and a cursor, and the store."""
    store, quick = MemoryStore(), WriterSettings(interval_seconds=0)
    async with CloudWriter.open(URL, store=store, retry=FAST, settings=quick, layout=layout) as log:
        await log.append(b"first", stream="eu")
        await log.cursors.commit("mine", 1)
        yield log, store


@pytest.mark.parametrize("layout", ["swap", "chain"])
@pytest.mark.parametrize("name", WRITER)
async def test_S9_a_writer_in_object_storage(name: str, layout: Layout) -> None:
    async with cloud_writer(layout) as (log, store):
        before = await snapshot(store)
        await refused(lambda: WRITER[name](log))
        assert await snapshot(store) == before
        assert await log.append(b"last", stream="eu", expect_offset=2) == 2
        assert (await log.cursors.commit("mine", 3)).position == 3
        assert list(await log.streams()) == ["eu"]
    assert await cloud_values(store) == [b"first", b"last"]


@pytest.mark.parametrize("name", ["append", "append to a stream", "append_many", "flush", "aclose"])
async def test_S9_a_writer_in_object_storage_that_is_busy(name: str) -> None:
    async with cloud_writer("chain") as (log, store):
        appending = [asyncio.create_task(log.append(b"%d" % at)) for at in range(3)]
        await asyncio.sleep(0)
        await refused(lambda: WRITER[name](log))
        assert await asyncio.gather(*appending) == [2, 3, 4]
    assert await cloud_values(store) == [b"first", b"0", b"1", b"2"]


async def test_S9_what_may_be_looked_at_of_a_writer_in_object_storage() -> None:
    async with cloud_writer("swap") as (log, _):
        look = lambda: (log.url, log.head, log.tail, log.manifest, log.statistics().tail)  # noqa: E731
        assert await in_thread(look) == look()


def test_S9_a_writer_in_object_storage_that_outlives_its_event_loop() -> None:
    kept: list[CloudWriter] = []

    async def leave_open() -> None:
        kept.append(await CloudWriter.open(URL, store=MemoryStore(), retry=FAST))

    asyncio.run(leave_open())  # cancels the writer's tasks, which closes it
    for call in WRITER.values():
        with pytest.raises(WalClosedError):
            asyncio.run(awaited(lambda call=call: call(kept[0])))


@pytest.mark.parametrize("name", DIRTY)
async def test_S9_a_dirty_log(name: str) -> None:
    store, quick = MemoryStore(), WriterSettings(interval_seconds=0)
    async with DirtyLog.open(URL, store=store, retry=FAST, settings=quick) as log:
        await log.mark("a", 1, 2)
        before = await snapshot(store)
        await refused(lambda: DIRTY[name](log))
        assert await snapshot(store) == before
        await log.mark("b", 1, 2)
        assert [dirty.name for dirty in await log.dirty()] == ["a", "b"]
        assert (await log.roll_up({"a": 2, "b": 2})).kept == 0


async def test_S9_what_may_be_looked_at_from_anywhere(log_directory: Path, tmp_path: Path) -> None:
    async with Wal.open(log_directory) as wal, WalStore.open(tmp_path / "store") as store:
        await wal.append_many([b"1"], stream="eu", update={"a": "b"})
        limits = (wal.head, wal.tail, wal.durable_limit, wal.visible_limit, wal.uploaded_limit)

        def look() -> object:
            assert wal.statistics().tail == 2
            assert store.statistics().open_logs == 0
            seen = (wal.head, wal.tail, wal.durable_limit, wal.visible_limit, wal.uploaded_limit)
            return seen, dict(wal.registers), list(wal.streams())

        assert await in_thread(look) == (limits, {"a": "b"}, ["eu"])


def test_S9_another_event_loop_of_the_same_thread(log_directory: Path, tmp_path: Path) -> None:
    """While that of the log stands still, and is not closed."""

    async def append(wal: Wal) -> Cursor:
        await wal.append(b"1")
        return await wal.cursor("mine")

    with asyncio.Runner() as home:
        wal = home.run(awaited(lambda: Wal.open(log_directory)))
        assert isinstance(wal, Wal)
        cursor = home.run(append(wal))
        log = home.run(awaited(lambda: Wal.open_readonly(log_directory)))
        assert isinstance(log, ReadonlyWal)
        store = home.run(awaited(lambda: WalStore.open(tmp_path / "store")))
        assert isinstance(store, WalStore)
        calls: list[Callable[[], object]] = [
            lambda: wal.append_many([b"x"]),
            lambda: cursor.commit(2),
            lambda: log.refresh(),
            lambda: store.wal("new"),
            lambda: store.aclose(),
        ]
        for call in calls:
            with pytest.raises(WrongLoopError):
                asyncio.run(awaited(call))
        assert log.limit == 2  # no event loop runs, and it is the right thread
        home.run(cursor.commit(2))
        for thing in (log, wal, store):
            home.run(thing.aclose())


async def test_S9_many_threads_at_once_put_nothing_into_the_log(log_directory: Path) -> None:
    refused = [0] * 8

    async with Wal.open(log_directory) as wal:

        def intrude(number: int) -> None:
            for _ in range(2000):
                try:
                    wal.append_nowait(b"intruder")
                except WalError:
                    refused[number] += 1

        threads = [threading.Thread(target=intrude, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        offsets = []
        while any(thread.is_alive() for thread in threads):
            offsets += [wal.append_nowait(b"%d" % (len(offsets) + at)) for at in range(100)]
            await wal.flush()
        assert offsets == list(range(1, len(offsets) + 1))
    assert refused == [2000] * 8
    found = [record.value for record in await contents(log_directory)]
    assert found == [b"%d" % at for at in range(len(offsets))]


def test_S9_the_next_event_loop_of_the_same_thread(log_directory: Path) -> None:
    """A log that was left open when its event loop ended: the record is refused, and not in the log."""
    kept: list[Wal] = []

    async def leave_open() -> None:
        kept.append(await Wal.open(log_directory))
        await kept[0].append(b"first")

    async def come_again() -> None:
        for call in (kept[0].append(b"second"), kept[0].append_many([b"third"])):
            with pytest.raises(WalError) as refused:
                await call
            assert refused.value.outcome == "not_written"
        with pytest.raises(WalError):
            kept[0].append_nowait(b"fourth")

    def is_told() -> bool:
        kept.clear()
        gc.collect()  # the log's thread may still be about to let go of it
        return bool(told.list)

    asyncio.run(leave_open())  # cancels the log's tasks, which closes it
    asyncio.run(come_again())
    found = asyncio.run(contents(log_directory))
    assert [record.value for record in found] == [b"first"]
    with pytest.warns(ResourceWarning, match="its accepted records were written") as told:
        wait_until(is_told)


def test_the_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(WrongLoopError("x")))
    assert isinstance(error, RuntimeError)
    assert (str(error), error.outcome, error.retriable) == ("x", "not_written", False)


# -- what readers have in memory -------------------------------------------------------------------

_READS: dict[str, Callable[[Reader], object]] = {
    "anext": lambda reader: anext(reader),
    "batches": lambda reader: anext(reader.batches()),
    "fetch": lambda reader: reader.fetch(max_wait_seconds=0),
}
_VALUES = [b"%d" % number for number in range(10)]


@contextlib.asynccontextmanager
async def half_read(
    kind: str, directory: Path, how: str
) -> AsyncIterator[tuple[Reader, Callable[[], Awaitable[None]]]]:
    """Yield a reader that has delivered a few of ten records and holds others, and what closes its log."""
    async with contextlib.AsyncExitStack() as stack:
        fs = UnsyncedFileSystem()
        wal = await stack.enter_async_context(Wal.open(directory / "log", settings=SMALL, fs=fs))
        for at in range(0, 10, 2):
            await wal.append_many(_VALUES[at : at + 2])
        log: Wal | ReadonlyWal | CloudLog = wal
        if kind == "readonly":
            log = await stack.enter_async_context(ReadonlyWal.open(wal.path))
        elif kind == "cloud":
            url = (directory / "bucket").as_uri()
            async with CloudWriter.open(url) as writer:
                await writer.append_many(_VALUES)
            log = await stack.enter_async_context(CloudLog.open(url))
        reader = (
            wal.follow(visibility="accepted") if kind == "accepted" else log.reader(follow=False)
        )
        if how == "batches":
            assert len(await reader.fetch(max_records=2)) == 2
        else:
            assert [(await anext(reader)).value for _ in range(3)] == _VALUES[:3]
        yield reader, log.aclose


@pytest.mark.parametrize("how", ["half a batch", "batches"])
@pytest.mark.parametrize("kind", ["wal", "accepted", "readonly"])
async def test_S9_what_a_reader_has_in_memory_is_for_its_own_thread(
    tmp_path: Path, kind: str, how: str
) -> None:
    async with half_read(kind, tmp_path, how) as (reader, _):
        before = reader.position
        for read in _READS.values():
            await refused(lambda read=read: read(reader))
            assert reader.position == before
        found = [(await anext(reader)).value for _ in range(11 - before)]
        assert found == _VALUES[before - 1 :]


@pytest.mark.parametrize("how", ["half a batch", "batches"])
@pytest.mark.parametrize("kind", ["wal", "accepted", "readonly", "cloud"])
async def test_what_a_reader_has_in_memory_ends_with_its_log(
    tmp_path: Path, kind: str, how: str
) -> None:
    async with half_read(kind, tmp_path, how) as (reader, close):
        before = reader.position
        await close()
        for read in _READS.values():
            with pytest.raises(WalClosedError):
                await awaited(lambda read=read: read(reader))
            assert reader.position == before
