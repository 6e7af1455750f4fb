"""How many logs there are is decided once."""

from __future__ import annotations

import contextlib

import pytest

from tests.cloud import FAST
from tests.uploader.partitioned.writes import keys_in, worker_of
from uploader import CloudWriter
from uploader.partitioned import PARTITIONS, open_partitions
from uploader.partitioned.partitions import SubStore
from uploader.stores import MemoryStore, ObjectNotFoundError
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import happen_then_kill, kill, report
from walstore.errors import InvalidSettingsError, UnsupportedStoreError


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def opened(store, partitions: int | None) -> int:
    async with worker_of() as worker:
        return await open_partitions(store, partitions, retry=FAST, worker=worker)


async def test_the_first_one_says(store):
    assert await opened(store, 4) == 4
    assert await opened(store, None) == 4
    assert await opened(store, 4) == 4
    with pytest.raises(InvalidSettingsError, match="has 4 partitions, not 5"):
        await opened(store, 5)
    assert await keys_in(store) == [PARTITIONS]


async def test_one_unless_it_is_told_otherwise(store):
    assert await opened(store, None) == 1


async def test_a_log_that_is_there_stays_what_it_is(store):
    async with CloudWriter.open("memory://x", store=store.inner, retry=FAST) as log:
        await log.append(b"x")
    before = await keys_in(store)
    with pytest.raises(InvalidSettingsError, match="not partitioned"):
        await opened(store, 2)
    assert await keys_in(store) == before


async def test_a_store_that_ignores_conditions_is_refused(store):
    store.on("put_if_absent", report("ok", happens=False), times=9)
    with pytest.raises((UnsupportedStoreError, ObjectNotFoundError)):
        await opened(store, 2)


@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_every_call(fault):
    for nth in range(1, 40):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        with contextlib.suppress(StoreKilled):
            await opened(store, 3)
        assert await opened(store.inner, 3) == 3
        if store.requests < nth:
            assert nth > 5
            return
    raise AssertionError("it never ended")


async def test_a_part_of_a_store_is_a_store(store):
    part, other = SubStore(store, 1), SubStore(store, 10)
    etag = await part.put_if_absent("log/a", b"1")
    await part.put_if_absent("log/b", b"2")
    await other.put_if_absent("log/c", b"3")
    assert part.url.endswith("/1")
    assert await keys_in(part) == ["log/a", "log/b"]
    assert [one.key async for one in part.list("log/", after="log/a")] == ["log/b"]
    assert await part.get_range("log/a", 0, 1) == b"1"
    found = await part.head("log/a")
    assert found is not None
    assert (found.key, found.etag) == ("log/a", etag)
    assert await part.head("log/x") is None
    await part.put_if_match("log/a", b"4", etag)
    assert (await part.get("log/a")).data == b"4"
    await part.delete(["log/a"])
    await part.aclose()
    assert await keys_in(store) == ["1/log/b", "10/log/c"]
