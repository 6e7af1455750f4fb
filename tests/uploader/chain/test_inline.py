"""Fragments whose content is in a manifest, until their own objects are in the store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cloud import write_without_objects
from tests.local import turns
from tests.uploader.chain.chain_logs import head_of
from tests.uploader.chain.chains import InlineWorker, run, stored_links
from tests.waiting import until
from uploader import (
    ChainSettings,
    CloudLog,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
    Scrubber,
    fork,
    seal,
)
from uploader.care.admin.destroy import destroy
from uploader.care.restoring.restore import restore
from uploader.chain import ChainRoot, inline, rebuild
from uploader.chain.inline import MOST_OPEN, InlineStore
from uploader.format.layout import SHARD_PREFIX, manifest_key
from uploader.format.link import INLINE_VERSION, VERSION, Link
from uploader.stores import MemoryStore, RetryPolicy
from uploader.stores.port import ObjectNotFoundError
from uploader.stores.wrapper import StoreWrapper
from uploader.testing import FaultyStore
from uploader.testing.faults import Request, busy, fail, hang, happen_then_fail, timeout
from walstore import Wal
from walstore.core.runtime.clock import SystemClock
from walstore.errors import CorruptionError, OutcomeUnknownError, StorageUnavailableError

URL = "memory://log"
FAST = RetryPolicy(attempts=2, jitter=lambda: 0.0, first_wait_seconds=0, longest_wait_seconds=0)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect a quick store, whatever it does."""
    monkeypatch.setattr(inline, "_FIRST_OPEN", MOST_OPEN)
    monkeypatch.setattr(inline, "_QUICK_SECONDS", 1e9)


@asynccontextmanager
async def writing(
    store: FaultyStore, *, inline_bytes: int = 1 << 20, **options
) -> AsyncIterator[CloudWriter]:
    chain = ChainSettings(inline_bytes=inline_bytes)
    async with CloudWriter.open(
        URL, store=store, layout="chain", chain=chain, retry=FAST, **options
    ) as log:
        yield log


async def objects(store: FaultyStore) -> list[str]:
    return [listed.key async for listed in store.inner.list(SHARD_PREFIX)]


async def values(store) -> list[bytes]:
    async with CloudLog.open(URL, store=store) as log:
        return [record.value async for record in log.reader(verify=True)]


@pytest.fixture
async def abandoned(store: FaultyStore) -> FaultyStore:
    """A log of three fragments without objects, whose writer was killed."""
    await write_without_objects(store.inner, b"1", b"2", b"3", url=URL)
    assert await objects(store) == []
    return store


async def test_an_append_waits_for_one_request(store) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), key_prefix=SHARD_PREFIX)
    async with writing(store) as log:
        assert await log.append(b"a") == 1
        await reached.wait()
        assert await objects(store) == []
        assert await values(store) == [b"a"]
        release.set()
    assert len(await objects(store)) == 1
    assert await values(store) == [b"a"]


async def test_the_object_is_what_the_manifest_held(store) -> None:
    async with writing(store) as log:
        await log.append(b"a")
        first = await head_of(store)
        await until(lambda: not log._session.root._inline._open)
        await log.append(b"b")
        second = await head_of(store)
    (held,) = first.inline
    assert (held.slot, first.content(held.path)) == (
        first.slot,
        (await store.get(held.path)).data,
    )
    assert [item.path for item in second.inline] == [second.manifest.fragments[-1].path]


async def test_a_manifest_without_inline_fragments_is_as_before(store) -> None:
    assert ChainSettings().inline_bytes == 0
    async with writing(store, inline_bytes=0) as log:
        await log.append(b"a")
        head = await head_of(store)
    assert (head.inline, head.contents) == ((), {})
    assert b'"version":1' in (await store.get(head.key)).data
    assert (VERSION, INLINE_VERSION) == (1, 2)


async def test_long_fragments_are_objects_first(store) -> None:
    async with writing(store, inline_bytes=3000) as log:
        await log.append(os.urandom(5000))
        assert (await head_of(store)).inline == ()
        await log.append(b"short")
        assert len((await head_of(store)).inline) == 1


async def test_a_later_writer_puts_the_objects(abandoned: FaultyStore) -> None:
    before = await head_of(abandoned)
    assert [item.slot for item in before.inline] == [1, 2, 3]
    assert before.next == before.slot + 1
    async with writing(abandoned) as log:
        await log.append(b"4")
    assert len(await objects(abandoned)) == 4
    links = await stored_links(abandoned.inner)
    for item in before.inline:
        assert (await abandoned.get(item.path)).data == links[item.slot].content(item.path)
    async with writing(abandoned) as log:
        await log.append(b"5")
    assert len((await head_of(abandoned)).inline) <= 2
    assert await values(abandoned) == [b"1", b"2", b"3", b"4", b"5"]


async def test_who_only_reads_puts_nothing(abandoned: FaultyStore) -> None:
    puts = abandoned.count("put_if_absent").requests
    assert await values(abandoned) == [b"1", b"2", b"3"]
    async with CloudLog.open(URL, store=abandoned) as log:
        assert await log.offset_at(0) == 1
        assert [batch.start async for batch in log.reader(2).batches()] == [2, 3]
    assert abandoned.count("put_if_absent").requests == puts


async def test_put_on_request(abandoned: FaultyStore) -> None:
    """For programs that look for objects by themselves."""
    async with CloudLog.open(URL, store=abandoned) as log:
        await log.put_inline()
        assert len(await objects(abandoned)) == 3
        puts = abandoned.count("put_if_absent").requests
        await log.put_inline()
        assert abandoned.count("put_if_absent").requests == puts


async def test_put_on_request_says_what_failed(abandoned: FaultyStore) -> None:
    abandoned.on("put_if_absent", fail(busy()), key_prefix=SHARD_PREFIX, times=50)
    async with CloudLog.open(URL, store=abandoned, retry=FAST) as log:
        with pytest.raises((StorageUnavailableError, OutcomeUnknownError)):
            await log.put_inline()


async def test_every_operation_reads_them(abandoned: FaultyStore, tmp_path) -> None:
    async with Scrubber.open(URL, store=abandoned) as scrubber:
        report = await scrubber.scrub()
    assert (report.records, report.findings) == (3, ())
    forked = MemoryStore()
    await fork(URL, "memory://fork", source_store=abandoned, target_store=forked)
    assert await values(forked) == [b"1", b"2", b"3"]
    await restore(URL, tmp_path / "log", store=abandoned)
    async with Wal.open(tmp_path / "log") as log:
        assert [record.value async for record in log.reader("earliest", follow=False)] == [
            b"1",
            b"2",
            b"3",
        ]


async def test_a_sealed_log_has_all_objects(abandoned: FaultyStore) -> None:
    assert await seal(URL, store=abandoned) == 4
    assert len(await objects(abandoned)) == 3
    assert await values(abandoned) == [b"1", b"2", b"3"]


async def test_collected_ones_leave_the_list(abandoned: FaultyStore) -> None:
    async with CloudLog.open(URL, store=abandoned) as log:
        await log.cursors.commit("reader", 3)
    settings = CollectorSettings(max_wait_seconds=0)
    async with GarbageCollector.open(URL, store=abandoned, settings=settings) as collector:
        await collector.collect()
    async with writing(abandoned) as log:
        await log.append(b"4")
        await log.append(b"5")
        head = await head_of(abandoned)
    assert head.manifest.oldest_offset == 3
    named = {entry.path for entry in head.manifest.fragments}
    assert {item.path for item in head.inline} <= named
    assert await values(abandoned) == [b"3", b"4", b"5"]


async def test_a_destroyed_log_leaves_no_records(store: FaultyStore) -> None:
    """Neither objects nor copies in the manifests that must stay: takeovers, and the last ones."""
    for _ in range(3):
        async with writing(store) as log:
            for _ in range(20):
                await log.append(b"secret")
    assert any(link.contents for link in (await stored_links(store.inner)).values())
    await destroy(URL, confirm=True, store=store)
    assert await objects(store) == []
    left = await stored_links(store.inner)
    assert sum(link.is_takeover for link in left.values()) > 2
    assert not any(link.contents for link in left.values())


async def test_a_destroyed_log_leaves_none(abandoned: FaultyStore) -> None:
    await destroy(URL, confirm=True, store=abandoned)
    assert await objects(abandoned) == []
    newest = max((await stored_links(abandoned.inner)).items())[1]
    assert newest.inline == ()


async def test_a_rebuild_takes_them_from_the_manifests(abandoned: FaultyStore) -> None:
    head = await head_of(abandoned)
    await abandoned.inner.delete([manifest_key(0)])  # the anchor, and so the chain
    found = await rebuild(abandoned, "w")
    assert found.manifest.fragments == head.manifest.fragments
    assert await objects(abandoned) == []
    await rebuild(abandoned, "w", write=True)
    assert len(await objects(abandoned)) == 3
    assert await values(abandoned) == [b"1", b"2", b"3"]


# -- a store that fails ----------------------------------------------------------------------


class Refusing:
    """A fault: objects of fragments are refused as long as it is on."""

    def __init__(self, store: FaultyStore) -> None:
        self.is_on, self.refused = True, 0
        store.on("put_if_absent", self, key_prefix=SHARD_PREFIX, times=10**9)

    async def __call__(self, request: Request[object]) -> object:
        if self.is_on:
            self.refused += 1
            raise busy()
        return await request()


async def test_without_objects_appends_wait_for_them_again(store, caplog, monkeypatch) -> None:
    """One failed put, and objects come first, so that appends report what is wrong; until one succeeds."""
    monkeypatch.setattr(inline, "_RETRY_SECONDS", 0.0)
    refusing = Refusing(store)
    async with writing(store) as log:
        await log.append(b"a")
        root = log._session.root
        await until(lambda: "manifests hold fragments for now" in caplog.text)
        refused = refusing.refused
        waiting = asyncio.create_task(log.append(b"b"))
        await until(lambda: refusing.refused > refused + 4)
        assert not waiting.done()
        refusing.is_on = False
        assert await waiting == 2
        head = await head_of(store)
        assert [item.path for item in head.inline] == [head.manifest.fragments[0].path]
        await until(lambda: not root._inline._open)
        await log.append(b"c")
        assert [item.slot for item in (await head_of(store)).inline] == [head.slot + 1]
    assert await values(store) == [b"a", b"b", b"c"]
    assert len(await objects(store)) == 3


async def test_a_refused_object_is_tried_again_less_and_less_often(store, opened, clock) -> None:
    refusing = Refusing(store)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    entries = run(*[1] * 100)
    assert log.take_content(entries[0].path, b"content", store)
    tried = []
    for entry in entries:
        await log.publish([entry], "w")
        await log.settle()
        tried.append(refusing.refused)
        clock.advance(1)
    assert len(set(tried)) == 7, "at 0, 1, 3, 7, 15, 31 and 63 seconds"
    refusing.is_on = False
    clock.advance(60)
    await log.publish(run(1, seq_no=101, start=101), "w")
    await log.settle()
    assert await objects(store) == [entries[0].path]


async def test_a_task_that_was_cancelled_from_outside_is_begun_again(store, opened) -> None:
    """As asyncio.run does with all tasks when a program ends."""
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), key_prefix=SHARD_PREFIX)
    first, second = run(1, 1)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(first.path, b"content", store)
    await reached.wait()
    (putting,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("put shard"))
    putting.cancel()
    await asyncio.wait((putting,))
    await log.publish([first], "w")
    await log.publish([second], "w")
    await log.settle()
    assert await objects(store) == [first.path]
    await log.aclose()


async def test_closing_after_a_task_was_cancelled_from_outside(store, opened) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), key_prefix=SHARD_PREFIX)
    (entry,) = run(1)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(entry.path, b"content", store)
    await reached.wait()
    (putting,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("put shard"))
    putting.cancel()
    await asyncio.wait((putting,))
    await log.aclose()


async def test_puts_through_a_view_of_manifests_are_a_defect(store, opened) -> None:
    """Their read-back would find the copy in the manifest, and the object need not be there."""
    view = InlineStore(store, InlineWorker(), SystemClock())
    (entry,) = run(1)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(entry.path, b"content", StoreWrapper(view))
    await turns()
    with pytest.raises(AssertionError, match="read back"):
        await log.publish([entry], "w")


async def test_closing_tries_once_more(store) -> None:
    refusing = Refusing(store)
    async with writing(store) as log:
        await log.append(b"a")
        await log._session.root.settle()
        assert await objects(store) == []
        refusing.is_on = False
    assert len(await objects(store)) == 1


async def test_a_slow_uplink_gets_every_byte_once(store, opened, clock) -> None:
    """An object that takes longer than two seconds: for a minute objects come first."""
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), key_prefix=SHARD_PREFIX)
    first, second, third = run(1, 1, 1)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(first.path, b"content", store)
    await reached.wait()
    clock.advance(3)
    assert not log.take_content(second.path, b"content", store)
    release.set()
    await log.publish([first], "w")
    assert (await head_of(store)).inline == ()
    clock.advance(59)
    assert not log.take_content(second.path, b"content", store)
    await log.publish([second], "w")
    clock.advance(2)
    assert log.take_content(third.path, b"content", store)
    await log.publish([third], "w")
    assert len((await head_of(store)).inline) == 1


async def test_a_closing_that_is_cancelled_waits_for_nothing(store, opened) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), key_prefix=SHARD_PREFIX)
    (entry,) = run(1)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(entry.path, b"content", store)
    await log.publish([entry], "w")
    await reached.wait()
    closing = asyncio.create_task(log.aclose())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await log.aclose()
    assert await objects(store) == []


async def test_an_answer_that_is_lost(store) -> None:
    store.on("put_if_absent", happen_then_fail(timeout()), key_prefix=SHARD_PREFIX)
    store.on("get", fail(busy()), key_prefix=SHARD_PREFIX)
    async with writing(store) as log:
        await log.append(b"a")
    assert len(await objects(store)) == 1


async def test_no_more_than_so_many_wait_for_their_objects(store, opened, trusting) -> None:
    release = asyncio.Event()
    store.on("put_if_absent", hang(release), key_prefix=SHARD_PREFIX, times=MOST_OPEN)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    *entries, last = run(*[1] * (MOST_OPEN + 1))
    for entry in entries:
        assert log.take_content(entry.path, b"content", store)
        await log.publish([entry], "w")
    assert not log.take_content(last.path, b"content", store)
    assert len((await head_of(store)).inline) == MOST_OPEN
    release.set()
    await log.settle()
    assert log.take_content(last.path, b"content", store)


async def test_another_object_at_the_key(store, opened) -> None:
    """Whatever it is, nobody can rightly have put it there: the key contains the sum of the records."""
    (entry,) = run(1)
    await store.inner.put_if_absent(entry.path, b"something else")
    log = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(entry.path, b"content", store)
    await log.publish([entry], "w")
    await log.settle()
    assert (await store.get(entry.path)).data == b"content"


# -- the pieces ------------------------------------------------------------------------------


async def test_a_pruned_holder_means_that_the_object_is_there(store, opened) -> None:
    """The reader's manifest is old: the object was put, and the manifest that held it is gone."""
    (entry,) = run(1)
    log = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    assert log.take_content(entry.path, b"content", store)
    await log.publish([entry], "w")
    await log.settle()
    view = InlineStore(store, InlineWorker(), SystemClock())
    assert (await view.get(entry.path)).data == b"content"
    await store.inner.delete([entry.path])
    assert (await view.get(entry.path)).data == b"content"
    assert await view.get_range(entry.path, 2, 4) == b"nt"
    assert await view.get_range(entry.path, 5, 99) == b"nt"
    with pytest.raises(CorruptionError):
        await view.get(entry.path, max_bytes=3)
    with pytest.raises(ObjectNotFoundError):
        await view.get(run(1, seq_no=2, start=2)[0].path)
    with pytest.raises(ObjectNotFoundError):
        await view.get("log/other")


async def test_a_damaged_content_is_found(abandoned: FaultyStore) -> None:
    head = await head_of(abandoned)
    held = head.inline[-1]
    data = head.serialise().replace(head.contents[held.path][:8], b"????????")
    await abandoned.inner.put_if_match(head.key, data, (await abandoned.inner.get(head.key)).etag)
    assert isinstance(Link.parse(data, slot=head.slot), Link)
    with pytest.raises(CorruptionError):
        await values(abandoned)


async def test_the_longest_list(store, opened, trusting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that cannot list one more has the object put first."""
    monkeypatch.setattr("uploader.chain.chain_root.MOST_INLINE", 2)
    release = asyncio.Event()
    entries = run(1, 1, 1)
    store.on("put_if_absent", hang(release), key_prefix=SHARD_PREFIX, times=2)
    log: ChainRoot = opened(inline_bytes=1 << 20)
    await log.load_or_create("w")
    for entry in entries:
        assert log.take_content(entry.path, entry.path.encode(), store)
        await log.publish([entry], "w")
    assert log.head is not None
    assert len(log.head.inline) == 2
    assert await objects(store) == [entries[2].path]
    release.set()
