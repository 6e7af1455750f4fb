"""The cursor of a materializer: the log is trimmed behind the collection, and never past it."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from tests.uploader.versioned.collections import Site, content
from uploader import (
    CloudLog,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
    Materializer,
    MaterializerSettings,
)
from uploader.stores.memory import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import StoreKilled, fail, happen_then_kill, kill, timeout
from walstore import Wal
from walstore.errors import StorageUnavailableError

ROUNDS = 12
PAIRS = MaterializerSettings(batch_records=2)


def record(number: int) -> bytes:
    return json.dumps({"k": number, "v": "x"}).encode()


class Killed(BaseException):
    """The process of the materializer is dead."""


async def test_trimming_a_local_log_never_passes_the_collection(tmp_path):
    """The materializer dies after its append: before its cursor moved, or after that."""
    site = Site()
    async with Wal.open(tmp_path / "log") as log, site.program().opened() as collection:
        cursor = await log.cursor("collection")
        for number in range(ROUNDS):
            await log.append_many([record(4 * number + one) for one in range(4)])

            async def dying(position: int, number: int = number) -> None:
                if number % 2:
                    await cursor.commit(position)
                raise Killed

            doomed = Materializer(log, collection, envelope="append", commit=dying, settings=PAIRS)
            with pytest.raises(Killed):
                await doomed.step()
            upper = await collection.writer("log").upper()
            assert await log.trim(log.durable_limit) <= upper
            whole = Materializer(log, collection, envelope="append", commit=cursor.commit)
            await whole.step(max_wait_seconds=0.0)
            # What is in the collection may go, and nothing else.
            assert await log.trim(log.durable_limit) == await whole.begin() == log.tail
        async with await collection.reader() as reader:
            found = content(await reader.snapshot())
    assert found == [(number, "x", 1) for number in range(4 * ROUNDS)]


@pytest.mark.parametrize("fault", [kill, happen_then_kill])
@pytest.mark.slow
async def test_collecting_a_stored_log_never_passes_the_collection(fault):
    """The process dies as it puts its cursor, or just after that."""
    site, store = Site(), MemoryStore()
    settings = CollectorSettings(interval_seconds=0.1, max_drop_fraction=1.0)
    async with (
        CloudWriter.open("memory://kept", store=store) as writer,
        site.program().opened() as collection,
        GarbageCollector.open("memory://kept", store=store, settings=settings) as collector,
    ):
        for number in range(ROUNDS):
            await writer.append(record(number))
            if not number:
                await collector.cursors.create("collection", 1)
            program = FaultyStore(store)
            if number % 3 == 0:
                program.on("put_if_match", fault(), key_prefix="cursor/")
            async with CloudLog.open("memory://kept", store=program) as log:

                async def commit(position: int, log: CloudLog = log) -> None:
                    await log.cursors.commit("collection", position)

                materializer = Materializer(log, collection, envelope="append", commit=commit)
                with suppress(StoreKilled):
                    await materializer.catch_up()
                upper = await collection.writer("log").upper()
            assert upper == number + 2
            assert (await collector.collect()).head <= upper
        async with await collection.reader() as reader:
            found = content(await reader.snapshot())
        assert (await collector.collect()).head >= ROUNDS - 1
    assert found == [(number, "x", 1) for number in range(ROUNDS)]


async def test_a_cursor_that_could_not_be_moved_is_moved_before_the_next_read():
    site, store = Site(), FaultyStore(MemoryStore())
    async with (
        CloudWriter.open("memory://late", store=store) as writer,
        site.program().opened() as collection,
        CloudLog.open("memory://late", store=store) as log,
    ):
        await log.cursors.create("collection", 1)
        await writer.append(record(1))

        async def commit(position: int) -> None:
            await log.cursors.commit("collection", position)

        materializer = Materializer(log, collection, envelope="append", commit=commit)
        store.on("get", fail(timeout()), key_prefix="cursor/")
        with pytest.raises(StorageUnavailableError):
            await materializer.catch_up()
        assert (await log.cursors.load("collection")).position == 1
        assert (await materializer.step(max_wait_seconds=0.0)).records == 0  # nothing new, but
        assert (await log.cursors.load("collection")).position == 2
