"""Sealing, destroying, forking and scrubbing logs whose manifests are a chain."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.cloud import FAST, URL, cloud_log, cloud_values, put_fragment, snapshot
from tests.uploader.logs import numbers
from uploader.care.admin.destroy import destroy
from uploader.care.admin.fork import fork
from uploader.care.admin.scrubber import Scrubber
from uploader.care.admin.seal import seal
from uploader.chain.chain_root import ChainRoot
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.findings import Severity
from uploader.format.layout import MANIFEST_PREFIX, FragmentName
from uploader.format.setsum import Setsum
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import Fault
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, LogNotFoundError, LogSealedError


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def begin(store: ObjectStore, worker: Worker, fragments: int = 4) -> ChainRoot:
    log = ChainRoot(store, FAST, worker)
    await log.load_or_create("writer")
    for _ in range(fragments):
        await log.publish([await put_next(log, store)], "writer")
    return log


async def put_next(log: ChainRoot, store: ObjectStore, ahead: int = 0) -> Fragment:
    """Put the fragment with the log's next number, or one further ahead, of two records each."""
    seq_no = log.manifest.next_seq_no + ahead
    start = log.manifest.next_offset + 2 * ahead
    elsewhere = MemoryStore()
    made = await put_fragment(elsewhere, seq_no, start, numbers(start, start + 2))
    data = (await elsewhere.get(made.path)).data
    key = log.fragment_key(seq_no, start=start, limit=made.limit, setsum=made.setsum)
    with contextlib.suppress(Exception):
        await store.put_if_absent(key, data)
    return Fragment(key, seq_no, start, made.limit, made.num_bytes, made.setsum)


async def tail(store: ObjectStore) -> int:
    async with cloud_log(store) as log:
        return log.tail


async def test_a_sealed_chain_takes_no_more(worker) -> None:
    store = MemoryStore()
    log = await begin(store, worker)
    assert await seal(URL, store=store) == 9
    assert await seal(URL, store=store) == 9
    with pytest.raises(LogSealedError):
        await log.publish([await put_next(log, store)], "writer")
    assert await cloud_values(store) == numbers(1, 9)


@pytest.mark.parametrize("at_once", [1, 3])
async def test_sealed_at_each_call_of_a_writer(worker, at_once) -> None:
    """Also with several manifests under way, each put before the one before it is known to be there."""
    for nth in range(1, 80):
        inner = MemoryStore()
        await begin(inner, worker, 1)
        store = FaultyStore(inner)
        log = ChainRoot(store, FAST, worker)
        await log.load()
        ends: list[int] = []

        async def seal_it(inner: ObjectStore = inner, ends: list[int] = ends) -> None:
            ends.append(await seal(URL, store=inner))

        # Puts only: the listings behind are nobody's business, and are given up when the log is closed.
        store.on("put_if_absent", faults.call(seal_it), nth=nth)
        acknowledged = log.manifest.next_offset
        for _ in range(2):
            run = [await put_next(log, store, ahead) for ahead in range(at_once)]
            told = await asyncio.gather(
                *(log.publish([entry], "writer") for entry in run), return_exceptions=True
            )
            for entry, one in zip(run, told, strict=True):
                assert one is None or isinstance(one, LogSealedError | ContentionError), one
                if one is None:
                    acknowledged = entry.limit
            if any(told):
                break
        await log.aclose()
        end = await tail(inner)
        assert acknowledged <= end
        if not ends:
            assert nth > 3
            return
        assert ends == [end]
        with pytest.raises(LogSealedError):
            again = ChainRoot(inner, FAST, worker)
            await again.load()
            await again.publish([await put_next(again, inner)], "writer")
        assert await tail(inner) == end
    pytest.fail("the writer never got to its end")


async def test_a_manifest_that_comes_late_is_of_no_use(worker) -> None:
    """It was sent before the log was sealed, and arrives long after."""
    inner = MemoryStore()
    await begin(inner, worker)
    store = FaultyStore(inner)
    log = ChainRoot(store, FAST, worker)
    await log.load()
    entry = await put_next(log, inner)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix=MANIFEST_PREFIX)
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(_error(log.publish([entry], "writer")))
        await reached.wait()
        assert await seal(URL, store=inner) == 9
        release.set()
        assert isinstance(await publishing, LogSealedError)
    assert await tail(inner) == 9


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_destroyed_and_killed_at_every_call(worker, fault: type[Fault]) -> None:
    for nth in range(1, 80):
        store = FaultyStore(MemoryStore())
        log = await begin(store.inner, worker)
        await put_next(log, store.inner, 3)
        store.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled, BaseExceptionGroup):
            await destroy(URL, store=store, confirm=True)
        await destroy(URL, store=store.inner, confirm=True)
        left = await snapshot(store.inner)
        assert left.pop(layout.TOMBSTONE)
        assert all(key.startswith(MANIFEST_PREFIX) for key in left)
        assert len(left) < 6
        with pytest.raises(LogNotFoundError, match="destroyed"):
            await ChainRoot(store.inner, FAST, worker).load_or_create("another")
        await destroy(URL, store=store.inner)
        with pytest.raises(LogNotFoundError):
            await cloud_values(store.inner)
        if store._plans:
            assert nth > 10
            return
    pytest.fail("it never got to its end")


async def test_a_fork_has_the_default_layout(worker) -> None:
    source, target = MemoryStore(), MemoryStore()
    await begin(source, worker, 5)
    done = await fork(URL, URL, source_store=source, target_store=target, stop=8)
    assert (done.start, done.limit) == (1, 8)
    assert await cloud_values(target) == numbers(1, 8)
    assert layout.MANIFEST in await snapshot(target)
    assert await cloud_values(source) == numbers(1, 11)


async def test_scrubbing(worker) -> None:
    store = MemoryStore()
    log = await begin(store, worker, 5)
    async with Scrubber.open(URL, store=store) as scrubber:
        report = await scrubber.scrub()
        assert report.findings == ()
        assert report.records == 10
        orphan = await put_next(log, store, 1)
        await store.put_if_absent("shard0001/notes", b"")
        report = await scrubber.scrub()
        assert {(found.severity, found.key) for found in report.findings} == {
            (Severity.NOTE, orphan.path),
            (Severity.NOTE, "shard0001/notes"),
        }
        other = FragmentName(2, 3, 5, Setsum.of_items([b"other"])).key(shards=1)
        await store.put_if_absent(other, b"of a writer that was overtaken")
        report = await scrubber.scrub()
        assert other in {found.key for found in report.findings}
        assert report.is_sound
        async with cloud_log(store) as reading:
            second = (await reading.fragments())[1]
            await store.delete([second.path])
            report = await scrubber.scrub()
        assert [found.key for found in report.errors] == [second.path]


async def _error(awaitable) -> BaseException | None:
    try:
        await awaitable
    except LogSealedError as error:
        return error
    return None
