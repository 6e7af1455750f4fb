"""The store that fails on demand does exactly what its plan says, and counts everything."""

from __future__ import annotations

import asyncio

import pytest

from uploader.stores import MemoryStore, ObjectNotFoundError
from uploader.testing import FaultyStore, StoreKilled, faults
from walstore.errors import StorageUnavailableError


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def keys(store) -> list[str]:
    return [listed.key async for listed in store.list("")]


async def everything(store) -> None:
    """One call of each kind."""
    etag = await store.put_if_absent("a", b"12345")
    await store.put_if_match("a", b"1234567", etag)
    await store.get("a")
    await store.get_range("a", 0, 2)
    await store.head("a")
    await keys(store)
    await store.delete(["a"])


KINDS = ("put_if_absent", "put_if_match", "get", "get_range", "head", "list", "delete")


async def test_counts(store):
    await everything(store)
    found = {kind: (store.count(kind).requests, store.count(kind).bytes) for kind in KINDS}
    assert found == {
        "put_if_absent": (1, 5),
        "put_if_match": (1, 7),
        "get": (1, 7),
        "get_range": (1, 2),
        "head": (1, 0),
        "list": (1, 0),
        "delete": (1, 0),
    }
    assert store.requests == 7


async def test_a_failed_call_counts_but_did_not_happen(store):
    store.on("put_if_absent", faults.fail(faults.timeout()))
    with pytest.raises(StorageUnavailableError) as caught:
        await store.put_if_absent("a", b"1")
    assert caught.value.outcome == "unknown"
    assert store.count("put_if_absent").requests == 1
    assert await keys(store) == []
    await store.put_if_absent("a", b"1")


async def test_happen_then_fail(store):
    store.on("put_if_absent", faults.happen_then_fail(faults.timeout()))
    with pytest.raises(StorageUnavailableError):
        await store.put_if_absent("a", b"1")
    assert (await store.get("a")).data == b"1"


async def test_an_answer_that_is_lost_may_have_been_a_refusal(store):
    store.on("get", faults.happen_then_fail(faults.timeout()))
    with pytest.raises(StorageUnavailableError) as caught:
        await store.get("missing")
    assert isinstance(caught.value.__cause__, ObjectNotFoundError)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_can_fail(store, kind):
    store.on(kind, faults.fail(faults.conflict()))
    with pytest.raises(StorageUnavailableError):
        await everything(store)


async def test_nth_and_times(store):
    await store.put_if_absent("a", b"1")
    store.on("get", faults.fail(faults.timeout()), nth=2, times=2)
    answers = []
    for _ in range(5):
        try:
            await store.get("a")
            answers.append("ok")
        except StorageUnavailableError:
            answers.append("failed")
    assert answers == ["ok", "failed", "failed", "ok", "ok"]


async def test_any_counts_calls_of_all_kinds(store):
    store.on("any", faults.fail(faults.timeout()), nth=3)
    with pytest.raises(StorageUnavailableError):
        await everything(store)
    assert store.requests == 3
    assert store.count("get").requests == 1


async def test_a_key_prefix_narrows_a_plan(store):
    store.on("put_if_absent", faults.fail(faults.timeout()), key_prefix="log/")
    await store.put_if_absent("manifest/MANIFEST", b"")
    with pytest.raises(StorageUnavailableError):
        await store.put_if_absent("log/1", b"")


@pytest.mark.parametrize(
    ("fault", "seen_while_hanging"),
    [(faults.hang, []), (faults.happen_then_hang, ["a"])],
)
async def test_hanging_calls(store, fault, seen_while_hanging):
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", fault(release, reached))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(store.put_if_absent("a", b"1"))
        await reached.wait()
        assert await keys(store) == seen_while_hanging
        release.set()
    assert task.result() == (await store.get("a")).etag


async def test_somebody_else_acts_first(store):
    async def rival() -> None:
        await store.inner.put_if_absent("a", b"theirs")

    store.on("get", faults.call(rival))
    assert (await store.get("a")).data == b"theirs"


@pytest.mark.parametrize(("fault", "left"), [(faults.kill, []), (faults.happen_then_kill, ["a"])])
async def test_after_death_nothing_works_any_more(store, fault, left):
    store.on("put_if_absent", fault())
    with pytest.raises(StoreKilled):
        await store.put_if_absent("a", b"1")
    with pytest.raises(StoreKilled):
        await store.put_if_absent("b", b"1")
    with pytest.raises(StoreKilled):
        await keys(store)
    assert store.is_killed
    assert await keys(store.inner) == left


async def test_a_process_can_be_killed_at_each_of_its_calls():
    for nth in range(1, 20):
        store = FaultyStore(MemoryStore())
        store.on("any", faults.kill(), nth=nth)
        try:
            await everything(store)
        except StoreKilled:
            assert store.requests == nth
        else:
            break
    assert nth == len(KINDS) + 1


async def test_the_wrapper_has_the_url_of_what_it_wraps(store):
    assert store.url == store.inner.url
    await store.aclose()
