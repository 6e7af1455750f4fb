"""Eight writers, four readers, a collector and a scrubber on one log, over a store that fails now and then.

Every append is accounted for: what was committed is read by every reader, once and at its offset, before it
is collected; what was called not written is never seen.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count

import pytest

from tests.cloud import URL
from tests.effort import first_seed
from tests.scenarios.test_50_cloud_writer import Jittery, Ledger, open_writer
from uploader.care.admin.scrubber import Scrubber
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.format.findings import Severity
from uploader.format.rollup import RollUpSettings
from uploader.read.cloud_log import CloudLog
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.write.writer_settings import WriterSettings
from walstore.errors import StorageUnavailableError, WalError

WRITERS, READERS, APPENDS = 8, 4, 10_000
WRITING = WriterSettings(
    fragment_bytes=8192,
    interval_seconds=0,
    roll_up=RollUpSettings(fragments_per_snapshot=4, snapshots_per_snapshot=4),
)
COLLECTING = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)
RETRY = RetryPolicy(attempts=6, first_wait_seconds=0.001, longest_wait_seconds=0.01)
FAULTS = 0.02


class Soak:
    """The log, what the appends were told, and what each reader saw."""

    def __init__(self, seed: int, kind: str) -> None:
        self.inner = MemoryStore()
        self.kind = kind
        self.ledger = Ledger()
        self.seen: list[dict[int, bytes]] = [{} for _ in range(READERS)]
        self.written = asyncio.Event()
        self.limit = 0
        self.collections = self.scrubs = 0
        self._seed = seed

    def store(self, who: str, faults: float = FAULTS) -> Jittery:
        return Jittery(self.inner, random.Random(f"{self._seed}{who}"), faults)

    async def write(self, number: int) -> None:
        store = self.store(f"w{number}", 0)  # a store that is opened may fail at once
        async with open_writer(store, WRITING, kind=self.kind) as log:
            store.faults = FAULTS
            for batch in range(APPENDS // WRITERS // 50):
                async with asyncio.TaskGroup() as tasks:
                    for row in range(50):
                        value = b"%d-%d-%d" % (number, batch, row)
                        tasks.create_task(self.ledger.append(log, value.ljust(120, b".")))

    async def read(self, number: int) -> None:
        """Follow the log to its end; the cursor goes behind what was read."""
        seen = self.seen[number]
        store = self.store(f"r{number}", 0)
        async with CloudLog.open(URL, store=store) as log:
            store.faults = FAULTS
            position = 1
            while not (self.written.is_set() and position >= self.limit):
                try:
                    async with log.reader(position, prefetch_bytes=1 << 16) as reader:
                        async for batch in reader.batches():
                            seen.update(zip(batch.offsets, batch.values, strict=True))
                            position = batch.limit
                    await log.cursors.commit(f"reader{number}", position)
                    await log.refresh()
                except WalError as error:
                    if not error.retriable:  # else the store failed more often than it is asked
                        raise

    async def collect(self) -> None:
        attempts = count()
        while not self.written.is_set():
            try:
                async with GarbageCollector.open(
                    URL, store=self.store(f"c{next(attempts)}"), settings=COLLECTING, retry=RETRY
                ) as collector:
                    await collector.collect()
                    self.collections += 1
            except WalError as error:
                if not error.retriable:
                    raise

    async def scrub(self) -> None:
        while not self.written.is_set():
            try:
                async with Scrubber.open(URL, store=self.inner) as scrubber:
                    report = await scrubber.scrub()
            except StorageUnavailableError:
                continue
            wrong = [one for one in report.findings if one.severity is not Severity.NOTE]
            # Times may go back where writers contend (docs/cloud_writer.md).
            assert [one for one in wrong if "older than some" not in one.what] == []
            self.scrubs += 1

    async def run(self) -> None:
        async with open_writer(self.inner, WRITING, kind=self.kind) as log:
            self.ledger.committed[await log.append(b"first")] = b"first"
            for number in range(READERS):
                await log.cursors.commit(f"reader{number}", 1)
        async with asyncio.TaskGroup() as tasks:
            for number in range(READERS):
                tasks.create_task(self.read(number))
            tasks.create_task(self.collect())
            tasks.create_task(self.scrub())
            async with asyncio.TaskGroup() as writers:
                for number in range(WRITERS):
                    writers.create_task(self.write(number))
            async with CloudLog.open(URL, store=self.inner) as log:
                self.limit = log.tail
            self.written.set()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_every_append_is_accounted_for(kind: str) -> None:
    soak = Soak(first_seed("soak"), kind)
    await soak.run()
    ledger = soak.ledger
    told = len(ledger.committed) - 1 + len(ledger.unwritten) + len(ledger.unknown)
    assert told == APPENDS
    for seen in soak.seen:
        assert list(seen) == list(range(1, soak.limit))
        assert len(set(seen.values())) == len(seen), "a record is in the log twice"
        for offset, value in ledger.committed.items():
            assert seen[offset] == value
        assert not ledger.unwritten & set(seen.values())
        assert set(seen.values()) <= set(ledger.committed.values()) | ledger.unknown
    assert soak.scrubs
    # Beside writers that never pause a collector may not get its turn in a chain (docs/chain.md).
    assert soak.collections or kind == "chain"
    async with GarbageCollector.open(URL, store=soak.inner, settings=COLLECTING) as collector:
        await collector.collect()
    async with CloudLog.open(URL, store=soak.inner) as log:
        assert log.head > 1
        await log.verify()
