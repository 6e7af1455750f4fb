"""The store that fails on demand does exactly what its plan says, and counts everything."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.cases import case
from uploader.stores import MemoryStore, ObjectNotFoundError, PreconditionFailedError
from uploader.testing import FaultyStore, StoreKilled, faults
from walstore.errors import StorageUnavailableError, WalError


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


# -- what happens, and what is said about it -------------------------------------------------


def answer_of(says: str) -> type[Exception] | None:
    if says == "ok":
        return None
    return PreconditionFailedError if says == "412" else StorageUnavailableError


async def put(store, kind: str) -> str:
    if kind == "put_if_absent":
        return await store.put_if_absent("a", b"1")
    return await store.put_if_match("b", b"1", (await store.inner.get("b")).etag)


async def test_a_store_may_say_anything_about_a_put():
    kinds = ("put_if_absent", "put_if_match")
    for kind, says, happens in itertools.product(kinds, faults.SAYS, (True, False)):
        with case(kind, says, happens):
            await check_an_answer_to_a_put(FaultyStore(MemoryStore()), kind, says, happens)


async def check_an_answer_to_a_put(store, kind, says, happens):
    await store.inner.put_if_absent("b", b"0")
    store.on(kind, faults.report(says, happens=happens))
    expected = answer_of(says)
    if expected is None:
        assert isinstance(await put(store, kind), str)
    else:
        with pytest.raises(expected):
            await put(store, kind)
    key = "a" if kind == "put_if_absent" else "b"
    found = await store.inner.head(key)
    assert (found is not None and (await store.inner.get(key)).data == b"1") == happens


async def test_a_store_may_say_anything_about_any_call():
    for kind, says, happens in itertools.product(KINDS, faults.SAYS, (True, False)):
        with case(kind, says, happens):
            await check_an_answer_to_a_call(FaultyStore(MemoryStore()), kind, says, happens)


async def check_an_answer_to_a_call(store, kind, says, happens):
    store.on(kind, faults.report(says, happens=happens))
    expected = answer_of(says)
    if expected is None and kind in {"get", "get_range"} and not happens:
        expected = ObjectNotFoundError
    if expected is None:
        try:
            await everything(store)
        except (PreconditionFailedError, ObjectNotFoundError):
            # A put that was claimed, and did not happen, is missed by what follows.
            assert kind in {"put_if_absent", "put_if_match"}
            assert not happens
        return
    with pytest.raises(expected):
        await everything(store)


async def test_what_the_answers_leave_open(store):
    """A timeout and a 500 leave the outcome open; a 412 and a 409 claim that nothing happened."""
    outcomes = {}
    for says in ("timeout", "412", "409", "500"):
        store.on("put_if_absent", faults.report(says, happens=False))
        with pytest.raises(WalError) as caught:
            await store.put_if_absent("a", b"1")
        outcomes[says] = caught.value.outcome
    assert outcomes == {
        "timeout": "unknown",
        "412": "not_written",
        "409": "not_written",
        "500": "unknown",
    }


async def test_a_refusal_is_passed_on_by_a_store_that_tells_the_truth(store):
    await store.put_if_absent("a", b"1")
    store.on("put_if_absent", faults.report("ok", happens=True))
    with pytest.raises(PreconditionFailedError):
        await store.put_if_absent("a", b"2")


async def test_a_claimed_etag_fits_no_object(store):
    store.on("put_if_absent", faults.report("ok", happens=False), times=2)
    etags = {await store.put_if_absent(key, b"1") for key in "ab"}
    assert len(etags) == 2
    await store.put_if_absent("a", b"1")
    for etag in etags:
        with pytest.raises(PreconditionFailedError):
            await store.put_if_match("a", b"2", etag)


# -- late and in another order ---------------------------------------------------------------


async def test_a_put_that_arrives_an_hour_later(store):
    """By then somebody else's object is there, or it was deleted; whatever it is, it is late."""
    store.on("put_if_absent", faults.postpone(store.late), times=2)
    for key in "ab":
        with pytest.raises(StorageUnavailableError) as caught:
            await store.put_if_absent(key, b"late")
        assert caught.value.outcome == "unknown"
    assert await keys(store) == []
    await store.put_if_absent("a", b"in time")
    refused, etag = await store.deliver()
    assert isinstance(refused, PreconditionFailedError)
    assert etag == (await store.get("b")).etag
    assert (await store.get("a")).data == b"in time"
    assert await store.deliver() == []


async def test_late_puts_arrive_in_another_order(store):
    store.on("put_if_absent", faults.postpone(store.late, faults.busy()), times=2)
    for data in (b"first", b"second"):
        with pytest.raises(StorageUnavailableError):
            await store.put_if_absent("a", data)
    await store.deliver(newest_first=True)
    assert (await store.get("a")).data == b"second"


async def test_a_late_put_arrives_although_its_process_is_dead(store):
    store.on("put_if_absent", faults.postpone(store.late))
    with pytest.raises(StorageUnavailableError):
        await store.put_if_absent("a", b"1")
    store.on("any", faults.kill())
    with pytest.raises(StoreKilled):
        await store.get("a")
    await store.deliver()
    assert await keys(store.inner) == ["a"]


async def test_a_put_outlives_its_caller(store):
    reached = asyncio.Event()
    store.on("put_if_absent", faults.outlive_caller(store.late, reached))
    putting = asyncio.create_task(store.put_if_absent("a", b"1"))
    await reached.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await keys(store) == []
    await store.deliver()
    assert await keys(store) == ["a"]


async def test_calls_made_together_happen_in_reverse(store):
    store.on("put_if_absent", faults.reverse(3), times=3)
    async with asyncio.TaskGroup() as group:
        putting = [group.create_task(caught(store.put_if_absent("a", b"%d" % n))) for n in range(3)]
    assert [type(task.result()) for task in putting] == [
        PreconditionFailedError,
        PreconditionFailedError,
        str,
    ]
    assert (await store.get("a")).data == b"2"


async def caught(putting) -> object:
    try:
        return await putting
    except PreconditionFailedError as error:
        return error
