"""Fragments begun before they are cut, by writers that contend over a store that is slow and fails.

Every fragment that waits gets a head start, however small; see ``uploader/fragments/fragment_builder.py``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud import FAST, SEGMENTS, SMALL, URL, cloud_log, tier, unreferenced
from tests.effort import first_seed
from tests.local import UnsyncedFileSystem, check_contiguous
from tests.scenarios.test_50_cloud_writer import Ledger
from uploader.care.admin.scrubber import Scrubber
from uploader.format.findings import Severity
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore
from uploader.testing.faults import Request, happen_then_fail, timeout
from uploader.testing.latency import LatencyStore, lognormal
from uploader.write import publish_pipeline
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import Wal
from walstore.core.runtime.clock import SystemClock
from walstore.errors import OffsetMismatchError, WalError

_T = TypeVar("_T")

LAYOUTS = ["swap", "chain"]
WRITING = WriterSettings(interval_seconds=0.001, parallel_puts=True)
SHIPPING = dataclasses.replace(SMALL, fragment_bytes=1 << 20, interval_seconds=0.001)
PUT_SECONDS = 0.004
"""Median of what a put takes; long enough for most fragments to wait for their turn."""


@pytest.fixture(autouse=True)
def _however_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_pipeline, "_HEAD_START_WORK", 0)


SURE_FAULTS = {2, 4, 7}
"""The calls of a store that fail whatever chance says: a busy machine makes few calls in all."""


CLOCK = SystemClock()


class Unreliable(FaultyStore):
    """A slow store whose calls sometimes fail, and whose answers are sometimes lost."""

    def __init__(self, inner: ObjectStore, seed: str, faults: float = 0.05) -> None:
        self._chance = random.Random(seed)
        latency = lognormal(PUT_SECONDS, 0.8, chance=self._chance.random)
        super().__init__(
            LatencyStore(inner, {"put_if_absent": latency, "put_if_match": latency, "get": latency})
        )
        self._share = faults
        self.is_shaky = False
        """Whether calls fail by now: opening a log may fail with them."""
        self.made_faults = 0
        self._shaky_calls = 0

    async def _call(self, request: Request[_T]) -> _T:
        if self.is_shaky and request.kind != "list" and self._is_to_fail():
            self.made_faults += 1
            if self._chance.random() < 0.5:
                raise timeout()
            await happen_then_fail(timeout())(request)
        return await super()._call(request)

    def _is_to_fail(self) -> bool:
        self._shaky_calls += 1
        return self._shaky_calls in SURE_FAULTS or self._chance.random() < self._share


async def parts(store: ObjectStore) -> Counter[int]:
    """Return how many fragments have so many parts."""
    async with cloud_log(store) as log:
        paths = [entry.path for entry in await log.fragments()]
    found: Counter[int] = Counter()
    for path in paths:
        data = (await store.get(path)).data
        found[pq.read_metadata(pa.BufferReader(data)).num_row_groups] += 1
    return found


async def check_sound(store: ObjectStore, *, is_alone: bool = True) -> None:
    """Scrub the log. Times are in order as long as its writer was alone."""
    async with Scrubber.open(URL, store=store) as scrubber:
        findings = (await scrubber.scrub()).findings
    wrong = [one for one in findings if one.severity is not Severity.NOTE]
    assert [one for one in wrong if is_alone or "older than some" not in one.what] == []
    if is_alone:
        async with cloud_log(store) as log:
            check_contiguous([record async for record in log.reader()])


class Appending:
    """One writer's appends: plain ones, groups, at an offset, with times of their own."""

    def __init__(self, log: CloudWriter, ledger: Ledger, who: str, seed: str) -> None:
        self.asked = 0
        self._log = log
        self._ledger = ledger
        self._who = who
        self._chance = random.Random(seed)

    @property
    def begun(self) -> int:
        """How many fragments were begun before they were cut, lately."""
        return len(self._log._commit_loop.schedule._head_starts)

    async def run(self, count: int) -> None:
        chance = self._chance
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                value = f"{self._who}{number:05d}".encode().ljust(chance.randrange(10, 900), b".")
                kind = chance.random()
                if kind < 0.1:
                    tasks.create_task(self._append_at(value))
                elif kind < 0.2:
                    lead_us = chance.randrange(-2000, 2000)
                    time_us = CLOCK.now_us() + lead_us
                    tasks.create_task(
                        self._told(self._log.append(value, timestamp_us=time_us), value)
                    )
                else:
                    tasks.create_task(self._told(self._log.append(value, b"key"), value))
                if chance.random() < 0.5:
                    await CLOCK.sleep(chance.random() * PUT_SECONDS)
                if chance.random() < 0.01:
                    await self._log.flush()

    async def _append_at(self, value: bytes) -> None:
        expected = self._log._queue.tail
        try:
            await self._told(self._log.append(value, expect_offset=expected), value, expected)
        except OffsetMismatchError:
            self._ledger.unwritten.add(value)

    async def _told(
        self, appending: Awaitable[int], value: bytes, expected: int | None = None
    ) -> None:
        """Note what an append was told."""
        self.asked += 1
        try:
            offset = await appending
        except OffsetMismatchError:
            raise
        except WalError as error:
            kinds = {"not_written": self._ledger.unwritten, "unknown": self._ledger.unknown}
            kinds[error.outcome].add(value)
        else:
            assert expected in {None, offset}
            assert self._ledger.committed.setdefault(offset, value) == value


async def contend(seed: int, kind: str, writers: int, appends: int) -> None:
    inner, ledger = MemoryStore(), Ledger()
    found: list[Appending] = []
    stores = [Unreliable(inner, f"{seed} {number}") for number in range(writers)]

    async def write(number: int) -> None:
        async with CloudWriter.open(
            URL, store=stores[number], retry=FAST, layout=kind, settings=WRITING
        ) as log:
            stores[number].is_shaky = True
            found.append(Appending(log, ledger, "abcdef"[number], f"{seed} {number}"))
            await found[-1].run(appends)

    async with asyncio.TaskGroup() as tasks:
        for number in range(writers):
            tasks.create_task(write(number))
    content = await ledger.check(inner)
    told = len(ledger.committed) + len(ledger.unwritten) + len(ledger.unknown)
    assert told == sum(one.asked for one in found) == writers * appends
    assert not ledger.unknown
    assert set(content.values()) == set(ledger.committed.values())
    # Of several writers' head starts most are for a place that others take, on a busy machine nearly all.
    begun = sum(one.begun for one in found)
    assert begun >= (3 if writers == 1 else 1)
    assert writers > 1 or (await parts(inner))[2] >= 3
    assert sum(store.made_faults for store in stores) >= 3
    await check_sound(inner, is_alone=writers == 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("seed", range(4))
async def test_writers_that_contend(kind: str, seed: int) -> None:
    """Each append is told the truth, whatever became of what was begun for it."""
    await contend(seed + first_seed("head starts"), kind, 3, 150)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("seed", range(4))
async def test_a_writer_alone(kind: str, seed: int) -> None:
    await contend(seed + first_seed("a head start"), kind, 1, 400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_a_local_log(log_directory: Path, seed: int) -> None:
    """All appends are in the cloud once it says so, in order and once; nothing is left over."""
    seed += first_seed("a local log")
    inner, chance = MemoryStore(), random.Random(seed)
    store = Unreliable(inner, f"{seed} local")
    told: dict[int, bytes] = {}

    async def append(wal: Wal, value: bytes) -> None:
        offset = await wal.append(value, durability="cloud")
        assert wal.uploaded_limit > offset
        assert told.setdefault(offset, value) == value

    async with Wal.open(
        log_directory, settings=SEGMENTS, tier=tier(store, SHIPPING), fs=UnsyncedFileSystem()
    ) as wal:
        store.is_shaky = True
        clock = SystemClock()
        async with asyncio.TaskGroup() as tasks:
            for number in range(400):
                value = f"{number:05d}".encode().ljust(chance.randrange(10, 900), b".")
                tasks.create_task(append(wal, value))
                if chance.random() < 0.5:
                    await clock.sleep(chance.random() * PUT_SECONDS)
    assert sorted(told) == list(range(1, 401))
    async with cloud_log(inner) as log:
        await log.verify()
        assert {item.offset: item.value async for item in log.reader()} == told
    assert (await parts(inner))[2] >= 3
    assert store.made_faults >= 3
    assert await unreferenced(inner) == []
    await check_sound(inner)
