"""The same log in both layouts reads the same: readers do not care which root names the fragments."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.cloud import FAST, cloud_log
from tests.frames import batch_of, build
from tests.waiting import until
from uploader.chain.chain_root import ChainRoot
from uploader.fragments.fragment_builder import encode_fragment
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.root import Root
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from walstore.core.runtime.threads import Worker
from walstore.errors import OffsetNotWrittenError
from walstore.records import Record


async def append(root: Root, store: MemoryStore, count: int = 1) -> None:
    """Publish fragments of ten records; an offset is the record's time, and every 30th is of stream a."""
    for _ in range(count):
        seq_no, start = root.manifest.next_seq_no, root.manifest.next_offset
        records = [
            Record(at, b"%d" % at, None, "b" if at % 30 else "a", timestamp_us=at)
            for at in range(start, start + 10)
        ]
        made = await asyncio.to_thread(encode_fragment, [batch_of(build(records))], timestamp_us=9)
        key = root.fragment_key(seq_no, start=start, limit=made.limit, setsum=made.setsum)
        await store.put_if_absent(key, made.data)
        entry = dataclasses.replace(made.entry(seq_no), path=key)
        await root.publish([entry], "w")


@pytest.fixture(params=[SwappedRoot, ChainRoot])
async def written(request):
    """Return a root of either layout with twenty fragments, and its store."""
    store = FaultyStore(MemoryStore())
    worker = Worker("test")
    root = request.param(store.inner, FAST, worker)
    await root.load_or_create("w")
    await append(root, store.inner, 20)
    yield root, store
    worker.close()


async def test_everything_that_a_log_offers(written) -> None:
    _, store = written
    async with cloud_log(store) as log:
        assert (log.head, log.tail) == (1, 201)
        for verify in (False, True):
            found = [record.offset async for record in log.reader(verify=verify)]
            assert found == list(range(1, 201))
        assert [r.offset async for r in log.reader(stream="a")] == [30, 60, 90, 120, 150, 180]
        assert await log.offset_at(123) == 123
        scanned = [fragment async for fragment in log.scan(15, max_records=20)]
        assert [(each.start, each.limit) for each in scanned] == [(11, 21), (21, 31), (31, 41)]
        with pytest.raises(OffsetNotWrittenError):
            [fragment async for fragment in log.scan(202)]
        assert (await log.verify()).records == 200


async def test_following(written, clock) -> None:
    root, store = written
    async with cloud_log(store, clock) as log:
        reading = asyncio.create_task(anext(log.follow("latest")))
        await clock.wait_for_sleepers()
        before = store.requests
        clock.advance(0.1)
        await until(lambda: store.requests > before)
        await clock.wait_for_sleepers()
        assert store.requests == before + 1  # nothing new takes one request
        await append(root, store.inner)
        clock.advance(1)
        assert (await reading).offset == 201
