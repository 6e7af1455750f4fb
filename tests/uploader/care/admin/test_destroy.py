"""Destroying a log: nothing of it stays but a tombstone, and nothing comes back."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.cloud import FAST, SMALL, URL, cloud_log, put_fragment, snapshot, tier
from tests.uploader.documents import rolled_up
from uploader import CloudTier, CloudWriter, GarbageCollector
from uploader.care.admin.bootstrap import bootstrap
from uploader.care.admin.destroy import Destroyed, destroy
from uploader.care.admin.fork import fork
from uploader.care.admin.seal import seal
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import Layout
from uploader.layouts.swapped_root import SwappedRoot
from uploader.read.fragment_reader import FragmentReader
from uploader.root.orphan_recovery import VOID
from uploader.stores import MemoryStore, PreconditionFailedError
from uploader.stores.local import LocalStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import Fault, fail, hang, happen_then_fail, timeout
from walstore import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    LogSealedError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    Wal,
)
from walstore.core.runtime.threads import Worker
from walstore.errors import WalError
from walstore.testing import ManualClock


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def begin(store: ObjectStore, worker: Worker) -> SwappedRoot:
    """Write a log with a snapshot, a cursor, garbage and an orphan."""
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create("writer")
    for _ in range(4):
        end = log.manifest.next_seq_no, log.manifest.next_offset
        await log.publish([await put_fragment(store, *end, [b"a", b"b"])], "writer")
    rest, rolled = rolled_up(log.manifest, 2)
    await store.put_if_absent(rolled.path, rolled.serialise())
    await log.change(lambda _: rest)
    await store.put_if_absent(layout.cursor_path("reader"), b"{}")
    await store.put_if_absent(layout.GARBAGE, b"{}")
    await put_fragment(store, 7, 90, [b"orphan"])
    return log


async def keys(store: FaultyStore) -> list[str]:
    return [listed.key async for listed in store.inner.list("")]


async def test_only_the_tombstone_stays(store, worker) -> None:
    log = await begin(store, worker)
    end = await seal(URL, store=store)
    before = await snapshot(store.inner)
    told: list[Destroyed] = []
    removed = await destroy(URL, store=store, progress=told.append)
    assert await keys(store) == [layout.TOMBSTONE]
    assert removed.objects == len(before) == 10
    assert removed.left == ()
    assert told[-1] == removed
    assert [one.objects for one in told] == sorted(one.objects for one in told)
    tombstone = (await store.inner.get(layout.TOMBSTONE)).data.decode()
    assert log.manifest.setsum.hexdigest() in tombstone
    assert f'"limit":{{"offset":{end}}}' in tombstone


async def test_what_was_voided_goes_as_well(store, worker) -> None:
    log = await begin(store, worker)
    number = log.manifest.next_seq_no
    for ahead in (0, 1, 5):
        await store.put_if_absent(layout.fragment_path(number + ahead), VOID)
    removed = await destroy(URL, store=store, confirm=True)
    assert removed.left == ()
    assert await keys(store) == [layout.TOMBSTONE]


async def test_a_log_that_may_be_in_use_is_refused(store, worker) -> None:
    await begin(store, worker)
    before = await snapshot(store.inner)
    with pytest.raises(InvalidSettingsError, match="not sealed"):
        await destroy(URL, store=store)
    assert await snapshot(store.inner) == before
    await destroy(URL, store=store, confirm=True)
    assert await keys(store) == [layout.TOMBSTONE]


@pytest.mark.parametrize("confirm", [False, True])
async def test_where_there_is_no_log_nothing_is_done(store, confirm) -> None:
    """Not even where somebody lost the manifest: his fragments may be all he has."""
    await put_fragment(store, 1, 1, [b"a"])
    before = await snapshot(store.inner)
    with pytest.raises(LogNotFoundError):
        await destroy(URL, store=store, confirm=confirm)
    assert await snapshot(store.inner) == before


async def test_a_damaged_log_is_left_alone(store) -> None:
    await store.put_if_absent(layout.MANIFEST, b"{")
    with pytest.raises(CorruptionError):
        await destroy(URL, store=store, confirm=True)
    assert await keys(store) == [layout.MANIFEST]


async def test_what_is_no_part_of_the_log_stays(tmp_path: Path, worker) -> None:
    """Neighbours whose names begin alike, logs inside it, and foreign files in its own folders."""
    strangers = {
        "readme.txt": b"1",
        "b/log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet": b"2",
        "log/notes.txt": b"3",
        "cursor/not a cursor": b"4",
        "manifest/MANIFEST2": b"5",
        "logs/x": b"6",
    }
    neighbour, store = LocalStore(tmp_path / "ab"), LocalStore(tmp_path / "a")
    await begin(neighbour, worker)
    before = await snapshot(neighbour)
    await begin(store, worker)
    for key, data in strangers.items():
        await store.put_if_absent(key, data)
    removed = await destroy(f"file://{tmp_path}/a", confirm=True)
    assert await snapshot(neighbour) == before
    left = await snapshot(store)
    assert left.pop(layout.TOMBSTONE)
    assert left == strangers
    assert sorted(removed.left) == ["cursor/not a cursor", "log/notes.txt", "manifest/MANIFEST2"]
    await store.aclose()
    await neighbour.aclose()


# -- what happens at the same time -----------------------------------------------------------


async def test_a_writer_that_is_open_cannot_go_on(store, worker) -> None:
    log = await begin(store, worker)
    entry = await put_fragment(MemoryStore(), 5, 9, [b"late"])
    store.on("put_if_match", hang(release := asyncio.Event(), reached := asyncio.Event()))
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(_error(log.publish([entry], "writer")))
        await reached.wait()
        await destroy(URL, store=store.inner, confirm=True)
        release.set()
        assert await publishing is not None
    assert layout.MANIFEST not in await keys(store)


async def test_a_writer_is_told_before_anything_is_removed(store, worker) -> None:
    log = await begin(store, worker)
    entry = await put_fragment(MemoryStore(), 5, 9, [b"late"])
    seen: list[object] = []

    async def publish() -> None:
        seen.append(await _error(log.publish([entry], "writer")))

    destroyer = FaultyStore(store.inner)
    destroyer.on("delete", faults.call(publish))
    await destroy(URL, store=destroyer, confirm=True)
    assert isinstance(seen[0], LogSealedError)


async def test_a_reader_is_not_told_of_damage(store, worker) -> None:
    """What it wants was collected, as far as it can see."""
    await begin(store, worker)
    async with cloud_log(store.inner) as log:
        entries = await log.fragments()
        destroyer = FaultyStore(store.inner)
        seen: list[object] = []

        async def read() -> None:
            seen.append(await _error(log.read_fragment(entries[0])))

        destroyer.on("delete", faults.call(read), nth=2)
        await destroy(URL, store=destroyer, confirm=True)
        assert isinstance(seen[0], OffsetTrimmedError)


async def test_a_manifest_whose_creation_was_on_its_way_is_of_no_use(store, worker) -> None:
    """The request is sent before the log is there, and arrives when it is destroyed."""
    late = SwappedRoot(store, FAST, worker)
    store.on("put_if_absent", hang(release := asyncio.Event(), reached := asyncio.Event()))
    async with asyncio.TaskGroup() as group:
        creating = group.create_task(_error(late.load_or_create("late")))
        await reached.wait()
        await begin(store.inner, worker)
        await destroy(URL, store=store.inner, confirm=True)
        release.set()
        assert isinstance(await creating, LogNotFoundError)
    assert sorted(await keys(store)) == [layout.MANIFEST, layout.TOMBSTONE]
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await SwappedRoot(store, FAST, worker).load_or_create("another")
    await destroy(URL, store=store)
    assert await keys(store) == [layout.TOMBSTONE]


async def test_a_swap_that_was_on_its_way_is_refused(store, worker) -> None:
    await begin(store, worker)
    known = await store.inner.get(layout.MANIFEST)
    await destroy(URL, store=store, confirm=True)
    with pytest.raises(PreconditionFailedError):
        await store.inner.put_if_match(layout.MANIFEST, b"{}", known.etag)


async def test_fragments_that_come_late_are_removed_by_calling_again(store, worker) -> None:
    await begin(store, worker)
    await destroy(URL, store=store, confirm=True)
    await put_fragment(store, 5, 9, [b"late"])
    assert (await destroy(URL, store=store)).objects == 1
    assert await keys(store) == [layout.TOMBSTONE]
    assert (await destroy(URL, store=store)).objects == 0


async def test_a_manifest_that_comes_late_makes_no_log(store, worker) -> None:
    """A program asked for it when there was no log yet. Nobody takes it for one, who looks or who follows."""
    await begin(store, worker)
    async with cloud_log(store) as following:
        await destroy(URL, store=store, confirm=True)
        await store.put_if_absent(layout.MANIFEST, Manifest.initial("w").serialise())
        for opening in (cloud_log(store), GarbageCollector.open(URL, store=store)):
            with pytest.raises(LogNotFoundError):
                await opening
        with pytest.raises(LogNotFoundError):
            await following.refresh()
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await CloudWriter.open(URL, store=store, retry=FAST)
    assert (await destroy(URL, store=store)).objects == 1
    assert await keys(store) == [layout.TOMBSTONE]


@pytest.mark.parametrize("made", ["fork", "bootstrap"])
async def test_a_manifest_with_records_that_comes_late_makes_no_log(store, made: str) -> None:
    """It is created a second time after the log was destroyed: no append is acknowledged there."""
    if made == "fork":
        source = MemoryStore()
        async with CloudWriter.open(URL, store=source, retry=FAST) as log:
            await log.append(b"v")
        await fork("memory://s", URL, source_store=source, target_store=store, retry=FAST)
    else:
        await bootstrap(URL, start=17, store=store, retry=FAST)
    created = (await store.get(layout.MANIFEST)).data
    await destroy(URL, store=store, confirm=True)
    await store.put_if_absent(layout.MANIFEST, created)
    with pytest.raises(LogNotFoundError):
        await cloud_log(store)
    for opening in (CloudWriter.open(URL, store=store, retry=FAST), tier(store).open(None)):
        with pytest.raises(LogNotFoundError, match="destroyed"):
            await opening
    await destroy(URL, store=store)
    assert await keys(store) == [layout.TOMBSTONE]


@pytest.mark.parametrize("layout_name", ["swap", "chain"])
async def test_a_writer_that_is_refused_leaves_nothing(store, layout_name: Layout) -> None:
    """It looks for the tombstone before it creates anything."""
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, layout=layout_name) as log:
        await log.append(b"v")
    await destroy(URL, store=store.inner, confirm=True)
    before = await snapshot(store.inner)
    for chosen in (None, "swap", "chain"):
        with pytest.raises(LogNotFoundError, match="destroyed"):
            await CloudWriter.open(URL, store=store.inner, retry=FAST, layout=chosen)
        assert await snapshot(store.inner) == before
    with pytest.raises(LogNotFoundError):
        await cloud_log(store.inner)


@pytest.mark.parametrize("layout_name", ["swap", "chain"])
async def test_an_append_of_a_writer_that_is_open_is_refused(store, layout_name: Layout) -> None:
    """It begins no other log in the place of the one that was destroyed."""
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, layout=layout_name) as log:
        assert await log.append(b"in") == 1
        await destroy(URL, store=store.inner, confirm=True)
        for _ in range(2):
            with pytest.raises((LogSealedError, LogNotFoundError, OutcomeUnknownError)):
                await log.append(b"late")
        assert log.tail == 2
    with pytest.raises(LogNotFoundError):
        await cloud_log(store.inner)


@pytest.mark.parametrize("layout_name", ["swap", "chain"])
async def test_a_follower_is_told_that_the_log_is_gone(
    store, layout_name: Layout, clock: ManualClock
) -> None:
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, layout=layout_name) as log:
        await log.append(b"in")
    async with cloud_log(store.inner, clock) as reading:
        reader = reading.follow()
        assert (await anext(reader)).value == b"in"
        following = asyncio.create_task(anext(reader))
        await clock.wait_for_sleepers(1)
        await destroy(URL, store=store.inner, confirm=True)
        clock.advance(2.0)
        with pytest.raises(LogNotFoundError):
            await following


async def test_wal3_is_kept_out_as_long_as_there_is_a_manifest(store, worker) -> None:
    """What lies where its next fragment belongs goes after the manifest."""
    await begin(store, worker)
    seen: list[tuple[bool, bool]] = []

    async def look() -> None:
        found = await keys(store)
        seen.append((layout.MANIFEST in found, layout.fragment_path(5) in found))

    destroyer = FaultyStore(store.inner)
    destroyer.on("delete", faults.call(look), times=100)
    await destroy(URL, store=destroyer, confirm=True)
    assert seen[0] == (True, True)
    assert seen[-1] == (False, True)
    assert (True, False) not in seen


async def test_no_local_log_ships_there_any_more(tmp_path: Path) -> None:
    """Neither the one that did, nor a new one; what is on disk stays there."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "log", tier=tier(store)) as wal:
        await wal.append(b"v", durability="cloud")
    await destroy(URL, store=store, confirm=True)
    for name in ("log", "new"):
        with pytest.raises(LogNotFoundError, match="destroyed"):
            await Wal.open(tmp_path / name, tier=tier(store))
    async with Wal.open(tmp_path / "log") as wal:
        assert wal.tail == 2


async def test_a_local_log_that_is_open_keeps_what_it_cannot_ship(tmp_path: Path) -> None:
    """Nothing is taken for shipped that came after the end, so retention deletes nothing of it."""
    store = MemoryStore()
    cloud = CloudTier(URL, store=store, settings=SMALL, retry=FAST, layout="chain")
    async with Wal.open(tmp_path / "log", tier=cloud) as wal:
        await wal.append(b"in", durability="cloud")
        await destroy(URL, store=store, confirm=True)
        with pytest.raises(LogSealedError) as told:
            await wal.append(b"late", durability="cloud")
        assert told.value.outcome == "durable"
        assert (wal.uploaded_limit, wal.tail) == (2, 3)


@pytest.mark.parametrize("layout_name", ["swap", "chain"])
async def test_a_tier_that_is_read_is_not_called_damaged(
    store, worker, layout_name: Layout
) -> None:
    """By whoever reads fragments without a manifest at hand."""
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, layout=layout_name) as log:
        await log.append(b"v")
        (entry,) = log.manifest.fragments
    await destroy(URL, store=store.inner, confirm=True)
    reader = FragmentReader(store=store, worker=worker, cache_bytes=0)
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await reader.read(entry)
    await reader.aclose()


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_call_and_called_again(worker, fault: type[Fault]) -> None:
    """At each of them the log is whole, or sealed and buried; then nothing is left."""
    for nth in range(1, 60):
        store = FaultyStore(MemoryStore())
        await begin(store, worker)
        store.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled):
            await destroy(URL, store=store, confirm=True)
        if store._plans:
            assert nth > 12
            return
        if layout.TOMBSTONE in await keys(store):
            with contextlib.suppress(LogNotFoundError):
                async with cloud_log(store.inner) as log:
                    assert log.manifest.is_sealed
            await destroy(URL, store=store.inner)
        else:
            async with cloud_log(store.inner) as log:
                await log.verify()
            await destroy(URL, store=store.inner, confirm=True)
        assert await keys(store) == [layout.TOMBSTONE]
    pytest.fail("it never got to its end")


async def test_the_log_stays_as_long_as_the_tombstone_is_not_known_to_be_there(
    store, worker
) -> None:
    await begin(store, worker)
    store.on("put_if_absent", happen_then_fail(timeout()), key_prefix="tombstone/", times=2)
    store.on("get", fail(timeout()), key_prefix="tombstone/", times=2)
    with pytest.raises(OutcomeUnknownError):
        await destroy(URL, store=store, confirm=True, retry=FAST)
    found = Manifest.parse((await store.inner.get(layout.MANIFEST)).data)
    assert found.next_offset - found.oldest_offset == 8
    await destroy(URL, store=store)
    assert await keys(store) == [layout.TOMBSTONE]


async def _error(awaitable) -> BaseException | None:
    try:
        await awaitable
    except WalError as error:
        return error
    return None
