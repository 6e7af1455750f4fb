"""A program of wal3 that opens a log of ours for writing: it links whatever lies at the next number.

It does not look where that begins, and does it on opening already, without any append. So nothing of ours may
lie there that does not continue the log, wherever we die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cloud import FAST, URL, cloud_values, fragment_keys, put_fragment, tier
from tests.uploader.logs import replace
from tests.waiting import until
from uploader import UploadSettings
from uploader.care.admin.scrubber import Scrubber
from uploader.format import layout
from uploader.format.findings import Severity
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.root.orphan_recovery import VOID
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import Fault, hang, happen_then_kill, kill
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import Settings, Wal
from walstore.errors import CorruptionError, LogNotFoundError

SMALL = WriterSettings(fragment_bytes=4096, interval_seconds=0)
CONTENT = [b"%03d" % number + bytes(1500) for number in range(20)]


async def wal3_opens(store: ObjectStore) -> int:
    """Do what wal3 does on opening; return how many fragments it linked.

    CorruptionError if it cannot open, which harms nobody.
    """
    linked = 0
    while True:
        try:
            stored = await store.get(layout.MANIFEST)
        except ObjectNotFoundError:
            return linked
        manifest = Manifest.parse(stored.data)
        key = layout.fragment_path(manifest.next_seq_no)
        try:
            entry = inspect_fragment((await store.get(key)).data, key)
        except ObjectNotFoundError:
            return linked
        grown = manifest.apply_fragments([entry], "wal3")
        await store.put_if_match(layout.MANIFEST, grown.serialise(), stored.etag)
        linked += 1


async def wal3_appends(store: ObjectStore, value: bytes) -> None:
    """Append a record as wal3 does."""
    await wal3_opens(store)
    manifest = Manifest.parse((await store.get(layout.MANIFEST)).data)
    await put_fragment(store, manifest.next_seq_no, manifest.next_offset, [value])
    await wal3_opens(store)


def open_writer(store: ObjectStore, settings: WriterSettings = SMALL):
    return CloudWriter.open(URL, store=store, settings=settings, retry=FAST)


async def warnings(store: ObjectStore) -> list[str]:
    """Return the keys of what the scrubber warns of."""
    try:
        async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
            found = (await scrubber.scrub()).findings
    except LogNotFoundError:
        return []
    assert all(one.severity is not Severity.ERROR for one in found)
    return [one.key for one in found if one.severity is Severity.WARNING]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_a_writer_that_dies_at_any_call(fault: Callable[[], Fault]) -> None:
    """The log is sound after wal3 has opened it, and after both have appended."""
    for nth in range(1, 100):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        try:
            async with open_writer(store) as log, asyncio.TaskGroup() as tasks:
                for value in CONTENT:
                    tasks.create_task(log.append(value))
        except (StoreKilled, BaseExceptionGroup):
            pass
        await wal3_opens(store.inner)
        assert await warnings(store.inner) == []
        async with open_writer(store.inner) as log:
            await log.append(b"ours")
        await wal3_appends(store.inner, b"theirs")
        found = await cloud_values(store.inner)
        assert found[-2:] == [b"ours", b"theirs"]
        assert found[:-2] == CONTENT[: len(found) - 2]
        if store.requests < nth:
            return
    pytest.fail("the run never got to its end")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_a_local_log_that_dies_at_any_call(
    log_directory: Path, fault: Callable[[], Fault]
) -> None:
    settings = UploadSettings(fragment_bytes=4096, fragment_age_seconds=0, drain_seconds=30)
    async with Wal.open(log_directory, settings=Settings(batch_bytes=4096)) as wal:
        for value in CONTENT:
            await wal.append(value)
    for nth in range(1, 100):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        try:
            async with Wal.open(log_directory, tier=tier(store, settings)) as wal:
                await wal.wait_durable(wal.tail - 1, "cloud")
        except (StoreKilled, BaseExceptionGroup):
            pass
        await wal3_opens(store.inner)
        assert await warnings(store.inner) == []
        if store.requests < nth:
            assert await cloud_values(store.inner) == CONTENT
            return
    pytest.fail("the run never got to its end")


async def test_the_next_fragment_waits_for_the_one_before() -> None:
    store = FaultyStore(MemoryStore())
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", hang(release, reached), key_prefix="log/")
    async with open_writer(store) as log, asyncio.TaskGroup() as tasks:
        for value in CONTENT:
            tasks.create_task(log.append(value))
        await reached.wait()
        await until(lambda: log.statistics().waiting_records == len(CONTENT))
        for _ in range(100):
            await asyncio.sleep(0)
        assert await fragment_keys(store.inner) == []
        release.set()
    assert await wal3_opens(store.inner) == 0


async def test_puts_in_parallel_are_for_logs_that_only_we_write() -> None:
    """As the setting says: what a crash leaves may be what wal3 destroys the log with."""
    store = FaultyStore(MemoryStore())
    release = asyncio.Event()
    store.on("put_if_absent", hang(release), key_prefix=layout.fragment_path(1))
    settings = WriterSettings(fragment_bytes=4096, interval_seconds=0, parallel_puts=True)
    async with open_writer(store, settings) as log, asyncio.TaskGroup() as tasks:
        for value in CONTENT:
            tasks.create_task(log.append(value))
        try:
            await until(lambda: log.statistics().put_fragments == len(CONTENT) // 2 - 1)
            left = await fragment_keys(store.inner)
            assert layout.fragment_path(1) not in left
            assert await warnings(store.inner) == left
        finally:
            release.set()
    assert await warnings(store.inner) == []
    assert await cloud_values(store.inner) == CONTENT


# -- what others left ------------------------------------------------------------------------


async def test_what_can_never_follow_is_voided_at_opening() -> None:
    """wal3 cannot open the log then, until one of ours has gone on behind it; it does not destroy it."""
    store = MemoryStore()
    async with open_writer(store) as log:
        await log.append(b"1")
    await put_fragment(store, 2, 9, [b"x"])  # the next number, but not the next offset
    await put_fragment(store, 5, 4, [b"y"])  # too few records before it for the fragments between
    keys = [layout.fragment_path(2), layout.fragment_path(5)]
    assert await warnings(store) == keys
    async with open_writer(store) as log:
        assert [(await store.get(key)).data for key in keys] == [VOID, VOID]
        assert await warnings(store) == []
        with pytest.raises(CorruptionError):
            await wal3_opens(store)
        assert await log.append(b"2") == 2
        await wal3_appends(store, b"3")
        assert await log.append(b"4") == 4
        assert await log.append(b"5") == 5
    assert await cloud_values(store) == [b"1", b"2", b"3", b"4", b"5"]


async def test_what_may_still_fit_is_left_until_it_does_not() -> None:
    """Its writer may be at work. Before our own fragment is published, what cannot follow it is voided."""
    store = FaultyStore(MemoryStore())
    await put_fragment(store.inner, 2, 5, [b"x"])
    key = layout.fragment_path(2)
    async with open_writer(store) as log:
        assert (await store.inner.get(key)).data != VOID
        release, reached = asyncio.Event(), asyncio.Event()
        store.on("put_if_match", hang(release, reached), key_prefix=layout.MANIFEST)
        appending = asyncio.create_task(log.append(b"1"))
        await reached.wait()  # before it is published
        assert (await store.inner.get(key)).data == VOID
        release.set()
        assert await appending == 1
        assert await log.append(b"2") == 2
    assert await cloud_values(store.inner) == [b"1", b"2"]


async def test_what_fits_after_all_is_taken_over() -> None:
    store = MemoryStore()
    await put_fragment(store, 2, 3, [b"3", b"4"])
    async with open_writer(store) as log:
        assert await log.append_many([b"1", b"2"]) == range(1, 3)
        assert await log.append(b"5") == 5
    assert await cloud_values(store) == [b"1", b"2", b"3", b"4", b"5"]


async def test_what_was_put_there_meanwhile_stays() -> None:
    """The misfit is voided by its ETag: whatever took its place is left alone."""
    store = FaultyStore(MemoryStore())
    await put_fragment(store.inner, 1, 9, [b"x"])
    key = layout.fragment_path(1)

    async def meanwhile(request):
        await replace(store.inner, key, b"other")
        return await request()

    store.on("put_if_match", meanwhile, key_prefix=key)
    async with open_writer(store):
        assert (await store.inner.get(key)).data == b"other"


async def test_a_local_log_voids_its_own_only(log_directory: Path) -> None:
    """Others' stay: the log stops there, and says so."""
    store = MemoryStore()
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        for number in range(6):
            await wal.append(b"%d" % number, durability="cloud")
    (manifest,) = [Manifest.parse((await store.get(layout.MANIFEST)).data)]
    number = manifest.next_seq_no
    async with Wal.open(log_directory) as wal:
        await wal.append(b"6")
        timestamp_us = 7
    # A cut of an earlier time that came late: it begins inside what is published.
    await put_fragment(store, number, 5, [b"4", b"5"], timestamp_us)
    await put_fragment(store, number + 5, 6, [b"not ours"], timestamp_us)
    async with Wal.open(log_directory, tier=tier(store)) as wal:
        await wal.wait_durable(7, "cloud")
        assert wal.statistics().tier_failure is None
    assert await cloud_values(store) == [b"%d" % number for number in range(7)]
    assert (await store.get(layout.fragment_path(number + 5))).data != VOID
