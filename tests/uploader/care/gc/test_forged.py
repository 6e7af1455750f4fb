"""Documents that no collector made: whoever can put one cannot have anything deleted that the log needs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.uploader.care.gc.collecting import NO_WAIT, announce, collect, drop, garbage_below
from tests.uploader.documents import snapshot_of
from tests.uploader.places import INTERVAL_SECONDS, Place
from uploader import CloudWriter, CollectorSettings, GarbageCollector
from uploader.format import layout
from uploader.format.garbage import Garbage
from uploader.format.layout import FragmentName
from uploader.format.setsum import Setsum
from uploader.stores import MemoryStore
from walstore.errors import CollectionRefusedError, CorruptionError

WANTED = {
    "manifest": layout.MANIFEST,
    "cursor": layout.cursor_path("billing"),
    "newest": layout.fragment_path(12),
    "chain": "manifest/MANIFEST.ffffffffffffffff",
    "newest shard": FragmentName(12, 12, 13, Setsum()).key(shards=1),
    "heads": layout.HEADS,
    "other log": "../other/" + layout.MANIFEST,
}


async def forge(place: Place, garbage: Garbage) -> None:
    """Put an announcement as anybody can who may write to the bucket."""
    await place.inner.put_if_absent(layout.GARBAGE, garbage.serialise())


async def check_refused(place: Place, match: str) -> None:
    """Nothing goes, whoever collects."""
    before = await place.keys()
    for _ in range(2):
        with pytest.raises((CorruptionError, CollectionRefusedError), match=match):
            await collect(place)
    assert before <= await place.keys()


@pytest.mark.parametrize("key", WANTED.values(), ids=WANTED)
async def test_keys_that_are_no_garbage(place: Place, key: str) -> None:
    """Of an announcement that seems to be dropped, since it takes nothing by its numbers."""
    await forge(place, Garbage(fragment_keys=(key,)))
    await check_refused(place, "gc/GARBAGE")
    await forge_again(place, Garbage(start_seq_no=0, limit_seq_no=1, fragment_keys=(key,)))
    await check_refused(place, "gc/GARBAGE")
    assert await place.named() == place.live


async def forge_again(place: Place, garbage: Garbage) -> None:
    etag = (await place.inner.get(layout.GARBAGE)).etag
    await place.inner.put_if_match(layout.GARBAGE, garbage.serialise(), etag)


@pytest.mark.parametrize("key", WANTED.values(), ids=WANTED)
async def test_snapshots_that_are_none(place: Place, key: str) -> None:
    garbage = garbage_below(place, 8)
    pointer = replace(garbage.snapshots_to_drop[0], path_to_snapshot=key)
    await forge(place, replace(garbage, snapshots_to_drop=(pointer,)))
    await check_refused(place, "gc/GARBAGE")
    assert await place.named() == place.live


async def test_a_snapshot_of_a_roll_up_under_way(place: Place) -> None:
    """Nothing names it yet, and a pointer may say of it what it likes: what it holds counts."""
    garbage = garbage_below(place, 8)
    await announce(place, garbage)
    await drop(place, garbage)
    newest = snapshot_of(place.tree.manifest.fragments[:2])
    assert newest.pointer().start >= 8
    await place.inner.put_if_absent(newest.path, newest.serialise())
    in_use = replace(newest.pointer(), start=1, limit=2)
    await forge_again(
        place, replace(garbage, snapshots_to_drop=(*garbage.snapshots_to_drop, in_use))
    )
    await check_refused(place, "holds what is not collected")
    assert await place.named() == place.above(8)


@pytest.mark.parametrize("limit", [13, 1 << 62])
async def test_numbers_without_records(place: Place, limit: int) -> None:
    """They cannot lie below the head that is announced with them, so nobody lists them."""
    await forge(place, Garbage(start_seq_no=1, limit_seq_no=limit))
    before = await place.keys()
    with pytest.raises(CorruptionError, match="cannot all be below offset 1"):
        await collect(place)
    assert await place.keys() == before


async def test_a_rest_that_is_not_there(place: Place) -> None:
    """No manifest comes to name a snapshot that nobody has put; the announcement is given up."""
    garbage = garbage_below(place, 8)
    assert garbage.snapshot_for_root is not None
    await forge(place, replace(garbage, snapshots_to_make=()))
    await collect(place)
    await place.check_collected(8)


async def test_heads_that_say_too_much(place: Place) -> None:
    """A forged record of heads shortens the wait, and no more."""
    await collect(place)
    after = await place.keys()
    head = {"offset": 5, "seq_no": 1 << 60, "since_us": 0, "interval_us": 0}
    etag = (await place.inner.get(layout.HEADS)).etag
    await place.inner.put_if_match(layout.HEADS, json.dumps({"heads": [head]}).encode(), etag)
    place.clock.seconds += 2 * INTERVAL_SECONDS
    await collect(place, NO_WAIT)
    assert await place.keys() == after
    assert await place.named() == place.above(8)


@pytest.mark.parametrize("key", ["manifest/MANIFEST.ffffffffffffffff", "shard"])
async def test_a_chain(key: str) -> None:
    """Its garbage lists keys by design: they have to be of the fragments that go."""
    store = MemoryStore()
    async with CloudWriter.open("memory://x", store=store, layout="chain") as log:
        for value in (b"a", b"b", b"c"):
            await log.append(value)
        await log.cursors.commit("reader", 2)
        newest = log.manifest.fragments[-1].path
    settings = CollectorSettings(interval_seconds=0, max_drop_fraction=1)
    forged = newest if key == "shard" else key
    for garbage in (
        Garbage(fragment_keys=(forged,)),
        Garbage(start_seq_no=0, limit_seq_no=1, fragment_keys=(forged,)),
    ):
        await store.delete([layout.GARBAGE])
        await store.put_if_absent(layout.GARBAGE, garbage.serialise())
        async with GarbageCollector.open("memory://x", store=store, settings=settings) as collector:
            with pytest.raises(CorruptionError, match="gc/GARBAGE"):
                await collector.collect()
    assert await store.head(forged) is not None
