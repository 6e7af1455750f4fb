"""Shipping a log to object storage: what must hold when anything stops anywhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from tests.local import turns
from tests.waiting import until
from uploader import CloudLog, CloudTier, UploadSettings
from uploader.format import layout
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectNotFoundError
from uploader.stores.retry import RetryPolicy
from uploader.stores.wrapper import StoreWrapper
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import (
    Fault,
    fail,
    hang,
    happen_then_fail,
    happen_then_kill,
    kill,
    timeout,
)
from walstore import ContentionError, Settings, StorageUnavailableError, Wal
from walstore.errors import WalClosedError, WalError
from walstore.testing import ManualClock

SMALL = UploadSettings(
    fragment_bytes=4096,
    fragment_age_seconds=0.01,
    max_in_flight=4,
    drain_seconds=30,
    parallel_puts=True,
)
FAST = RetryPolicy(attempts=2, first_wait_seconds=0.001, longest_wait_seconds=0.001)
SEGMENTS = Settings(segment_bytes=64 << 10, batch_bytes=4096)


class CountingStore(FaultyStore):
    """Remembers which fragments were put, and how often with success."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.put: Counter[str] = Counter()

    async def put_if_absent(self, key: str, data: bytes) -> str:
        if key.startswith("log/"):
            self.put[key] += 1
        return await super().put_if_absent(key, data)


def tier(store: FaultyStore, settings: UploadSettings = SMALL) -> CloudTier:
    """Return a tier that ships little fragments to the store and retries without waiting."""
    return CloudTier("memory://ignored", store=store, settings=settings, retry=FAST)


def values(count: int, size: int = 500) -> list[bytes]:
    """Return distinct values."""
    return [b"%07d" % number + bytes(size - 7) for number in range(1, count + 1)]


async def cloud_values(store: MemoryStore) -> list[bytes]:
    """Return everything that the prefix alone gives back, after verifying it."""
    async with CloudLog.open("memory://ignored", store=store) as log:
        await log.verify()
        return [record.value async for record in log.reader()]


async def unreferenced(store: MemoryStore) -> list[str]:
    """Return the fragments that no manifest names."""
    async with CloudLog.open("memory://ignored", store=store) as log:
        named = {entry.path for entry in await log.fragments()}
    return [listed.key async for listed in store.list("log/") if listed.key not in named]


async def test_closing_ships_everything(log_directory: Path) -> None:
    """What was appended is in the cloud when the log has been closed, in order, once."""
    store = MemoryStore()
    expected = values(100)
    async with Wal.open(log_directory, settings=SEGMENTS, tier=tier(FaultyStore(store))) as wal:
        for value in expected:
            await wal.append(value, durability="memory")
    assert await cloud_values(store) == expected


async def test_cloud_durability_waits_for_the_manifest(log_directory: Path) -> None:
    """An append at level cloud returns when the manifest names it, and not before."""
    store = FaultyStore(MemoryStore())
    release, reached = asyncio.Event(), asyncio.Event()
    slow = UploadSettings(fragment_age_seconds=3600.0)
    async with Wal.open(log_directory, tier=tier(store, slow)) as wal, asyncio.TaskGroup() as group:
        first = await wal.append(b"first", durability="cloud")  # creates the manifest
        assert wal.uploaded_limit == first + 1
        store.on("put_if_match", hang(release, reached), key_prefix="manifest/")
        second = group.create_task(wal.append(b"second", durability="cloud"))
        await reached.wait()
        assert not second.done()
        assert wal.durable_limit == first + 2
        release.set()
        assert await second < wal.uploaded_limit


@pytest.mark.parametrize("fault", [pytest.param(kill, marks=pytest.mark.slow), happen_then_kill])
async def test_L16_killed_at_every_call_of_the_store(tmp_path: Path, fault: type[Fault]) -> None:
    """However often it dies between object and manifest: nothing twice, nothing lost, no orphan."""
    expected = values(40)
    for nth in range(1, 200):
        path = tmp_path / f"log{nth}"
        store = CountingStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        survived = await _run_until_killed(path, store, expected)
        again = CountingStore(store.inner)
        async with Wal.open(path, settings=SEGMENTS, tier=tier(again)) as wal:
            await wal.append_many(expected[wal.tail - 1 :] or [b"last"])
        assert (await cloud_values(store.inner))[: len(expected)] == expected
        assert await unreferenced(store.inner) == []
        uploaded = {key async for key in _keys(store.inner)}
        for key in uploaded:
            # A put that was killed before it happened was not an upload.
            assert again.put[key] == 0 or key not in survived
        if not store.is_killed:
            return
    pytest.fail("the run never got to its end")


async def _run_until_killed(path: Path, store: CountingStore, expected: list[bytes]) -> set[str]:
    """Append, ship and close, or die; return the fragments that are in the store then."""
    try:
        async with Wal.open(path, settings=SEGMENTS, tier=tier(store)) as wal:
            for value in expected:
                await wal.append(value)
    except (StoreKilled, BaseExceptionGroup, WalClosedError):
        pass
    return {key async for key in _keys(store.inner)}


async def _keys(store: MemoryStore) -> AsyncIterator[str]:
    async for listed in store.list("log/"):
        yield listed.key


async def test_L16_a_hole_between_orphans_is_filled_to_fit(log_directory: Path) -> None:
    """Fragments 2 to 4 are put, 1 is not, the process dies: 1 is cut to fit, the rest adopted."""
    inner = MemoryStore()
    store = CountingStore(inner)
    release, reached, killed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    expected = values(40)
    async with Wal.open(log_directory, settings=SEGMENTS) as wal:
        for value in expected:
            await wal.append(value, durability="memory")
    first = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"
    store.on("put_if_absent", hang(release, reached), key_prefix=first)

    async def wait_for_orphans() -> None:
        await reached.wait()
        await until(lambda: len(store.put) > 3)
        store.is_killed = True
        release.set()
        killed.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(wait_for_orphans())
        with pytest.raises((StoreKilled, BaseExceptionGroup)):
            async with Wal.open(log_directory, settings=SEGMENTS, tier=tier(store)):
                await killed.wait()
    with pytest.raises(ObjectNotFoundError):
        await inner.get("log/Bucket=0000000000000000/FragmentSeqNo=0000000000000005.parquet")
    orphans = {key async for key in _keys(inner)}
    again = CountingStore(inner)
    async with Wal.open(log_directory, settings=SEGMENTS, tier=tier(again)) as wal:
        await wal.append(b"last")
    assert await cloud_values(inner) == [*expected, b"last"]
    assert await unreferenced(inner) == []
    assert not orphans & set(again.put)


async def test_orphans_of_another_writer_are_refused(tmp_path: Path) -> None:
    """A foreign fragment where ours belongs is never overwritten nor adopted."""
    first, third = layout.fragment_path(1), layout.fragment_path(3)
    inner, other = MemoryStore(), MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(FaultyStore(inner))) as wal:
        await wal.append(b"ours")
    async with Wal.open(tmp_path / "b", tier=tier(FaultyStore(other))) as wal:
        await wal.append(b"theirs")
    foreign = (await other.get(first)).data
    await inner.put_if_absent(third, foreign)
    async with Wal.open(tmp_path / "a", tier=tier(FaultyStore(inner))) as wal:
        await wal.append(b"second", durability="cloud")
        with pytest.raises(ContentionError, match="another writer") as told:
            await wal.append(b"third", durability="cloud")
        assert told.value.outcome == "durable"
        assert await wal.append(b"fourth") == 4
    assert (await inner.get(third)).data == foreign
    assert await cloud_values(inner) == [b"ours", b"second"]


async def test_two_logs_cannot_ship_to_one_prefix(tmp_path: Path) -> None:
    """The second one is refused when it opens, and nothing of the first is touched."""
    inner = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(FaultyStore(inner))) as wal:
        await wal.append(b"a")
    async with Wal.open(tmp_path / "b") as wal:
        await wal.append_many([b"b"] * 3)
    with pytest.raises(ContentionError, match="another log"):
        await Wal.open(tmp_path / "b", tier=tier(FaultyStore(inner)))
    assert await cloud_values(inner) == [b"a"]


async def test_a_new_directory_continues_the_log_of_the_prefix(tmp_path: Path) -> None:
    """After the loss of the local disk offsets go on behind the last uploaded record."""
    inner = MemoryStore()
    async with Wal.open(tmp_path / "lost", tier=tier(FaultyStore(inner))) as wal:
        await wal.append_many([b"1", b"2"])
        identity = wal.log_id
    async with Wal.open(tmp_path / "new", tier=tier(FaultyStore(inner))) as wal:
        assert await wal.append(b"3") == 3
        assert wal.log_id == identity
        assert wal.head == 1
        assert [record.value async for record in wal.reader(follow=False)] == [b"1", b"2", b"3"]
    assert await cloud_values(inner) == [b"1", b"2", b"3"]


async def test_a_store_that_is_away_stops_nothing_local(log_directory: Path) -> None:
    """Appends go on while the store fails, and everything is shipped once it is back."""
    store = FaultyStore(MemoryStore())
    async with Wal.open(log_directory, settings=SEGMENTS, tier=tier(store)) as wal:
        store.on("put_if_absent", fail(timeout("not_written")), times=10)
        store.on("put_if_match", happen_then_fail(timeout()), times=1)
        for value in values(30):
            await wal.append(value)
        await wal.wait_durable(30, "cloud")
        assert wal.statistics().tier_failure is None
    assert await cloud_values(store.inner) == values(30)


async def test_closing_gives_up_on_a_dead_store_after_a_while(
    log_directory: Path, clock: ManualClock
) -> None:
    """What could not be shipped stays on disk, cloud waiters are told, the next opening ships it."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    mortal = CloudTier("memory://ignored", store=store, settings=SMALL, retry=FAST, clock=clock)
    wal = await Wal.open(log_directory, tier=mortal)
    store.on("any", fail(timeout()), times=10**9)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_outcome(wal.append(b"v", durability="cloud")))
        await until(lambda: wal.durable_limit > 1)
        closing = group.create_task(wal.aclose())
        while not closing.done():
            await turns(50)
            clock.advance(SMALL.drain_seconds)
        assert isinstance(await waiting, StorageUnavailableError)
    async with Wal.open(log_directory, tier=tier(FaultyStore(inner))):
        pass
    assert await cloud_values(inner) == [b"v"]


async def _outcome(appending: Awaitable[int]) -> object:
    try:
        return await appending
    except WalError as error:
        return error


@pytest.mark.slow
async def test_uploaded_segments_leave_the_local_disk(log_directory: Path) -> None:
    """With a local budget, sealed segments go once they are uploaded; readers find them in the cloud."""
    store = FaultyStore(MemoryStore())
    settings = SEGMENTS.replace(retention_bytes=0, cache_bytes=0)
    expected = values(600)
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        for value in expected:
            await wal.append(value, durability="memory")
        await wal.rotate()
        await wal.wait_durable(wal.tail - 1, "cloud")
        await until(lambda: wal.statistics().local_head == wal.tail)
        assert wal.head == 1
        assert wal.statistics().segments == 1
        assert [record.value async for record in wal.reader(follow=False)] == expected
        assert wal.statistics().tier_reads > 0
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        assert wal.head == 1
        assert [r.value async for r in wal.reader(590, follow=False)] == expected[589:]


@pytest.mark.slow
async def test_one_reader_through_all_tiers_while_they_change(log_directory: Path) -> None:
    """From the cloud over files and cache to live, without gap or duplicate, under rotation,
    upload and deletion."""
    store = FaultyStore(MemoryStore())
    settings = SEGMENTS.replace(retention_bytes=64 << 10, cache_bytes=16 << 10)
    expected = values(1500)
    seen: list[bytes] = []
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        for value in expected[:500]:
            await wal.append(value, durability="memory")
        await wal.wait_durable(500, "cloud")
        await until(lambda: wal.statistics().local_head > 1)

        async def read_slowly() -> None:
            async for record in wal.follow():
                seen.append(record.value)
                if record.offset % 100 == 0:  # let the others get ahead
                    await wal.wait_durable(min(record.offset, wal.tail - 1), "cloud")
                if record.offset == 1500:
                    return

        async with asyncio.TaskGroup() as group:
            group.create_task(read_slowly())
            for value in expected[500:]:
                await wal.append(value)
        found = wal.statistics()
    assert seen == expected
    assert found.tier_reads
    assert found.file_reads
    assert found.cache_hits


async def test_everything_is_cancelled_while_the_store_closes(log_directory: Path) -> None:
    """A store whose closing was cancelled is closed again."""

    class SlowToClose(StoreWrapper):
        began, ended = 0, 0

        async def aclose(self) -> None:
            self.began += 1
            if self.began < 3:
                await asyncio.Event().wait()
            await super().aclose()
            self.ended += 1

    store = SlowToClose(MemoryStore())
    wal = await Wal.open(log_directory, tier=tier(store))
    await wal.append(b"x", durability="cloud")
    closing = asyncio.create_task(wal.aclose())
    mine = {asyncio.current_task(), closing}
    for times in (1, 2):
        await until(lambda times=times: store.began == times)
        for task in asyncio.all_tasks() - mine:
            task.cancel()
    await closing
    assert store.ended == 1


@pytest.mark.parametrize("later", [0, 1, 2, 3])
async def test_everything_is_cancelled_before_shipping_has_begun(
    log_directory: Path, later: int
) -> None:
    """Closing ends without a cancellation of its own, and what was accepted is on disk."""
    wal = await Wal.open(log_directory, tier=tier(CountingStore(MemoryStore())))
    wal.append_nowait(b"accepted")
    for _ in range(later):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await wal.aclose()
    async with Wal.open(log_directory) as wal:
        assert await wal.wait_durable(1) is None
