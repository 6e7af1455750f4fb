"""What lies in a bucket may have any length. It is read with a limit, and long documents are parsed aside."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cloud import FAST, URL
from tests.uploader.logs import replace
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector, Scrubber
from uploader.care.admin.destroy import destroy
from uploader.care.admin.fork import fork
from uploader.format import layout
from uploader.format.document import MOST_BYTES, MOST_SMALL_BYTES
from uploader.layouts.log_session import Layout
from uploader.partitioned.partitions import PARTITIONS, read_partitions
from uploader.root import cas
from uploader.root.garbage_file import announced_head
from uploader.root.holds import Keepers
from uploader.root.stored_document import (
    MOST_FRAGMENT_BYTES,
    find_stored_or_damaged,
    parse_aside,
    read_object,
    read_stored,
)
from uploader.stores import MemoryStore, StoredObject
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore
from uploader.testing.faults import call, happen_then_fail, timeout
from uploader.write.writer_settings import WriterSettings
from walstore.core.runtime import threads
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError


class Limited(MemoryStore):
    """Remembers with which limits it was asked."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.limits: dict[str, int | None] = {}

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        self.limits[key] = max_bytes
        return await super().get(key, max_bytes=max_bytes)

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        return (await super().get(key)).data[start:limit]


@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_no_object_is_read_without_a_limit(kind: Layout) -> None:
    """In a whole life: written, read, held, collected, scrubbed, forked and destroyed."""
    store, copy = Limited(), Limited()
    settings = WriterSettings(interval_seconds=0)
    async with CloudWriter.open(
        URL, store=store, retry=FAST, settings=settings, layout=kind
    ) as log:
        for number in range(6):
            await log.append(b"%d" % number)
        await log.cursors.commit("reader", 4)
        await log.cursors.delete("other")
    async with CloudWriter.open(URL, store=store, retry=FAST, settings=settings) as log:
        await log.append(b"again")
    async with CloudLog.open(URL, store=store) as reading:
        assert len([record async for record in reading.reader()]) == 7
    eager = CollectorSettings(interval_seconds=0, delete_pause_seconds=0)
    async with GarbageCollector.open(URL, store=store, settings=eager, retry=FAST) as collector:
        assert (await collector.collect()).head == 4
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        assert (await scrubber.scrub()).is_sound
    await fork(URL, URL, source_store=store, target_store=copy, retry=FAST)
    await destroy(URL, confirm=True, store=store, retry=FAST)
    for key, limit in {**copy.limits, **store.limits}.items():
        assert limit is not None, key
        assert limit <= (MOST_FRAGMENT_BYTES if key.endswith(".parquet") else MOST_BYTES), key
    assert {layout.GARBAGE, layout.HEADS, layout.cursor_path("reader")} <= set(store.limits)


@pytest.mark.parametrize("key", [layout.MANIFEST, layout.GARBAGE, layout.cursor_path("reader")])
async def test_what_is_too_long_is_not_read(key: str) -> None:
    store = Limited()
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        await log.append(b"1")
        await log.cursors.commit("reader", 1)
    await store.delete([key])
    await store.put_if_absent(key, bytes(MOST_BYTES + 1))
    with pytest.raises(CorruptionError, match="longer") as caught:
        async with GarbageCollector.open(URL, store=store, retry=FAST) as collector:
            await collector.plan()
    assert caught.value.path == key
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        assert key in {finding.key for finding in (await scrubber.scrub()).errors}


async def test_the_limit_goes_by_the_key_unless_one_is_given() -> None:
    store = Limited()
    for key in ("a.parquet", "a"):
        await store.put_if_absent(key, b"data")
        await read_object(store, key)
    assert store.limits == {"a.parquet": MOST_FRAGMENT_BYTES, "a": MOST_BYTES}
    with pytest.raises(CorruptionError, match="longer"):
        await read_object(store, "a", most_bytes=3)
    assert (await read_stored(store, "a", bytes.upper)).value == b"DATA"


async def test_what_was_put_can_be_read_back_however_long_it_is() -> None:
    """To tell whether it was put; reading it for what it says is refused."""
    store = FaultyStore(MemoryStore())
    store.on("put_if_absent", happen_then_fail(timeout()))
    data = bytes(MOST_BYTES + 1)
    assert (await cas.create(store, "a", data, retry=FAST)).outcome is cas.PutOutcome.COMMITTED
    with pytest.raises(CorruptionError):
        await read_object(store, "a")


# -- threads ---------------------------------------------------------------------------------


def _thread(_: bytes) -> int:
    return threading.get_ident()


async def test_a_long_document_is_parsed_on_a_thread() -> None:
    """One with a worker always is; a short one without is not worth waking a thread for."""
    here = threading.get_ident()
    assert await parse_aside(_thread, b"{}") == here
    assert await parse_aside(_thread, bytes(100_000)) != here
    worker = Worker("test")
    try:
        assert await parse_aside(_thread, b"{}", worker=worker) != here
    finally:
        worker.close()


async def test_errors_of_a_thread_are_those_of_the_document() -> None:
    store = MemoryStore()
    await store.put_if_absent(layout.GARBAGE, b"[" * 100_000)
    with pytest.raises(CorruptionError, match="GARBAGE"):
        await announced_head(store)


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (layout.GARBAGE, announced_head),
        (layout.cursor_path("a"), lambda store: Keepers(store).list()),
        (layout.hold_path("a"), lambda store: Keepers(store).list()),
        (PARTITIONS, read_partitions),
    ],
    ids=["announcement", "cursor", "hold", "partitions"],
)
async def test_a_long_document_does_not_hold_the_loop_up(
    key: str, read: Callable[[ObjectStore], Awaitable[object]]
) -> None:
    """Its error comes from a thread. A short one is parsed at once."""
    store = MemoryStore()
    for size_bytes, is_on_thread in ((10, False), (MOST_SMALL_BYTES, True)):
        await replace(store, key, b"x" * size_bytes)
        with pytest.raises(CorruptionError) as caught:
            await read(store)
        files = [Path(frame.filename) for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert (Path(threads.__file__) in files) is is_on_thread


# -- damaged documents -----------------------------------------------------------------------


async def test_a_damaged_document_has_the_etag_of_that_very_object() -> None:
    store = MemoryStore()
    parse = partial(json.loads)
    etag = await store.put_if_absent("a", b"damaged")

    def refuse(data: bytes) -> str:
        raise CorruptionError("no", path="a")

    found = await find_stored_or_damaged(store, "a", refuse)
    assert found is not None
    assert (found.value, found.etag) == (None, etag)
    assert isinstance(found.damage, CorruptionError)
    found = await find_stored_or_damaged(store, "a", refuse, most_bytes=3)
    assert found is not None
    assert (found.value, found.etag) == (None, etag)
    etag = await store.put_if_match("a", b"[1]", etag)
    whole = await find_stored_or_damaged(store, "a", parse)
    assert whole is not None
    assert (whole.value, whole.etag, whole.damage) == ([1], etag, None)
    assert await find_stored_or_damaged(store, "b", parse) is None


async def test_a_document_that_is_replaced_while_it_is_judged() -> None:
    """It was too long when it was read, and another one, or nothing, is there when its ETag is asked for."""
    store = FaultyStore(MemoryStore())
    await store.put_if_absent("a", b"[1, 2, 3]")
    store.on("head", call(lambda: replace(store.inner, "a", b"[1]")))
    found = await find_stored_or_damaged(store, "a", json.loads, most_bytes=3)
    assert found is not None
    assert (found.value, found.etag) == ([1], (await store.get("a")).etag)
    await replace(store.inner, "a", b"[1, 2, 3]")
    store.on("head", call(lambda: store.inner.delete(["a"])))
    assert await find_stored_or_damaged(store, "a", json.loads, most_bytes=3) is None
