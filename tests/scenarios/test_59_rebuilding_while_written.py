"""A damaged log is rebuilt while others are at work on it, and goes on with them afterwards."""

from __future__ import annotations

import contextlib

import pytest

from tests.cloud import FAST, SEGMENTS, SMALL, URL, cloud_values, fragment_keys, snapshot, tier
from tests.uploader.logs import begin, numbers, roll_up
from uploader import CloudTier, CloudWriter
from uploader.care.rebuilding.rebuilding import apply_rebuild, plan_rebuild
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, faults
from walstore import Wal
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, FencedError, WalError

pytestmark = pytest.mark.slow


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def copy(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        await store.put_if_absent(key, data)
    return store


async def ship(path, store: ObjectStore, start: int, limit: int, **options) -> None:
    """Append records to a local log that ships them, a fragment each."""
    used = tier(store) if not options else CloudTier(URL, store=store, settings=SMALL, **options)
    async with Wal.open(path, tier=used, settings=SEGMENTS) as wal:
        for value in numbers(start, limit):
            await wal.append(value, durability="cloud")


async def test_a_local_log_ships_again_what_it_still_has(tmp_path) -> None:
    store = MemoryStore()
    await ship(tmp_path / "log", store, 1, 8)
    await store.delete([(await fragment_keys(store))[3]])
    plan = await plan_rebuild(URL, store=store)
    assert len(plan.choices) == 2
    await apply_rebuild(plan, store=store)
    await ship(tmp_path / "log", store, 8, 10)
    assert await cloud_values(store) == numbers(1, 10)


async def test_a_local_log_takes_over_what_had_lost_its_manifest(tmp_path) -> None:
    store = MemoryStore()
    await ship(tmp_path / "log", store, 1, 8)
    await store.delete([layout.MANIFEST])
    await apply_rebuild(await plan_rebuild(URL, store=store), store=store)
    with pytest.raises(FencedError):
        await ship(tmp_path / "log", store, 8, 9)
    await ship(tmp_path / "log", store, 8, 10, take_over=True)
    assert await cloud_values(store) == numbers(1, 10)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_writer_at_each_call(worker, is_open) -> None:
    """What it is told to be in the log is there, whenever it comes; or the rebuild did nothing."""
    origin = MemoryStore()
    await roll_up(await begin(origin, worker, 5), origin)
    twin = await copy(await snapshot(origin))
    await origin.delete([layout.fragment_path(3)])
    calls = FaultyStore(await copy(await snapshot(origin)))
    plan = await plan_rebuild(URL, store=calls.inner)
    await apply_rebuild(plan, store=calls)
    for at in range(calls.requests):
        store = await copy(await snapshot(origin))
        plan = await plan_rebuild(URL, store=store)
        acknowledged: list[tuple[int, bytes]] = []
        async with contextlib.AsyncExitStack() as stack:
            early = None
            if is_open:
                early = await stack.enter_async_context(_closing(store))
            meddled = FaultyStore(store)

            async def meddle(store=store, early=early, acknowledged=acknowledged) -> None:
                with contextlib.suppress(WalError):
                    if early is not None:
                        acknowledged.append((await early.append(b"early"), b"early"))
                with contextlib.suppress(WalError):
                    async with _closing(store) as late:
                        acknowledged.append((await late.append(b"late"), b"late"))

            meddled.on("any", faults.call(meddle), nth=at + 1)
            try:
                await apply_rebuild(plan, store=meddled, retry=FAST)
            except ContentionError:
                is_rebuilt = False
            else:
                is_rebuilt = True
            await meddle()
        if not is_rebuilt:
            await apply_rebuild(await plan_rebuild(URL, store=store, keep="after"), store=store)
        held = await cloud_values(store)
        manifest = Manifest.parse((await store.get(layout.MANIFEST)).data)
        for offset, value in acknowledged:
            assert held[offset - manifest.oldest_offset] == value, (at, acknowledged)
        if not is_rebuilt:
            assert acknowledged
    assert await cloud_values(twin) == numbers(1, 11)


@contextlib.asynccontextmanager
async def _closing(store: ObjectStore):
    """Open a writer that may fail at its end."""
    log = await CloudWriter.open(URL, store=store, retry=FAST)
    try:
        yield log
    finally:
        with contextlib.suppress(WalError):
            await log.aclose()
