"""Reading a log from its prefix alone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cloud import cloud_log, copy_store, put_fragment, values
from tests.local import turns
from tests.uploader.documents import rolled_up, snapshot_of
from tests.waiting import until
from uploader import CloudLog, CloudTier
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.stores import MemoryStore, ObjectNotFoundError, PreconditionFailedError, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from walstore import Wal
from walstore.errors import (
    ContentionError,
    CorruptionError,
    FormatVersionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    StorageUnavailableError,
    WalClosedError,
)
from walstore.testing import ManualClock

CONTENT = values(60, 40)


async def extend(store: MemoryStore, count: int = 1, size: int = 10) -> Manifest:
    """Publish more fragments of so many records each."""
    try:
        found = await store.get(layout.MANIFEST)
        manifest, etag = Manifest.parse(found.data), found.etag
    except ObjectNotFoundError:
        manifest, etag = Manifest.initial("w"), None
    entries = []
    for at in range(count):
        start = manifest.next_offset + at * size
        content = CONTENT[start - 1 : start - 1 + size]
        entries.append(await put_fragment(store, manifest.next_seq_no + at, start, content))
    manifest = manifest.apply_fragments(entries, "w")
    if etag is None:
        await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    else:
        await store.put_if_match(layout.MANIFEST, manifest.serialise(), etag)
    return manifest


async def replace_manifest(store: MemoryStore, manifest: Manifest) -> None:
    await store.delete([layout.MANIFEST])
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())


@pytest.fixture
async def store() -> FaultyStore:
    """Three fragments of ten records."""
    inner = MemoryStore()
    await extend(inner, 3)
    return FaultyStore(inner)


@pytest.fixture
async def log(store: FaultyStore, clock: ManualClock):
    async with cloud_log(store, clock) as found:
        yield found


async def contents(log: CloudLog, *args, **kwargs) -> list[bytes]:
    return [record.value async for record in log.reader(*args, **kwargs)]


# -- opening ---------------------------------------------------------------------------------


async def test_what_it_shows(log, store) -> None:
    assert (log.head, log.tail, log.limit, log.url) == (1, 31, 31, store.url)
    assert log.manifest.next_seq_no == 4
    assert store.requests == 1


async def test_there_is_none() -> None:
    with pytest.raises(LogNotFoundError, match="there is no log at memory:"):
        await cloud_log(MemoryStore())


async def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError) as told:
        await CloudLog.open(f"file://{tmp_path}/nowhere")
    assert told.value.location == f"file://{tmp_path}/nowhere"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("url", ["", "ftp://host/x", "/srv/logs", "file://relative"])
async def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(InvalidSettingsError):
        await CloudLog.open(url)


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda _: b"", lambda d: d[1:]])
async def test_a_damaged_manifest(store, spoil) -> None:
    data = (await store.inner.get(layout.MANIFEST)).data
    damaged = await copy_store(store.inner, {layout.MANIFEST: spoil(data)})
    with pytest.raises(CorruptionError) as told:
        await cloud_log(damaged)
    assert told.value.path == layout.MANIFEST


async def test_a_store_that_is_away(store) -> None:
    store.on("get", fail(timeout("not_written")))
    with pytest.raises(StorageUnavailableError) as told:
        await cloud_log(store)
    assert told.value.retriable


async def test_it_needs_read_access_only(log, store) -> None:
    await contents(log)
    await log.verify()
    await log.offset_at(1)
    assert set(store.counts) <= {"get", "get_range"}


# -- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "stop", "offsets"),
    [
        ("earliest", None, range(1, 31)),
        ("latest", None, range(0)),
        (1, 1, range(0)),
        (7, 25, range(7, 25)),
        (10, None, range(10, 31)),
        (11, None, range(11, 31)),
        (30, None, range(30, 31)),
        (31, None, range(0)),
        (5, 99, range(5, 31)),
        (datetime(1970, 1, 1, tzinfo=UTC), None, range(1, 31)),
        (datetime(1970, 1, 2, tzinfo=UTC), None, range(0)),
    ],
)
async def test_where_to_begin_and_end(log, start, stop, offsets) -> None:
    found = [record async for record in log.reader(start, stop=stop)]
    assert [record.offset for record in found] == list(offsets)
    assert [record.value for record in found] == [CONTENT[at - 1] for at in offsets]


async def test_one_stream(log_directory: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    async with Wal.open(log_directory, tier=CloudTier(url)) as wal:
        for number in range(100):
            wal.append_nowait(b"%d" % number, stream=f"s{number % 3}" if number % 4 else None)
        await wal.wait_durable(100, "cloud")
    async with CloudLog.open(url) as found:
        everything = [record async for record in found.reader()]
        for name in ("s1", "s2", "none"):
            reader = found.reader(stream=name)
            assert [r async for r in reader] == [r for r in everything if r.stream == name]
            assert reader.position == 101
        batch = await found.reader(50, stream="s1").fetch(max_records=3)
        assert batch.records() == [r for r in everything[49:] if r.stream == "s1"][:3]
        assert batch.to_arrow().column("offset").to_pylist() == list(batch.offsets)


async def test_beyond_the_tail(log) -> None:
    with pytest.raises(OffsetNotWrittenError) as told:
        await contents(log, 32)
    assert (told.value.requested, told.value.head, told.value.tail) == (32, 1, 31)


async def collect(store: FaultyStore, count: int) -> Manifest:
    """Drop the oldest fragments as a collector does: the manifest first, then the objects."""
    manifest = Manifest.parse((await store.inner.get(layout.MANIFEST)).data)
    dropped = manifest.fragments[:count]
    left = dataclasses.replace(
        manifest,
        collected=sum((entry.setsum for entry in dropped), manifest.collected),
        fragments=manifest.fragments[count:],
        initial_offset=dropped[-1].limit,
        initial_seq_no=dropped[-1].seq_no + 1,
    )
    left.scrub()
    await replace_manifest(store.inner, left)
    await store.inner.delete([entry.path for entry in dropped])
    return left


async def test_below_the_head(store) -> None:
    await collect(store, 1)
    async with cloud_log(store) as log:
        assert (log.head, log.tail) == (11, 31)
        assert await contents(log) == CONTENT[10:30]
        with pytest.raises(OffsetTrimmedError) as told:
            await contents(log, 10)
        assert (told.value.requested, told.value.head, told.value.tail) == (10, 11, 31)


async def test_collected_under_a_reader(log, store) -> None:
    """Its position was there when the manifest was read; it never starts later silently."""
    reader = log.reader(prefetch_bytes=0)
    assert (await anext(reader)).offset == 1
    await collect(store, 2)
    for _ in range(9):
        await anext(reader)
    with pytest.raises(OffsetTrimmedError) as told:
        await anext(reader)
    assert (told.value.requested, told.value.head) == (11, 21)
    assert reader.position == 11
    await log.refresh()
    assert log.head == 21
    reader.seek(log.head)
    assert [record.offset async for record in reader] == list(range(21, 31))


async def test_lost_under_a_reader(log, store) -> None:
    await store.inner.delete([layout.fragment_path(2)])
    with pytest.raises(CorruptionError) as told:
        await contents(log)
    assert told.value.path == layout.fragment_path(2)


async def test_through_snapshots(store) -> None:
    """Made by hand: this version reads them and does not write them."""
    manifest = await extend(store.inner, 3)
    first, second = snapshot_of(manifest.fragments[:2]), snapshot_of(manifest.fragments[2:3])
    top = snapshot_of([first.pointer(), second.pointer()])
    for made in (first, second, top):
        await store.inner.put_if_absent(made.path, made.serialise())
    rolled = dataclasses.replace(
        manifest, snapshots=(top.pointer(),), fragments=manifest.fragments[3:]
    )
    await replace_manifest(store.inner, rolled)
    async with cloud_log(store) as log:
        assert await contents(log) == CONTENT
        assert await contents(log, 15, stop=25) == CONTENT[14:24]
        assert [entry.seq_no for entry in await log.fragments()] == [1, 2, 3, 4, 5, 6]
        assert [entry.seq_no for entry in await log.fragments(15, 35)] == [2, 3, 4]
        assert (await log.verify()).fragments == 6


async def test_fragments_one_by_one(log) -> None:
    entries = await log.fragments(11)
    assert [(entry.start, entry.limit) for entry in entries] == [(11, 21), (21, 31)]
    batch = await log.read_fragment(entries[1])
    assert (batch.start, list(batch.values)) == (21, CONTENT[20:30])


# -- following -------------------------------------------------------------------------------


async def test_nobody_reads_nothing_is_asked(log, store, clock) -> None:
    await contents(log)
    before = store.requests
    for _ in range(100):
        clock.advance(60)
        await turns()
    assert store.requests == before


async def test_following_asks_less_and_less_often(log, store, clock) -> None:
    """At first after 0.1 s, then at longer and longer intervals, at most 2 s."""
    reader = log.follow("latest")
    reading = asyncio.create_task(anext(reader))
    asked = []
    before = store.requests
    while clock.monotonic() < 30:
        clock.advance(0.01)
        await turns(5)
        if store.requests > before:
            before = store.requests
            asked.append(clock.monotonic())
    gaps = [round(after - at, 2) for at, after in zip([0.0, *asked], asked, strict=False)]
    assert gaps[0] == pytest.approx(0.1, abs=0.02)
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(2, abs=0.02)
    assert 15 < len(gaps) < 25
    await extend(store.inner)
    while not reading.done():
        clock.advance(0.1)
        await turns()
    assert reading.result().value == CONTENT[30]
    assert reader.position == 32


async def test_after_something_new_it_asks_soon_again(log, store, clock) -> None:
    reader = log.follow("latest")
    for number in (4, 5):
        reading = asyncio.create_task(reader.fetch(max_records=100))
        for _ in range(1000):
            clock.advance(0.1)
            await turns(2)
        await extend(store.inner)
        clock.advance(2.1)
        await until(reading.done)
        assert reading.result().limit == number * 10 + 1
        reading = asyncio.create_task(reader.fetch())
        await turns()
        before = store.requests
        clock.advance(0.1)
        await until(lambda before=before: store.requests > before)
        reading.cancel()
        await asyncio.wait((reading,))


async def test_readers_that_wait_together_ask_once(log, store, clock) -> None:
    readers = [log.follow("latest") for _ in range(50)]
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(anext(reader)) for reader in readers]
        await clock.wait_for_sleepers(50)
        before = store.requests
        for polls in range(1, 6):
            clock.advance(2)
            await until(lambda: clock.sleepers == 50)
            assert store.requests == before + polls
        await extend(store.inner)
        clock.advance(2)
    assert {task.result().offset for task in reading} == {31}
    assert store.requests == before + 7  # one more look, one fragment


async def test_a_fault_while_following_loses_nothing(log, store, clock) -> None:
    reader = log.follow(25)
    store.on("get", fail(timeout("not_written")))
    found = []
    ticking = asyncio.create_task(_tick(clock))
    with pytest.raises(StorageUnavailableError):
        async for record in reader:
            found.append(record.offset)
    await ticking
    await extend(store.inner)
    await log.refresh()
    while not reader.is_caught_up:
        found.append((await anext(reader)).offset)
    assert found == list(range(25, 41))


async def _tick(clock: ManualClock) -> None:
    await clock.wait_for_sleepers()
    clock.advance(0.2)


async def test_waiting_ends_in_time(log, store, clock) -> None:
    reader = log.follow("latest")
    batch = await reader.fetch(max_wait_seconds=0.01)
    assert (len(batch), batch.start) == (0, 31)
    assert store.requests == 2  # to open it, and to see whether there is more


async def test_waiting_ends_in_time_though_the_store_does_not_answer(log, store) -> None:
    store.on("get", faults.hang(asyncio.Event()))
    batch = await log.follow("latest").fetch(max_wait_seconds=0.01)
    assert (len(batch), batch.start) == (0, 31)


async def test_one_that_does_not_follow_asks_for_the_end_once(log, store) -> None:
    before = store.requests
    assert len([record async for record in log.reader(31)]) == 0
    assert store.requests == before + 1
    await log.reader(21, stop=31).fetch()
    assert store.requests == before + 2  # the fragment


async def test_an_older_answer_never_overtakes_a_newer_one(log, store) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get", faults.happen_then_hang(release, reached))
    async with asyncio.TaskGroup() as group:
        group.create_task(log.refresh())
        await reached.wait()
        await extend(store.inner)
        group.create_task(log.refresh())
        await turns()
        release.set()
    assert log.tail == 41


async def test_a_manifest_that_went_back(log, store) -> None:
    await replace_manifest(store.inner, Manifest.initial("w"))
    with pytest.raises(CorruptionError, match="went back"):
        await log.refresh()
    assert log.tail == 31


async def rewrite(
    store: FaultyStore, content: Sequence[bytes], count: int, *, roll_up: int = 0
) -> None:
    """Put a log of so many fragments of ten in the place of the one that is there."""
    entries = []
    for number in range(1, count + 1):
        await store.inner.delete([layout.fragment_path(number)])
        part = content[10 * number - 10 : 10 * number]
        entries.append(await put_fragment(store.inner, number, 10 * number - 9, part))
    manifest = Manifest.initial("somebody").apply_fragments(entries, "somebody")
    if roll_up:
        manifest, snapshot = rolled_up(manifest, roll_up)
        with contextlib.suppress(PreconditionFailedError):
            await store.inner.put_if_absent(snapshot.path, snapshot.serialise())
    await replace_manifest(store.inner, manifest)


OTHER = [value[::-1] for value in CONTENT[:10]] + CONTENT[10:]
"""The same, but for the records of the first fragment."""


async def test_a_log_whose_history_was_rewritten(log, store) -> None:
    """It is longer than what was read, and sound in itself."""
    await rewrite(store, OTHER, 5)
    requests = store.requests
    with pytest.raises(CorruptionError, match=r"records \[1, 11\) are not those") as told:
        await log.refresh()
    assert told.value.path == layout.MANIFEST
    assert "open the log again" in str(told.value)
    assert store.requests == requests + 1
    assert log.tail == 31
    async with cloud_log(store) as again:
        assert await contents(again) == OTHER[:50]


@pytest.mark.parametrize("content", [CONTENT, OTHER])
async def test_a_rewritten_history_behind_a_snapshot(log, store, content) -> None:
    """The manifest does not show what lies below; whoever reads on from what was known is told."""
    await rewrite(store, content, 6, roll_up=5)
    requests = store.requests
    await log.refresh()
    assert log.tail == 61
    assert store.requests == requests + 1
    if content is CONTENT:
        assert await contents(log, 31) == CONTENT[30:]
        await log.verify()
        return
    for _ in range(2):
        with pytest.raises(CorruptionError, match="before offset 31 are not those"):
            await contents(log, 31)
        with pytest.raises(CorruptionError, match="before offset 31 are not those"):
            await log.verify()


async def test_a_log_that_was_deleted(log, store) -> None:
    await store.inner.delete([layout.MANIFEST])
    with pytest.raises(LogNotFoundError):
        await log.refresh()


# -- verifying -------------------------------------------------------------------------------


async def test_verified(log, store) -> None:
    found = await log.verify()
    assert (found.fragments, found.records) == (3, 30)
    assert found.fragment_bytes == log.manifest.acc_bytes
    assert found.setsum == log.manifest.setsum.hexdigest()


async def test_verified_after_a_collection(store) -> None:
    manifest = await collect(store, 2)
    async with cloud_log(store) as log:
        found = await log.verify()
    assert (found.fragments, found.setsum) == (1, manifest.setsum.hexdigest())


@pytest.mark.parametrize("seq_no", [1, 2, 3])
async def test_a_missing_fragment_is_named(log, store, seq_no) -> None:
    path = layout.fragment_path(seq_no)
    await store.inner.delete([path])
    with pytest.raises(CorruptionError) as told:
        await log.verify()
    assert told.value.path == path


async def test_a_fragment_of_the_same_length_and_offsets(store) -> None:
    """Every checksum in the file is right, only the records are others: the setsum tells."""
    path = layout.fragment_path(2)
    other = MemoryStore()
    await put_fragment(other, 2, 11, [value[::-1] for value in CONTENT[10:20]])
    data = (await other.get(path)).data
    size = len((await store.inner.get(path)).data)
    spoiled = await copy_store(store.inner, {path: data})
    manifest = Manifest.parse((await spoiled.get(layout.MANIFEST)).data)
    resized = tuple(
        dataclasses.replace(entry, num_bytes=len(data)) if entry.path == path else entry
        for entry in manifest.fragments
    )
    acc_bytes = manifest.acc_bytes + len(data) - size
    manifest = dataclasses.replace(manifest, fragments=resized, acc_bytes=acc_bytes)
    await replace_manifest(spoiled, manifest)
    async with cloud_log(spoiled) as log:
        with pytest.raises(CorruptionError, match="setsum") as told:
            await log.verify()
    assert told.value.path == path


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(seq_no=st.integers(1, 3), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_or_changes_nothing(seq_no: int, place: float, bit: int) -> None:
    """What no check covers is what nobody reads: the name of the writing library, and such."""
    asyncio.run(_flip(layout.fragment_path(seq_no), place, bit))


async def _flip(path: str, place: float, bit: int) -> None:
    store = MemoryStore()
    await extend(store, 3)
    data = bytearray((await store.get(path)).data)
    data[int(place * len(data))] ^= 1 << bit
    async with cloud_log(await copy_store(store, {path: bytes(data)})) as log:
        found = (await asyncio.gather(log.verify(), return_exceptions=True))[0]
        if isinstance(found, CorruptionError | FormatVersionError):
            assert found.path == path
            return
        assert not isinstance(found, BaseException)
        assert await contents(log) == CONTENT[:30]
        assert await log.offset_at(0) == 1
        assert await log.offset_at(1) == 31


# -- closing ---------------------------------------------------------------------------------


async def test_closed(log, store) -> None:
    reader = log.reader()
    await anext(reader)
    await log.aclose()
    await log.aclose()
    for call in (log.refresh, log.verify, log.fragments, lambda: log.offset_at(1)):
        with pytest.raises(WalClosedError):
            await call()
    with pytest.raises(WalClosedError):
        await contents(log)


async def test_one_that_is_closed_keeps_nothing_it_read(store, clock) -> None:
    """Also without Python's collector of cycles, which a program that serves lets run rarely."""
    await extend(store, 30, size=1)
    gc.collect()
    gc.disable()
    try:
        async with cloud_log(store, clock) as log:
            assert len(await contents(log)) == 60
            assert held() >= 33
        assert held() < 5  # those of a reader, which its program may still have
    finally:
        gc.enable()


def held() -> int:
    """Return how many fragments are in memory."""
    return sum(type(one).__name__ == "FragmentBatch" for one in gc.get_objects())


async def test_readers_under_way_end_when_it_closes(log, store, clock) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get_range", faults.hang(release, reached))
    reading = asyncio.create_task(contents(log))
    following = asyncio.create_task(anext(log.follow("latest")))
    await reached.wait()
    await clock.wait_for_sleepers()
    await log.aclose()
    release.set()
    clock.advance(1)
    for task in (reading, following):
        with pytest.raises(WalClosedError):
            await task


async def test_cursors_and_streams_are_retried_as_its_caller_wants(store, clock):
    """As often as the policy says: what is put, and what is read for it."""
    retry = RetryPolicy(clock=clock, attempts=1)
    async with CloudLog.open("memory://ignored", store=store, clock=clock, retry=retry) as log:
        store.on("put_if_absent", fail(faults.conflict()), key_prefix="cursor/")
        with pytest.raises((ContentionError, StorageUnavailableError)):
            await log.cursors.create("billing", 1)
        assert store.count("put_if_absent").requests == 1
        assert (await log.cursors.create("billing", 1)).position == 1
