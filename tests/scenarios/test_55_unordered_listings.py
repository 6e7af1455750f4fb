"""Stores that list objects in no order: logs work there as anywhere else, and nothing is missed."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.cloud import FAST, URL, RecordingStore, cloud_log, cloud_values, put_fragment, values
from tests.effort import first_seed
from uploader import CloudLog
from uploader.care.admin.destroy import destroy
from uploader.chain import ChainSettings
from uploader.format import layout
from uploader.stores import MemoryStore, RetryingStore, RetryPolicy
from uploader.stores.port import ORDER_PROOF, ListingOrder
from uploader.testing import FaultyStore, ShuffledStore
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore.errors import ContentionError, StorageUnavailableError

CHAIN = ChainSettings(alpha=8)
AT_ONCE = WriterSettings(interval_seconds=0)


def shuffled(inner, seed: int) -> ShuffledStore:
    return ShuffledStore(inner, random.Random(seed).shuffle)


def open_chain(store):
    return CloudWriter.open(
        URL, store=store, layout="chain", chain=CHAIN, settings=AT_ONCE, retry=FAST
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_writers_of_a_chain_take_turns(seed: int) -> None:
    """With more manifests than prove an order."""
    memory = MemoryStore()
    seed += first_seed("listings")
    store = shuffled(memory, seed)
    expected = []
    for turn in range(4):
        async with open_chain(store) as log:
            for number in range(ORDER_PROOF // 3):
                expected.append(b"%d.%d" % (turn, number))
                await log.append(expected[-1])
    assert await cloud_values(shuffled(memory, seed + 100)) == expected


@pytest.mark.slow
async def test_an_order_by_parts_is_found_out() -> None:
    """Each part proves an order, and the newest manifest is in the last one."""

    def in_parts(found) -> None:
        found.sort(key=lambda listed: (-int(listed.key[-1], 16) % 2, listed.key))

    memory = MemoryStore()
    expected = [b"%d" % number for number in range(2 * ORDER_PROOF + 10)]
    async with open_chain(memory) as log:
        for value in expected:
            await log.append(value)
        for turn in range(2):
            async with CloudLog.open(URL, store=ShuffledStore(memory, in_parts)) as reader:
                assert reader.tail == len(expected) + 1
                expected.append(b"more %d" % turn)
                await log.append(expected[-1])
                await reader.refresh()
                assert reader.tail == len(expected) + 1


@pytest.mark.slow
async def test_two_writers_and_a_reader_at_once() -> None:
    """Nothing is lost, doubled or missed by who looks meanwhile."""
    memory = MemoryStore()
    told: dict[int, bytes] = {}

    async def write(log: CloudWriter, name: bytes) -> None:
        for number in range(25):
            value = b"%s%d" % (name, number)
            while True:
                try:
                    offset = await log.append(value)
                    break
                except ContentionError:
                    continue  # not written: the other one was quicker again and again
            assert told.setdefault(offset, value) == value

    async with (
        open_chain(shuffled(memory, 1)) as one,
        open_chain(shuffled(memory, 2)) as other,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(write(one, b"a"))
        group.create_task(write(other, b"b"))
        first = first_seed("more listings")
        for seed in range(first, first + 5):
            before = len(told)
            assert len(await cloud_values(shuffled(memory, seed))) >= before
    assert await cloud_values(shuffled(memory, 3)) == [told[offset] for offset in sorted(told)]
    assert len(told) == 50


async def test_orphans_are_adopted_whatever_the_order() -> None:
    """All of them: none is put a second time."""
    memory = MemoryStore()
    for number in range(20):
        await put_fragment(memory, number + 1, number + 1, [b"%d" % number])
    store = RecordingStore(shuffled(memory, 5))
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        assert log.statistics().adopted_fragments == 20
        await log.append(b"behind them")
    assert set(store.attempts) == {layout.fragment_path(21)}
    assert await cloud_values(memory) == [*(b"%d" % number for number in range(20)), b"behind them"]


async def test_a_cut_listing_is_complete() -> None:
    """Going on behind the last key would miss what an unordered listing had not named yet."""

    class Breaking(ShuffledStore):
        breaks = 5

        async def list(self, prefix, *, after=None):
            count = 0
            async for listed in super().list(prefix, after=after):
                if count == 7 and self.breaks:
                    self.breaks -= 1
                    raise StorageUnavailableError("cut off")
                count += 1
                yield listed

    often = RetryPolicy(attempts=10, first_wait_seconds=0, longest_wait_seconds=0)
    memory = MemoryStore()
    names = [f"a/{number:03}" for number in range(200)]
    for name in names:
        await memory.put_if_absent(name, b"")
    first = first_seed("listings that break off")
    for seed in range(first, first + 10):
        store = RetryingStore(Breaking(memory, random.Random(seed).shuffle), often)
        found = [listed.key async for listed in store.list("a/", after="a/009")]
        assert sorted(found) == names[10:]


async def test_the_newest_manifest_is_destroyed_last() -> None:
    """Those before it do not say that the log is sealed."""
    memory = MemoryStore()
    store = FaultyStore(shuffled(memory, 3))
    async with open_chain(FaultyStore(memory)) as log:
        for value in values(5, 100):
            await log.append(value)
    deleted: list[str] = []
    real = memory.delete

    async def delete(keys) -> None:
        doomed = list(keys)
        deleted.extend(key for key in doomed if key.startswith("manifest/"))
        await real(doomed)

    memory.delete = delete  # type: ignore[method-assign]
    await destroy(URL, confirm=True, store=store)
    assert deleted[-1] == min(deleted)


def test_an_order_is_proven_by_many_keys_alone() -> None:
    order = ListingOrder()
    for number in range(ORDER_PROOF):
        assert not order.is_proven
        order.note(f"{number:04}")
    assert order.is_proven
    order.note("0000")
    assert not order.is_proven
    order.note("9999")
    assert not order.is_proven


@pytest.mark.slow
async def test_an_ordered_listing_is_left_early() -> None:
    """As many names as recovery needs, however long the chain is."""

    class Counting(MemoryStore):
        named = 0

        async def list(self, prefix, *, after=None):
            async for listed in super().list(prefix, after=after):
                self.named += 1
                yield listed

    store = Counting()
    async with open_chain(FaultyStore(store)) as log:
        for number in range(100):
            await log.append(b"%d" % number)
    store.named = 0
    async with cloud_log(store) as log:
        assert store.named <= ORDER_PROOF
        assert len([record async for record in log.reader(stop=log.limit)]) == 100
    assert store.named <= ORDER_PROOF
