"""The end of a chain: where a log was destroyed no late put is believed, and readers are told."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from tests.cloud import URL
from tests.uploader.chain.chains import run, stored_links
from uploader.care.admin.destroy import destroy
from uploader.care.admin.seal import seal
from uploader.format import layout
from uploader.format.layout import MANIFEST_PREFIX, manifest_key
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore.errors import ContentionError, LogNotFoundError, LogSealedError


async def limit_of(store: FaultyStore) -> int:
    """Return where the log ended, as its tombstone says."""
    return json.loads((await store.inner.get(layout.TOMBSTONE)).data)["limit"]["offset"]


async def test_the_last_manifest_stays_and_says_so(store, opened, clock) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    await destroy(URL, store=store.inner, confirm=True, clock=clock)
    for _ in range(2):
        links = await stored_links(store.inner)
        last = links[max(links)].manifest
        assert last.is_destroyed
        assert last.is_sealed
        assert last.oldest_offset == last.next_offset == 8
        last.scrub()
        fresh = opened()
        assert not await fresh.load()
        assert not fresh.is_known
        await destroy(URL, store=store.inner, clock=clock)


@pytest.mark.parametrize("has_written", [True, False])
async def test_a_writer_that_is_open_is_told(store, opened, clock, has_written: bool) -> None:
    """Whether the newest manifest that it knows is its own or another's."""
    log, first = opened(), opened(store.inner)
    await (log if has_written else first).load_or_create("w")
    await (log if has_written else first).publish(run(3), "w")
    await log.load()
    await seal(URL, store=store.inner, clock=clock)
    await destroy(URL, store=store.inner, clock=clock)
    for _ in range(2):
        with pytest.raises(LogSealedError, match="destroyed") as told:
            await log.publish(run(4, seq_no=2, start=4), "w")
        assert told.value.outcome == "not_written"
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await log.load_or_create("w")
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await log.change(lambda manifest: dataclasses.replace(manifest, writer="gc"))


async def test_destroyed_at_each_put_of_a_writer(opened, clock) -> None:
    """What was acknowledged was in the log when it ended, with several manifests under way."""
    items = run(*[2] * 6)
    for nth in range(1, 20):
        store = FaultyStore(MemoryStore())
        log = opened(store)
        await log.load_or_create("w")

        async def end(inner: MemoryStore = store.inner) -> None:
            await destroy(URL, store=inner, confirm=True, clock=clock)

        store.on("put_if_absent", faults.call(end), nth=nth)
        told = await asyncio.gather(
            *(log.publish([item], "w") for item in items), return_exceptions=True
        )
        if nth > len(items):
            assert told == [None] * len(items)
            return
        limit = await limit_of(store)
        for item, one in zip(items, told, strict=True):
            if one is None:
                assert item.limit <= limit
            else:
                assert isinstance(one, LogSealedError | ContentionError), one
    pytest.fail("the writer never got to its end")


@pytest.mark.parametrize("seconds", [0, 599, 7200])
@pytest.mark.parametrize("has_written", [True, False])
async def test_a_put_that_arrives_after_the_end(
    store, opened, clock, seconds: int, has_written: bool
) -> None:
    """At once, when its writer hardly trusts its slot any more, and long after; destroyed once or twice."""
    log, first = opened(), opened(store.inner)
    await (log if has_written else first).load_or_create("w")
    await (log if has_written else first).publish(run(3), "w")
    await log.load()
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix=MANIFEST_PREFIX)
    publishing = asyncio.create_task(log.publish(run(4, seq_no=2, start=4), "w"))
    await reached.wait()
    await destroy(URL, store=store.inner, confirm=True, clock=clock)
    clock.advance(seconds)
    if seconds:
        await destroy(URL, store=store.inner, clock=clock)
    release.set()
    with pytest.raises(LogSealedError):
        await publishing
    assert not await opened().load()


async def test_a_writer_that_was_overtaken_before_the_end(store, opened, clock) -> None:
    """What took its slot stays, too, however many have gone on from there."""
    log, other = opened(), opened(store.inner)
    await log.load_or_create("w")
    await log.publish(run(1), "w")
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix=manifest_key(2))
    publishing = asyncio.create_task(log.publish(run(1, seq_no=2, start=2, salt="late"), "w"))
    await reached.wait()
    await other.load()
    for item in run(*[1] * 80)[1:]:
        await other.publish([item], "other")
    await destroy(URL, store=store.inner, confirm=True, clock=clock)
    links = await stored_links(store.inner)
    assert 2 in links
    assert len(links) < 10
    release.set()
    with pytest.raises(ContentionError) as told:
        await publishing
    assert told.value.outcome == "unknown"


async def test_a_first_manifest_that_comes_late_begins_nothing(store, opened, clock) -> None:
    late = opened()
    store.on("put_if_absent", faults.hang(release := asyncio.Event(), reached := asyncio.Event()))
    creating = asyncio.create_task(late.load_or_create("late"))
    await reached.wait()
    await opened(store.inner).load_or_create("w")
    await destroy(URL, store=store.inner, confirm=True, clock=clock)
    before = await stored_links(store.inner)
    release.set()
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await creating
    assert await stored_links(store.inner) == before


async def test_the_end_is_known_without_the_tombstone(store, opened, clock) -> None:
    """Somebody deleted it by hand, and nothing else."""
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    await destroy(URL, store=store.inner, confirm=True, clock=clock)
    await store.inner.delete([layout.TOMBSTONE])
    before = await stored_links(store.inner)
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await opened().load_or_create("w")
    assert await stored_links(store.inner) == before


@pytest.mark.parametrize("is_all_gone", [False, True])
async def test_a_reader_is_told_that_the_log_is_gone(
    store, opened, clock, is_all_gone: bool
) -> None:
    """Also if an earlier version destroyed it, which left nothing but the tombstone."""
    log, reader = opened(), opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    await reader.load()
    await destroy(URL, store=store.inner, confirm=True, clock=clock)
    if is_all_gone:
        await store.inner.delete([manifest_key(slot) for slot in await stored_links(store.inner)])
        with pytest.raises(LogNotFoundError, match="destroyed"):
            await reader.load()
    else:
        assert await reader.may_have_changed()
        assert not await reader.load()
