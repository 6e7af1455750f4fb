"""Files of pending batches: a short one is read once, and what is kept of them is bounded."""

from __future__ import annotations

import asyncio

import pytest

from tests.uploader.versioned.collections import HOUR, Program, Site, content, rows
from uploader.versioned.pending_files import PendingFiles
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError


def ranges(program: Program) -> int:
    return program.store.count("get_range").requests + program.store.count("get").requests


async def test_a_short_batch_takes_one_request_and_none_again() -> None:
    site = Site()
    program = site.program()
    async with site.program().opened() as other:
        for lower in range(100):
            await other.writer().append(rows((lower, "a")), lower=lower, upper=lower + 1)
    expected = [(lower, "a", 1) for lower in range(100)]
    async with program.opened() as collection, await collection.reader() as reader:
        before = ranges(program)
        assert content(await reader.snapshot(as_of=99)) == expected
        first = ranges(program) - before
        assert content(await reader.snapshot(as_of=99)) == expected
        again = ranges(program) - before - first
    assert (first - again, again) == (100, 1)  # one looks at the head


async def test_a_short_batch_is_returned_as_it_was_first_seen_is_read_as_it_was() -> None:
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(rows((1, "a")), lower=0, upper=5)
        async with await collection.reader() as reader:
            assert await reader.upper() == 5
            await keeper.compact()
            await collection.writer().append(rows((2, "b")), lower=5, upper=6)
            site.clock.seconds += HOUR / 5
            assert content(await reader.snapshot()) == [(1, "a", 1), (2, "b", 1)]


async def test_damage_to_the_updates_of_a_batch_is_reported_to_their_readers_only() -> None:
    site = Site()
    async with site.program().opened() as collection:
        await collection.writer().append(rows((1, "a")), lower=0, upper=5)
        (key,) = await site.keys("pending/")
        data = bytearray((await site.objects.get(key)).data)
        data[20] ^= 1
        await site.objects.delete([key])
        await site.objects.put_if_absent(key, bytes(data))
        async with await collection.reader() as reader:
            assert await reader.upper() == 5
            with pytest.raises(CorruptionError, match=r"Parquet|digest"):
                await reader.snapshot()
        await collection.writer().append(rows((2, "b")), lower=5, upper=6)


async def test_the_memory_for_decoded_batches_is_bounded() -> None:
    site = Site()
    worker = Worker("test")
    try:
        async with site.program().opened() as collection:
            for lower in range(40):
                text = f"{lower}" * 2000
                await collection.writer().append(
                    rows(*((key, f"{text}{key}") for key in range(20))),
                    lower=lower,
                    upper=lower + 1,
                )
            files = [(one.key, one.size_bytes) async for one in site.objects.list("pending/")]
            kept = PendingFiles(site.objects, worker, kept_bytes=1 << 20)
            footers = await kept.footers(files)
            assert [footer.lower for footer in footers if footer] == list(range(40))
            assert 0 < kept.held_bytes <= 1 << 20
            kept.forget(lambda _: False)
            assert kept.held_bytes == 0
    finally:
        await asyncio.to_thread(worker.close)
