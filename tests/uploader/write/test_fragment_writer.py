"""Putting fragments: each number once, and nothing of anybody else's is touched."""

from __future__ import annotations

import asyncio

import pytest

from tests.cloud import MemorySource, put_fragment, values
from tests.uploader.answers import PUT_FAULTS
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import decode_fragment, verify_fragment
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import MemoryStore, PreconditionFailedError, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, happen_then_fail, timeout
from uploader.write.fragment_puts import FragmentPuts, FragmentWriter, LateFragmentError, gather
from uploader.write.stall_guard import StallGuard, WriteContext
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, CorruptionError, StorageUnavailableError

CONTENT = values(30, 50)
KEY = layout.fragment_path(1)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def source() -> MemorySource:
    """Thirty records in batches of ten."""
    found = MemorySource()
    for start in range(0, 30, 10):
        found.append(CONTENT[start : start + 10])
    return found


@pytest.fixture
def writer(store: FaultyStore, impatient: RetryPolicy, manifests: SwappedRoot, worker: Worker):
    stall_guard = StallGuard(
        url=store.url, retry=impatient, clock=impatient.clock, silent_seconds=10
    )
    context = WriteContext(
        store=store,
        root=manifests,
        stall_guard=stall_guard,
        retry=impatient,
        clock=SystemClock(),
        worker=worker,
    )
    return FragmentWriter(context, FragmentPuts(context))


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


@pytest.fixture
def manifests(store: FaultyStore, impatient: RetryPolicy, worker: Worker) -> SwappedRoot:
    """A root that nobody created yet."""
    return SwappedRoot(store, impatient, worker)


async def no_turn() -> None:
    raise AssertionError("nobody waits for a turn here")


async def put(writer: FragmentWriter, source: MemorySource, start=1, limit=21, turn=no_turn):
    batches = await gather(source, start, limit, most_bytes=None)
    return await writer.put(source, 1, writer.begin(), batches, my_turn=turn)


# -- gathering -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "limit", "most_bytes", "spans"),
    [
        (1, 31, None, [(1, 11), (11, 21), (21, 31)]),
        (5, 23, None, [(5, 11), (11, 21), (21, 23)]),
        (5, 6, None, [(5, 6)]),
        (1, 31, 1, [(1, 11)]),
        (1, 31, 700, [(1, 11), (11, 21)]),
        (7, 31, 1 << 20, [(7, 11), (11, 21), (21, 31)]),
        (7, 15, 1 << 20, [(7, 11), (11, 15)]),
    ],
)
async def test_local_batches(source, start, limit, most_bytes, spans) -> None:
    batches = await gather(source, start, limit, most_bytes=most_bytes)
    assert [(batch.start, batch.limit) for batch in batches] == spans


# -- putting ---------------------------------------------------------------------------------


async def test_a_fragment_is_what_its_entry_says(writer, source, store) -> None:
    entry = await put(writer, source, 3, 21)
    assert (entry.path, entry.seq_no, entry.start, entry.limit) == (KEY, 1, 3, 21)
    data = (await store.inner.get(KEY)).data
    assert verify_fragment(data, entry).values == CONTENT[2:20]
    assert (writer.puts.put_fragments, writer.puts.put_bytes) == (1, len(data))
    assert store.requests == 1


@pytest.mark.parametrize("times", [1, 4, 23])
@pytest.mark.parametrize("fault", PUT_FAULTS)
async def test_a_put_whose_answer_is_strange(writer, source, store, fault, times) -> None:
    """However often: the object is put once, with the bytes its entry speaks of."""
    store.on("put_if_absent", PUT_FAULTS[fault](), times=times)
    if fault == "412 out of nothing" and times > 4:
        with pytest.raises(PreconditionFailedError):  # a store that refuses for no reason
            await put(writer, source)
        return
    entry = await put(writer, source)
    assert decode_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[:20]
    assert writer.puts.put_fragments == 1


async def test_no_answer_to_anything_for_a_while(writer, source, store) -> None:
    """Neither the put nor the reading back: asked again with the same bytes until it is known."""
    store.on("put_if_absent", happen_then_fail(timeout()), times=7)
    store.on("get", fail(timeout("not_written")), times=7)
    entry = await put(writer, source)
    assert decode_fragment((await store.inner.get(KEY)).data, entry).start == 1


async def test_a_refusal_for_good(writer, source, store) -> None:
    store.on("put_if_absent", fail(StorageUnavailableError("forbidden", retriable=False)))
    with pytest.raises(StorageUnavailableError, match="forbidden"):
        await put(writer, source)
    assert writer.puts.put_fragments == 0


@pytest.mark.parametrize("happens", [False, True])
async def test_cancelled_under_way(writer, source, store, happens) -> None:
    """It may have been put; the next one finds out, by content."""
    reached = asyncio.Event()
    hang = faults.happen_then_hang if happens else faults.hang
    store.on("put_if_absent", hang(asyncio.Event(), reached))
    putting = asyncio.create_task(put(writer, source))
    await reached.wait()
    putting.cancel()
    await asyncio.wait((putting,))
    assert putting.cancelled()
    entry = await put(writer, source)
    assert decode_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[:20]
    assert (writer.puts.put_fragments, writer.adopted_fragments) == (not happens, happens)


# -- taken numbers ---------------------------------------------------------------------------


async def test_an_earlier_put_of_the_same_records_is_taken(writer, source, store) -> None:
    """Its own time differs, so its bytes do; the records are the same."""
    found = await put_fragment(store.inner, 1, 1, CONTENT[:20], timestamp_us=99)
    assert await put(writer, source) == found
    assert (writer.puts.put_fragments, writer.adopted_fragments) == (0, 1)


@pytest.mark.parametrize("limit", [2, 20, 22, 31])
async def test_an_earlier_put_of_another_cut_must_be_adopted(writer, source, store, limit) -> None:
    """Somebody might publish it, so it must not be replaced."""
    await put_fragment(store.inner, 1, 1, CONTENT[: limit - 1])
    before = (await store.inner.get(KEY)).data
    with pytest.raises(LateFragmentError):
        await put(writer, source)
    assert (await store.inner.get(KEY)).data == before


@pytest.mark.parametrize(("start", "limit"), [(1, 9), (1, 21), (12, 31), (30, 31)])
async def test_an_earlier_put_that_nobody_can_publish_is_replaced(
    writer, source, store, start, limit
) -> None:
    """But only when it is its turn: what comes before it is published then, and ends elsewhere."""
    await put_fragment(store.inner, 1, start, CONTENT[start - 1 : limit - 1])
    before = (await store.inner.get(KEY)).data
    waits, published = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        waits.set()
        await published.wait()

    async with asyncio.TaskGroup() as group:
        putting = group.create_task(put(writer, source, 11, 21, turn))
        await waits.wait()
        assert (await store.inner.get(KEY)).data == before
        published.set()
    entry = putting.result()
    assert decode_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[10:20]
    assert writer.puts.put_fragments == 1


@pytest.mark.parametrize("fault", PUT_FAULTS)
async def test_a_replacement_whose_answer_is_strange(writer, source, store, fault) -> None:
    await put_fragment(store.inner, 1, 5, CONTENT[4:9])
    store.on("put_if_match", PUT_FAULTS[fault](), times=3)
    entry = await put(writer, source, 11, 21, _at_once)
    assert decode_fragment((await store.inner.get(KEY)).data, entry).values == CONTENT[10:20]


async def _at_once() -> None:
    pass


async def test_another_one_replaces_it_first(writer, source, store) -> None:
    await put_fragment(store.inner, 1, 5, CONTENT[4:9])

    async def turn() -> None:
        etag = (await store.inner.get(KEY)).etag
        await store.inner.put_if_match(KEY, b"theirs", etag)

    with pytest.raises(ContentionError, match="another writer"):
        await put(writer, source, 11, 21, turn)
    assert (await store.inner.get(KEY)).data == b"theirs"


@pytest.mark.parametrize(
    ("start", "content"),
    [
        (1, values(20, 51)),
        (1, [*CONTENT[:19], b""]),
        (2, CONTENT[:20]),
        (1, [*CONTENT, b"beyond what is durable here"]),
        (100, [b"theirs"]),
    ],
)
async def test_a_foreign_fragment_is_left_alone(writer, source, store, start, content) -> None:
    await put_fragment(store.inner, 1, start, content)
    before = (await store.inner.get(KEY)).data
    with pytest.raises(ContentionError, match="holds other records than this log"):
        await put(writer, source)
    assert (await store.inner.get(KEY)).data == before


async def test_what_cannot_be_compared_any_more_is_not_ours(writer, source, store) -> None:
    await put_fragment(store.inner, 1, 1, CONTENT[:5])
    source.head = 11
    with pytest.raises(ContentionError):
        await put(writer, source, 11, 21)


async def test_something_else_lies_there(writer, source, store) -> None:
    await store.inner.put_if_absent(KEY, b"not a fragment")
    with pytest.raises(CorruptionError, match=KEY):
        await put(writer, source)


# -- orphans ---------------------------------------------------------------------------------


async def test_orphans_behind_the_manifest(writer, store, manifests) -> None:
    """In order, with their own times; what the manifest names is not read."""
    entries = [
        await put_fragment(store.inner, 1 + at, 1 + 5 * at, CONTENT[5 * at : 5 * at + 5], at)
        for at in range(4)
    ]
    assert len(await writer.puts.orphans()) == 4
    manifest = Manifest.initial("w").apply_fragments(entries[:2], "w")
    await store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())
    await manifests.load()
    before = store.count("get").requests
    found = await writer.puts.orphans()
    assert [(orphan.entry, orphan.timestamp_us) for orphan in found] == [
        (entries[2], 2),
        (entries[3], 3),
    ]
    assert store.count("get").requests == before + 2


async def test_an_orphan_that_goes_away_while_it_is_looked_at(writer, store) -> None:
    await put_fragment(store.inner, 1, 1, CONTENT[:5])
    await put_fragment(store.inner, 2, 6, CONTENT[5:9])

    async def remove() -> None:
        await store.inner.delete([KEY])

    store.on("get", faults.call(remove))
    assert [orphan.entry.seq_no for orphan in await writer.puts.orphans()] == [2]


@pytest.mark.parametrize("key", [KEY, "log/notes", "log/Uuid=1.parquet"])
async def test_foreign_objects_among_the_fragments(writer, store, key) -> None:
    await store.inner.put_if_absent(key, b"?")
    with pytest.raises(CorruptionError, match=key):
        await writer.puts.orphans()


@pytest.mark.parametrize("key", [f"log/{KEY}", "log/cursor/a.json", f"{KEY}/a"])
async def test_another_log_below_has_no_orphans_of_this_one(writer, store, key) -> None:
    """One at ``log`` has keys that look like this one's but for a folder."""
    await store.inner.put_if_absent(key, b"?")
    assert await writer.puts.orphans() == []


async def test_proof(writer, source, store) -> None:
    await put_fragment(store.inner, 1, 5, CONTENT[4:17], timestamp_us=123)
    orphan = await writer.puts.inspect(KEY)
    assert await writer.adopt(source, orphan) == orphan.entry
    assert writer.adopted_fragments == 1
    other = MemorySource()
    other.append([b"x"] * 30)
    with pytest.raises(ContentionError):
        await writer.adopt(other, orphan)
    assert writer.adopted_fragments == 1
