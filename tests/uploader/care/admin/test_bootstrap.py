"""Logs that begin further on (wal3's cases 83 and 84)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.cloud import FAST, URL, cloud_values, put_fragment, snapshot, tier
from tests.uploader.logs import begin, manifest_in
from uploader.care.admin.bootstrap import bootstrap
from uploader.care.admin.destroy import destroy
from uploader.care.admin.scrubber import Scrubber
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import Fault
from uploader.write.cloud_writer import CloudWriter
from walstore import ContentionError, InvalidSettingsError, LogNotFoundError, Wal
from walstore.core.runtime.threads import Worker


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def test_83_a_thousand_records_at_42_in_one_fragment(store) -> None:
    await bootstrap(URL, start=42, store=store)
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        assert await log.append_many([b"%d" % at for at in range(1000)]) == range(42, 1042)
    found = await manifest_in(store.inner)
    assert (found.oldest_offset, found.next_offset, found.next_seq_no) == (42, 1042, 2)
    assert found.fragments[0].seq_no == 1
    async with Scrubber.open(URL, store=store) as scrubber:
        report = await scrubber.scrub()
        assert report.findings == ()
        assert report.records == 1000


async def test_84_empty_at_42(store) -> None:
    await bootstrap(URL, start=42, store=store)
    found = await manifest_in(store.inner)
    assert (found.writer, found.initial_offset, found.initial_seq_no) == ("bootstrap", 42, None)
    async with Scrubber.open(URL, store=store) as scrubber:
        assert (await scrubber.scrub()).findings == ()
        async with CloudWriter.open(URL, store=store.inner, retry=FAST) as log:
            assert await log.append(b"v") == 42
        assert (await scrubber.scrub()).records == 1
    assert await cloud_values(store.inner) == [b"v"]


async def test_a_local_log_goes_on_there(store, tmp_path: Path) -> None:
    await bootstrap(URL, start=42, store=store)
    async with Wal.open(tmp_path / "log", tier=tier(store)) as wal:
        assert await wal.append(b"v", durability="cloud") == 42


async def test_at_the_very_beginning(store, worker) -> None:
    """The same as what a writer would have created."""
    await bootstrap(URL, start=1, store=store)
    found = await manifest_in(store.inner)
    assert (found.oldest_offset, found.initial_offset) == (1, None)


@pytest.mark.parametrize("start", [0, -1, (1 << 64) - 1])
async def test_offsets_that_no_record_has(store, start) -> None:
    with pytest.raises(InvalidSettingsError):
        await bootstrap(URL, start=start, store=store)
    assert await snapshot(store.inner) == {}


async def test_another_log_is_left_alone(store, worker) -> None:
    await begin(store, worker, 1)
    before = await snapshot(store.inner)
    with pytest.raises(ContentionError):
        await bootstrap(URL, start=42, store=store)
    assert await snapshot(store.inner) == before


async def test_fragments_without_a_manifest_are_left_alone(store) -> None:
    await put_fragment(store, 1, 1, [b"a"])
    with pytest.raises(ContentionError, match="not empty"):
        await bootstrap(URL, start=42, store=store)


async def test_where_a_log_was_destroyed(store, worker) -> None:
    await begin(store, worker, 1)
    await destroy(URL, store=store, confirm=True)
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await bootstrap(URL, start=42, store=store)


@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_call_and_called_again(fault: type[Fault]) -> None:
    for nth in range(1, 20):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled):
            await bootstrap(URL, start=42, store=store)
        await bootstrap(URL, start=42, store=store.inner)
        assert (await manifest_in(store.inner)).oldest_offset == 42
        if store._plans:
            assert nth > 4
            return
    pytest.fail("it never got to its end")
