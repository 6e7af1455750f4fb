"""Sealing: after it no append commits, whoever made it, whenever it arrives."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cloud import (
    FAST,
    URL,
    RecordingStore,
    cloud_values,
    put_fragment,
    snapshot,
    tier,
    values,
)
from tests.waiting import until
from uploader.care.admin.seal import seal
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest, blocker, is_blocker
from uploader.fragments.fragment import inspect_fragment
from uploader.layouts.log_session import Layout
from uploader.layouts.swapped_root import SwappedRoot
from uploader.read.cloud_log import CloudLog
from uploader.root.orphan_recovery import VOID
from uploader.stores import MemoryStore, PreconditionFailedError
from uploader.stores.local import LocalStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import Fault, fail, hang, happen_then_fail, timeout
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import LogNotFoundError, LogSealedError, Settings, Wal
from walstore.core.read.reader import Reader
from walstore.core.runtime.threads import Worker
from walstore.errors import OutcomeUnknownError, WalError
from walstore.testing import ManualClock


@pytest.fixture(params=["memory", "local"])
async def store(request: pytest.FixtureRequest, tmp_path: Path):
    """Where ETags count puts, and where they are hashes of the content."""
    found: ObjectStore = MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "s")
    yield FaultyStore(found)
    await found.aclose()


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def begin(store: FaultyStore, worker: Worker, fragments: int = 2) -> SwappedRoot:
    """Write a log of a few fragments, two records each, and return it as its writer sees it."""
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create("writer")
    for _ in range(fragments):
        await extend(log, store)
    return log


async def extend(log: SwappedRoot, store: FaultyStore) -> None:
    """Append a fragment to the log."""
    end = log.manifest.next_seq_no, log.manifest.next_offset
    await log.publish([await put_fragment(store, *end, [b"a", b"b"])], "writer")


async def stored(store: FaultyStore) -> Manifest:
    """Return the manifest in the store, which must be sound."""
    found = Manifest.parse((await store.inner.get(layout.MANIFEST)).data)
    found.scrub()
    return found


async def test_it_returns_where_the_log_ends(store, worker) -> None:
    before = (await begin(store, worker)).manifest
    assert await seal(URL, store=store) == 5
    found = await stored(store)
    assert found.is_sealed
    assert found == dataclasses.replace(before, writer=found.writer)
    assert found.writer.endswith("writer")
    assert await cloud_values(store.inner) == [b"a", b"b"] * 2


async def test_an_empty_log_can_be_sealed(store, worker) -> None:
    await begin(store, worker, fragments=0)
    assert await seal(URL, store=store) == 1
    assert (await stored(store)).is_sealed


async def test_where_there_is_no_log_nothing_is_made(store) -> None:
    with pytest.raises(LogNotFoundError):
        await seal(URL, store=store)
    assert await snapshot(store.inner) == {}


async def test_sealing_twice_changes_nothing(store, worker) -> None:
    await begin(store, worker)
    first = await seal(URL, store=store)
    before = await snapshot(store.inner)
    assert await seal(URL, store=store) == first
    assert await snapshot(store.inner) == before


async def test_the_store_of_the_url_is_used(worker) -> None:
    named = FaultyStore(MemoryStore("of-the-seal"))
    await begin(named, worker)
    assert await seal("memory://of-the-seal") == 5
    assert (await stored(named)).is_sealed


# -- writers ---------------------------------------------------------------------------------


async def test_a_writer_that_is_open_is_told(store, worker) -> None:
    log = await begin(store, worker)
    await seal(URL, store=store.inner)
    entry = await put_fragment(MemoryStore(), 3, 5, [b"late"])
    with pytest.raises(LogSealedError, match="sealed at offset 5") as told:
        await log.publish([entry], "writer")
    assert told.value.outcome == "not_written"
    assert not told.value.retriable
    assert (await stored(store)).next_offset == 5


async def test_a_swap_under_way_is_refused_when_it_arrives(store, worker) -> None:
    """It was sent before the log was sealed, and is an hour on its way; its fragment is, too."""
    log = await begin(store, worker)
    entry = await put_fragment(MemoryStore(), 3, 5, [b"late"])
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_match", hang(release, reached), key_prefix="manifest/")
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(_error(log.publish([entry], "writer")))
        await reached.wait()
        assert await seal(URL, store=store.inner) == 5
        release.set()
        assert isinstance(await publishing, LogSealedError)
    assert (await stored(store)).next_offset == 5


async def test_a_swap_under_way_whose_fragment_is_there_is_not_needed_any_more(
    store, worker
) -> None:
    """The fragment is published by the seal, and its writer learns that."""
    log = await begin(store, worker)
    entry = await put_fragment(store, 3, 5, [b"in"])
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_match", hang(release, reached), key_prefix="manifest/")
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(_error(log.publish([entry], "writer")))
        await reached.wait()
        assert await seal(URL, store=store.inner) == 6
        release.set()
        assert await publishing is None
    assert await cloud_values(store.inner) == [b"a", b"b"] * 2 + [b"in"]


async def test_no_manifest_of_before_can_come_back(store, worker) -> None:
    """Every swap that any writer may have sent names a manifest that is there no more."""
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create("writer")
    known = [await store.inner.get(layout.MANIFEST)]
    for _ in range(3):
        await extend(log, store)
        known.append(await store.inner.get(layout.MANIFEST))
    await seal(URL, store=store.inner)
    late = log.manifest.serialise()
    for manifest in known:
        with pytest.raises(PreconditionFailedError):
            await store.inner.put_if_match(layout.MANIFEST, late, manifest.etag)
    with pytest.raises(PreconditionFailedError):
        await store.inner.put_if_absent(layout.MANIFEST, late)


async def test_what_was_published_before_is_told_as_published(store, worker) -> None:
    """The answer was lost, and then the log was sealed: calling again says that it is in the log."""
    log = await begin(store, worker)
    entry = await put_fragment(store, 3, 5, [b"in"])
    store.on("put_if_match", happen_then_fail(timeout()))
    store.on("get", fail(timeout()), times=99)
    with pytest.raises(OutcomeUnknownError):
        await log.publish([entry], "writer")
    assert await seal(URL, store=store.inner) == 6
    store._plans.clear()
    await log.publish([entry], "writer")


async def test_sealed_at_each_call_that_a_writer_makes(worker) -> None:
    """What was acknowledged is in the sealed log, and nothing comes behind."""
    for nth in range(1, 100):
        store = FaultyStore(MemoryStore())
        log = await begin(store, worker, fragments=1)
        ends: list[int] = []

        async def seal_it(inner: ObjectStore = store.inner, ends: list[int] = ends) -> None:
            ends.append(await seal(URL, store=inner))

        store.on("any", faults.call(seal_it), nth=nth)
        acknowledged = log.manifest.next_offset
        try:
            for _ in range(3):
                await extend(log, store)
                acknowledged = log.manifest.next_offset
        except (LogSealedError, PreconditionFailedError):
            pass  # in the second case the key of the next fragment is taken
        if not ends:
            assert nth > 6
            return
        assert ends == [(await stored(store)).next_offset]
        assert acknowledged <= ends[0]
        assert len(await cloud_values(store.inner)) == ends[0] - 1
    pytest.fail("the writer never got to its end")


async def test_it_can_be_read_and_collected_and_stays_sealed(store, worker) -> None:
    await begin(store, worker)
    await seal(URL, store=store)
    log = SwappedRoot(store, FAST, worker)
    await log.load()

    def drop_first(manifest: Manifest) -> Manifest:
        first = manifest.fragments[0]
        return dataclasses.replace(
            manifest,
            fragments=manifest.fragments[1:],
            collected=manifest.collected + first.setsum,
            initial_offset=first.limit,
            initial_seq_no=first.seq_no + 1,
        )

    assert await log.change(drop_first)
    assert (await stored(store)).is_sealed
    assert await cloud_values(store.inner) == [b"a", b"b"]


# -- local logs that ship there --------------------------------------------------------------


async def test_a_local_log_keeps_what_it_cannot_ship(tmp_path: Path) -> None:
    """Its records are on disk, whoever waits for the cloud is told, and opening again is refused."""
    store = MemoryStore()
    expected = values(20)
    async with Wal.open(tmp_path / "log", tier=tier(store)) as wal:
        await wal.append_many(expected, durability="cloud")
        end = await seal(URL, store=store)
        assert end == 21
        with pytest.raises(LogSealedError) as told:
            await wal.append(b"late", durability="cloud")
        assert told.value.outcome == "durable"
        assert await wal.append(b"later") == 22
    with pytest.raises(LogSealedError, match="sealed at offset 21"):
        await Wal.open(tmp_path / "log", tier=tier(store))
    with pytest.raises(LogSealedError):
        await Wal.open(tmp_path / "new", tier=tier(store))
    async with Wal.open(tmp_path / "log") as wal:
        assert wal.tail == 23
    assert await cloud_values(store) == expected


async def test_sealed_while_a_local_log_ships(tmp_path: Path) -> None:
    """Several fragments are put at once when it happens; what the manifest names is all that counts."""
    store = RecordingStore(MemoryStore())
    release, reached = asyncio.Event(), asyncio.Event()
    expected = values(60)
    async with Wal.open(tmp_path / "log", settings=Settings(batch_bytes=4096)) as wal:
        for value in expected:
            await wal.append(value, durability="memory")
    store.on("put_if_match", hang(release, reached), key_prefix="manifest/")
    async with Wal.open(tmp_path / "log", tier=tier(store)) as wal:
        await reached.wait()
        await until(lambda: len(store.attempts) > 2)
        end = await seal(URL, store=store.inner)
        release.set()
        with pytest.raises(LogSealedError):
            await wal.append(b"late", durability="cloud")
    assert await cloud_values(store.inner) == expected[: end - 1]


# -- writers without a local log -----------------------------------------------------------------


async def test_a_cloud_writer_is_told(store) -> None:
    """Whether it is open or about to be; what it was told to be committed stays."""
    settings = WriterSettings(interval_seconds=0.0)
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, settings=settings) as log:
        assert await log.append(b"in") == 1
        assert await seal(URL, store=store) == 2
        with pytest.raises(LogSealedError) as told:
            await log.append(b"late")
        assert told.value.outcome == "not_written"
    if isinstance(store.inner, MemoryStore):
        with pytest.raises(LogSealedError):
            await CloudWriter.open(URL, store=store.inner, retry=FAST)
        assert await cloud_values(store.inner) == [b"in"]


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_sealed_at_each_call_that_a_cloud_writer_makes(layout: Layout) -> None:
    """Each append that returned is in the sealed log, and each that was refused is not."""
    settings = WriterSettings(interval_seconds=0.0)
    for nth in range(1, 100):
        store = FaultyStore(MemoryStore())
        async with CloudWriter.open(
            URL, store=store.inner, retry=FAST, settings=settings, layout=layout
        ) as log:
            await log.append(b"0")
        ends: list[int] = []

        async def seal_it(inner: ObjectStore = store.inner, ends: list[int] = ends) -> None:
            ends.append(await seal(URL, store=inner))

        store.on("any", faults.call(seal_it), nth=nth)
        told: list[object] = []
        with contextlib.suppress(LogSealedError):
            async with CloudWriter.open(URL, store=store, retry=FAST, settings=settings) as log:
                told = await asyncio.gather(
                    *(log.append(b"%d" % at) for at in range(1, 6)), return_exceptions=True
                )
        assert all(isinstance(one, int | LogSealedError) for one in told)
        found = await cloud_values(store.inner)
        written = [b"%d" % at for at, one in enumerate(told, 1) if isinstance(one, int)]
        assert found == [b"0", *written]
        if not ends:
            assert nth > 5
            return
        assert ends == [len(found) + 1]
    pytest.fail("the writer never got to its end")


# -- readers -----------------------------------------------------------------------------------


async def test_a_follower_ends_where_the_log_does(worker, clock: ManualClock) -> None:
    """Also one that waits for a record that never comes."""
    store = FaultyStore(MemoryStore())
    log = await begin(store, worker, fragments=1)
    async with (
        CloudLog.open(URL, store=store, clock=clock) as reading,
        asyncio.TaskGroup() as group,
    ):
        reader = reading.follow()
        following = group.create_task(_values(reader))
        at_the_end = group.create_task(_values(reading.follow("latest")))
        await clock.wait_for_sleepers(2)
        await extend(log, store)
        assert await seal(URL, store=store) == 5
        while not (following.done() and at_the_end.done()):
            clock.advance(2.0)
            await asyncio.sleep(0)
        assert following.result() == [b"a", b"b"] * 2
        assert at_the_end.result() == [b"a", b"b"]
        assert len(await reading.follow().fetch(max_wait_seconds=None)) == 4
        later = datetime(2100, 1, 1, tzinfo=UTC)
        assert await _values(reading.follow(later)) == []


async def _values(reader: Reader) -> list[bytes]:
    return [record.value async for record in reader]


# -- wal3's writers ---------------------------------------------------------------------------


async def test_the_key_of_the_next_fragment_is_taken(store, worker) -> None:
    await begin(store, worker)
    await seal(URL, store=store)
    key = layout.fragment_path(3)
    assert (await store.inner.get(key)).data == blocker(5)
    with pytest.raises(PreconditionFailedError):
        await store.inner.put_if_absent(key, b"a late fragment")


async def test_a_fragment_that_was_put_and_not_published_is_published_first(store, worker) -> None:
    """Its writer may be about to: it must not be told that its records are in the log, and lose them."""
    before = (await begin(store, worker)).manifest
    await put_fragment(store, 3, 5, [b"one"])
    await put_fragment(store, 4, 6, [b"two"])
    assert await seal(URL, store=store) == 7
    assert (await store.inner.get(layout.fragment_path(5))).data == blocker(7)
    assert (await stored(store)).writer.endswith(before.writer)
    assert await cloud_values(store.inner) == [b"a", b"b"] * 2 + [b"one", b"two"]


@pytest.mark.parametrize("is_fragment", [True, False])
async def test_what_can_never_be_published_gives_way(store, worker, is_fragment: bool) -> None:
    await begin(store, worker)
    key = layout.fragment_path(3)
    if is_fragment:
        await put_fragment(store, 3, 90, [b"of nowhere"])
    else:
        await store.put_if_absent(key, b"PAR1")
    assert await seal(URL, store=store) == 5
    assert (await store.inner.get(key)).data == blocker(5)


async def test_what_was_voided_is_an_empty_place(store, worker) -> None:
    """The blocker goes there at once. A void is not taken for a writer that was quicker."""
    await begin(store, worker)
    await put_fragment(store, 3, 5, [b"one"])
    await store.put_if_absent(layout.fragment_path(4), VOID)
    assert await seal(URL, store=store) == 6
    assert await blockers(store.inner) == [4]


async def test_a_wall_stands_where_something_was_voided(store, worker) -> None:
    """It is put behind two fragments in a row, and ends the log that has been published up to it."""
    await begin(store, worker)
    for number in (3, 4, 5):
        await put_fragment(store, number, number + 2, [b"x"])
    await store.put_if_absent(layout.fragment_path(6), VOID)
    assert await seal(URL, store=store) == 8
    assert await blockers(store.inner) == [6]


async def blockers(store: ObjectStore) -> list[int]:
    """Return the numbers of the places in which there is a blocker."""
    found = await snapshot(store)
    return [
        layout.parse_fragment_path(key) for key, data in sorted(found.items()) if is_blocker(data)
    ]


async def test_it_gives_way_also_if_it_is_put_or_deleted_meanwhile(store, worker) -> None:
    await begin(store, worker)
    key = layout.fragment_path(3)

    async def put() -> None:
        await put_fragment(store.inner, 3, 90, [b"of nowhere"])

    async def remove() -> None:
        await store.inner.delete([key])

    store.on("put_if_absent", faults.call(put), key_prefix=key)
    store.on("put_if_match", faults.call(remove), key_prefix=key)
    assert await seal(URL, store=store, retry=FAST) == 5
    assert (await store.inner.get(key)).data == blocker(5)


async def test_a_mark_without_a_blocker_gets_one(store, worker) -> None:
    """As an earlier version left it that died in between."""
    log = await begin(store, worker)
    await log.change(Manifest.seal)
    await put_fragment(store, 3, 5, [b"orphan"])
    assert await seal(URL, store=store) == 5
    assert (await store.inner.get(layout.fragment_path(3))).data == blocker(5)


async def test_a_blocker_without_a_mark_stops_our_writers_too(worker) -> None:
    """The sealer died in between. Whoever writes is told, and calling again ends it."""
    store = FaultyStore(MemoryStore())
    await begin(store, worker, fragments=0)
    store.on("put_if_match", faults.kill(), key_prefix=layout.MANIFEST)
    with pytest.raises(StoreKilled):
        await seal(URL, store=store)
    assert not (await stored(store)).is_sealed
    with pytest.raises(LogSealedError):
        await CloudWriter.open(URL, store=store.inner, retry=FAST)
    assert await seal(URL, store=store.inner) == 1
    assert (await stored(store)).is_sealed


class Stranger:
    """A writer that does not know the mark, as wal3's: it puts, and swaps whatever manifest is there."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._entry: Fragment | None = None
        self.acknowledged: list[bytes] = []

    async def put(self) -> None:
        """Put a fragment, unless something lies there."""
        _, manifest = await self._newest()
        with contextlib.suppress(PreconditionFailedError):
            self._entry = await put_fragment(
                self._store, manifest.next_seq_no, manifest.next_offset, [b"stranger"]
            )

    async def publish(self) -> None:
        """Let the manifest name the fragment; acknowledge it if that succeeds or has been done."""
        while self._entry is not None:
            etag, manifest = await self._newest()
            if self._entry in manifest.fragments:
                self._acknowledge()
            elif manifest.next_seq_no != self._entry.seq_no:
                self._entry = None
            else:
                unmarked = dataclasses.replace(manifest, writer="wal3")
                grown = unmarked.apply_fragments([self._entry], "wal3")
                with contextlib.suppress(PreconditionFailedError):
                    await self._store.put_if_match(layout.MANIFEST, grown.serialise(), etag)
                    self._acknowledge()

    async def append(self) -> None:
        await self.put()
        await self.publish()

    def _acknowledge(self) -> None:
        self._entry = None
        self.acknowledged.append(b"stranger")

    async def _newest(self) -> tuple[str, Manifest]:
        found = await self._store.get(layout.MANIFEST)
        return found.etag, Manifest.parse(found.data)


class BusyStranger(Stranger):
    """One with eight fragments under way, which puts the next ones before anybody else can."""

    async def go_on(self) -> None:
        """Put as many fragments as may be under way, and publish the oldest."""
        _, manifest = await self._newest()
        for ahead in range(8):
            with contextlib.suppress(PreconditionFailedError):
                seq_no, start = manifest.next_seq_no + ahead, manifest.next_offset + ahead
                await self._store.put_if_absent(
                    layout.fragment_path(seq_no), await self._made(start)
                )
        found = await self._store.get(layout.fragment_path(manifest.next_seq_no))
        if not is_blocker(found.data):
            self._entry = inspect_fragment(found.data, layout.fragment_path(manifest.next_seq_no))
            await self.publish()

    async def _made(self, start: int) -> bytes:
        elsewhere = MemoryStore()
        made = await put_fragment(elsewhere, 1, start, [b"stranger"])
        return (await elsewhere.get(made.path)).data


@pytest.mark.slow
async def test_beside_a_writer_that_never_pauses(worker) -> None:
    """Before each call of the sealer it has put what comes next, and has published something."""
    store = FaultyStore(MemoryStore())
    await begin(store, worker, fragments=1)
    stranger = BusyStranger(store.inner)
    store.on("any", faults.call(stranger.go_on), times=200)
    # Time stands still: a slow sealer looks for announced garbage beside, and then two would go on at once.
    end = await seal(URL, store=store, clock=ManualClock())
    assert store._plans  # it did not have to wait for the end of the writer
    for _ in range(20):
        await stranger.go_on()
    found = await stored(store)
    assert found.is_sealed
    assert found.next_offset == end
    assert await cloud_values(store.inner) == [b"a", b"b"] + [b"stranger"] * (end - 3)
    assert len(stranger.acknowledged) <= end - 3
    assert (await store.inner.get(layout.fragment_path(found.next_seq_no))).data == blocker(end)


@pytest.mark.slow
async def test_beside_a_writer_that_does_not_know_the_mark(worker) -> None:
    """It puts before one call of the sealer, and swaps before the same one or a later one."""
    for puts_at, swaps_at in itertools.combinations_with_replacement(range(1, 10), 2):
        store = FaultyStore(MemoryStore())
        await begin(store, worker, fragments=1)
        stranger = Stranger(store.inner)
        store.on("any", faults.call(stranger.put), nth=puts_at)
        store.on("any", faults.call(stranger.publish), nth=swaps_at)
        end = await seal(URL, store=store)
        await stranger.publish()
        await stranger.append()
        found = await stored(store)
        assert found.is_sealed
        assert found.next_offset == end
        assert await cloud_values(store.inner) == [b"a", b"b", *stranger.acknowledged]
        key = layout.fragment_path(found.next_seq_no)
        assert (await store.inner.get(key)).data == blocker(end)


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_call_and_called_again(worker, fault: type[Fault]) -> None:
    for nth in range(1, 50):
        store = FaultyStore(MemoryStore())
        await begin(store, worker)
        await put_fragment(store, 3, 5, [b"orphan"])
        await put_fragment(store, 4, 90, [b"of nowhere"])
        store.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled):
            assert await seal(URL, store=store) == 6
        if store._plans:
            assert nth > 6
            return
        assert await seal(URL, store=store.inner) == 6
        assert (await stored(store)).is_sealed
        assert (await store.inner.get(layout.fragment_path(4))).data == blocker(6)
    pytest.fail("it never got to its end")


@pytest.mark.parametrize("kind", ["put_if_absent", "put_if_match"])
async def test_an_answer_that_never_comes_is_told_and_calling_again_helps(
    store, worker, kind
) -> None:
    await begin(store, worker)
    store.on(kind, happen_then_fail(timeout()), times=2)
    store.on("get", fail(timeout()), nth=2, times=2)
    with pytest.raises(OutcomeUnknownError) as told:
        await seal(URL, store=store, retry=FAST)
    assert told.value.retriable
    store._plans.clear()
    assert await seal(URL, store=store, retry=FAST) == 5


async def _error(awaitable) -> WalError | None:
    try:
        await awaitable
    except WalError as error:
        return error
    return None
