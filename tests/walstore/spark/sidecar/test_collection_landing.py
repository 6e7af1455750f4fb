"""A landing in a collection, which needs no Spark: its cursor, from before the start until after failures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.uploader.versioned.collections import Clock, Site, content
from uploader import CloudLog, CloudWriter, Collection
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore import InvalidSettingsError, OutcomeUnknownError, ReadonlyWal, Wal
from walstore.spark.sidecar.collection_landing import CollectionLanding
from walstore.spark.sidecar.landing import RETRY_SECONDS

LOG = ("orders", 0)
ONCE = RetryPolicy(attempts=1)


def row(number: int) -> bytes:
    return json.dumps({"k": number, "v": "x"}).encode()


def landing(log: Any, collection: Collection, clock: Clock, **options: Any) -> CollectionLanding:
    given = {
        "name": LOG,
        "envelope": "append",
        "cursor": "kept",
        "warn": pytest.fail,
        "clock": clock,
        "is_once": True,
        "trigger_seconds": 0.0,
        "max_records": 2,
    }
    return CollectionLanding(log, collection, **{**given, **options})


class Stored:
    """A stored log, and what a landing sees of its store."""

    def __init__(self, writer: CloudWriter, store: FaultyStore) -> None:
        self.writer = writer
        self.store = store

    async def position(self) -> int | None:
        found = await self.writer.cursors.load("kept")
        return None if found is None else found.position


@pytest.fixture
async def stored() -> AsyncIterator[Stored]:
    """A stored log of three rows."""
    inner = MemoryStore()
    async with CloudWriter.open("memory://stored", store=inner) as writer:
        for number in range(3):
            await writer.append(row(number))
        yield Stored(writer, FaultyStore(inner))


@asynccontextmanager
async def opened(stored: Stored) -> AsyncIterator[CloudLog]:
    async with CloudLog.open("memory://stored", store=stored.store, retry=ONCE) as log:
        yield log


async def test_the_log_is_held_before_it_is_read(stored: Stored) -> None:
    site = Site()
    async with site.program().opened() as collection, opened(stored) as log:
        started = await landing(log, collection, site.clock).start()
        assert (started.positions, started.is_resumed) == ({LOG: 1}, False)
        assert await stored.position() == 1
        assert (await collection.status()).upper == 0


async def test_no_cursor_no_start(stored: Stored) -> None:
    """Nothing is landed from a log that is not retained, if it is to be."""
    site = Site()
    async with site.program().opened() as collection, opened(stored) as log:
        first = landing(log, collection, site.clock)
        await first.start()
        assert [done.records async for done in first.landings()] == [2, 1]
        await stored.writer.cursors.delete("kept")
        stored.store.on("put_if_match", fail(timeout()), times=2, key_prefix="cursor/")
        said: list[str] = []
        with pytest.raises(OutcomeUnknownError):
            await landing(log, collection, site.clock, warn=said.append).start()
        assert len(said) == 1


async def test_a_cursor_that_stays_is_reported_once_and_follows_later(stored: Stored) -> None:
    site = Site()
    said: list[str] = []
    async with site.program().opened() as collection, opened(stored) as log:
        running = landing(
            log, collection, site.clock, is_once=False, max_records=1, warn=said.append
        )
        await running.start()
        stored.store.on("put_if_match", fail(timeout()), times=2, key_prefix="cursor/")
        landings = running.landings()
        reports = [await anext(landings) for _ in range(2)]
        assert [report.cursors for report in reports] == [{LOG: 1}, {LOG: 1}]
        assert [report.positions for report in reports] == [{LOG: 2}, {LOG: 3}]
        assert len(said) == 1
        assert "stays where it is" in said[0]
        site.clock.seconds += RETRY_SECONDS
        assert (await anext(landings)).cursors == {LOG: 4}
        await landings.aclose()
        assert await stored.position() == 4
    assert running.summary(is_stopped=True).records == 3


async def test_two_that_share_a_cursor_do_not_harm_each_other(tmp_path) -> None:
    site = Site()
    async with (
        Wal.open(tmp_path / "log") as wal,
        ReadonlyWal.open(tmp_path / "log") as one,
        ReadonlyWal.open(tmp_path / "log") as two,
        site.program().opened() as first,
        site.program().opened() as second,
    ):
        total = 0
        for number in range(12):
            await wal.append(row(number))
            await wal.append(row(number))
            log, collection = ((one, first), (two, second))[number % 2]
            await log.refresh()
            running = landing(log, collection, site.clock)
            await running.start()
            total += sum([done.records async for done in running.landings()])
            assert running.summary(is_stopped=False).cursors == {LOG: wal.tail}
        assert total == 24
        async with await first.reader() as reader:
            assert len(content(await reader.snapshot())) == 12


async def test_a_collection_of_something_else_is_refused(stored: Stored) -> None:
    site = Site()
    async with site.program().opened() as collection, opened(stored) as log:
        await collection.writer().append(None, lower=0, upper=3)
        with pytest.raises(InvalidSettingsError, match="collection of its own"):
            await landing(log, collection, site.clock).start()
        assert await stored.position() is None
