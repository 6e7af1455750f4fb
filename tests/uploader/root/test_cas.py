"""Conditional puts: every way an attempt can go, alone and one after the other."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os

import pytest

from tests.cases import case
from tests.uploader.answers import refusal
from uploader.root.cas import TRUSTED_SECONDS, PutOutcome, create, swap
from uploader.stores import LocalStore, MemoryStore, PreconditionFailedError, RetryPolicy
from uploader.testing import FaultyStore, StoreKilled, faults
from walstore.errors import (
    DiskFullError,
    LogNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

KEY = "manifest/MANIFEST"
OLD, OURS, THEIRS = b"old", b"ours", b"theirs"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


class Create:
    """Puts into an empty place."""

    kind = "put_if_absent"

    def __init__(self, store: FaultyStore, retry: RetryPolicy) -> None:
        self.store = store
        self.retry = retry

    async def prepare(self) -> None:
        pass

    async def run(self):
        return await create(self.store, KEY, OURS, retry=self.retry)

    async def rival(self) -> None:
        await self.store.inner.put_if_absent(KEY, THEIRS)


class Swap(Create):
    """Replaces what it has read."""

    kind = "put_if_match"

    async def prepare(self) -> None:
        self.etag = await self.store.inner.put_if_absent(KEY, OLD)

    async def run(self):
        return await swap(self.store, KEY, OURS, self.etag, retry=self.retry)

    async def rival(self) -> None:
        await self.store.inner.put_if_match(KEY, THEIRS, self.etag)


OPERATIONS = [Create, Swap]


@pytest.fixture(params=OPERATIONS, ids=["create", "swap"])
async def put(request, store, impatient):
    operation = request.param(store, impatient)
    await operation.prepare()
    return operation


async def new_put(operation: type[Create], retry: RetryPolicy) -> tuple[FaultyStore, Create]:
    """Return a new store and a put into it."""
    store = FaultyStore(MemoryStore())
    put = operation(store, retry)
    await put.prepare()
    return store, put


async def content(store: FaultyStore) -> bytes | None:
    found = await store.inner.head(KEY)
    return None if found is None else (await store.inner.get(KEY)).data


ANSWERS = {
    "ok": None,
    "timeout": faults.timeout,
    "412": refusal,
    "409": faults.conflict,
}


def attempt(happens: bool, answer: str):
    """A put that takes effect or not, and what its caller is told. A false "ok" does not exist."""
    if answer == "ok":
        return None
    error = ANSWERS[answer]()
    return faults.happen_then_fail(error) if happens else faults.fail(error)


ONE_ATTEMPT = [
    (happens, answer)
    for happens, answer in itertools.product([True, False], ANSWERS)
    if happens or answer != "ok"
]
TWO_ATTEMPTS = list(itertools.product(ONE_ATTEMPT, repeat=2))


@pytest.mark.parametrize(("happens", "answer"), ONE_ATTEMPT)
async def test_one_bad_attempt_without_a_rival_ends_in_commit(put, store, happens, answer):
    if fault := attempt(happens, answer):
        store.on(put.kind, fault)
    result = await put.run()
    assert result.outcome is PutOutcome.COMMITTED
    assert result.etag == (await store.inner.get(KEY)).etag
    assert result.data is None
    assert result.cause is None
    assert await content(store) == OURS


@pytest.mark.parametrize(("happens", "answer"), ONE_ATTEMPT)
async def test_one_bad_attempt_with_a_rival_before_it_is_lost(put, store, happens, answer):
    await put.rival()
    if fault := attempt(happens, answer):
        store.on(put.kind, fault)
    result = await put.run()
    assert result.outcome is PutOutcome.LOST
    theirs = await store.inner.get(KEY)
    assert (result.etag, result.data) == (theirs.etag, THEIRS)
    assert await content(store) == THEIRS


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_any_two_attempts_in_a_row_tell_the_truth(operation, impatient):
    for attempts in TWO_ATTEMPTS:
        with case(*attempts):
            store, put = await new_put(operation, impatient)
            for happens, answer in attempts:
                if fault := attempt(happens, answer):
                    store.on(put.kind, fault)
            result = await put.run()
            assert result.outcome is PutOutcome.COMMITTED
            assert result.etag == (await store.inner.get(KEY)).etag
            assert await content(store) == OURS


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_rival_between_two_attempts_is_never_overwritten(operation, impatient):
    for attempts in TWO_ATTEMPTS:
        with case(*attempts):
            await check_a_rival_between(*await new_put(operation, impatient), *attempts)


async def check_a_rival_between(store, put, first_attempt, second_attempt):
    (first_happens, first), (second_happens, second) = first_attempt, second_attempt
    rivals = 0

    async def rival() -> None:
        nonlocal rivals
        if not rivals and await content(store) in {None, OLD}:
            rivals += 1
            await put.rival()

    if fault := attempt(first_happens, first):
        store.on(put.kind, fault)
    store.on("get", faults.call(rival))
    store.on(put.kind, faults.call(rival))
    if fault := attempt(second_happens, second):
        store.on(put.kind, fault)
    result = await put.run()
    if rivals:
        assert result.outcome is PutOutcome.LOST
        assert result.data == THEIRS == await content(store)
    else:
        assert result.outcome is PutOutcome.COMMITTED
        assert await content(store) == OURS


async def test_an_unreadable_answer_is_unknown(put, store):
    """The put may have happened, and no read tells."""
    store.on(put.kind, faults.happen_then_fail(faults.timeout()), times=100)
    store.on("get", faults.fail(faults.timeout("not_written")), times=100)
    result = await put.run()
    assert result.outcome is PutOutcome.UNKNOWN
    assert result.etag is None
    assert isinstance(result.cause, StorageUnavailableError)
    assert store.count(put.kind).requests == 5


async def test_unknown_is_resolved_by_asking_again(put, store):
    store.on(put.kind, faults.happen_then_fail(faults.timeout()), times=5)
    store.on("get", faults.fail(faults.timeout("not_written")), times=5)
    assert (await put.run()).outcome is PutOutcome.UNKNOWN
    assert (await put.run()).outcome is PutOutcome.COMMITTED


async def test_a_refusal_that_cannot_be_looked_into_is_unknown(put, store):
    """It may have been about a put of ours before this call."""
    store.on(put.kind, faults.fail(refusal()), times=5)
    store.on("get", faults.fail(faults.timeout("not_written")), times=5)
    assert (await put.run()).outcome is PutOutcome.UNKNOWN


async def test_timeouts_that_never_happen_stay_unknown(put, store):
    """The last of them may still be under way."""
    store.on(put.kind, faults.fail(faults.timeout()), times=5)
    result = await put.run()
    assert result.outcome is PutOutcome.UNKNOWN
    assert await content(store) in {None, OLD}


async def test_conflicts_to_the_end_are_an_error_that_says_not_written(put, store, instant_clock):
    store.on(put.kind, faults.fail(faults.conflict()), times=5)
    with pytest.raises(StorageUnavailableError) as caught:
        await put.run()
    assert caught.value.outcome == "not_written"
    assert caught.value.retriable
    assert store.requests == 5, "a conflict needs no read"
    assert instant_clock.waits == [0.05, 0.1, 0.2, 0.4]


async def test_refusals_without_a_reason_to_the_end_are_an_error(put, store):
    """A store that refuses the right ETag, which the probe would have found."""
    store.on(put.kind, faults.fail(refusal()), times=5)
    with pytest.raises(PreconditionFailedError) as caught:
        await put.run()
    assert caught.value.outcome == "not_written"


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailableError("no right to put", retriable=False),
        LogNotFoundError("no such bucket", location="s3://bucket"),
        DiskFullError("full"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_repeating_cannot_help_is_raised_at_once(put, store, error):
    store.on(put.kind, faults.fail(error))
    with pytest.raises(type(error)) as caught:
        await put.run()
    assert caught.value is error
    assert store.requests == 1


async def test_what_repeating_cannot_help_after_a_lost_answer_is_unknown(put, store):
    """The earlier attempt may have been obeyed, so the error must not say "not written"."""
    final = StorageUnavailableError("no right to put", retriable=False)
    store.on(put.kind, faults.fail(faults.timeout()))
    store.on(put.kind, faults.fail(final))
    result = await put.run()
    assert result.outcome is PutOutcome.UNKNOWN
    assert result.cause is final


async def test_a_full_disk_behind_a_link_is_unknown(put, store):
    store.on(put.kind, faults.happen_then_fail(DiskFullError("full", outcome="unknown")))
    assert (await put.run()).outcome is PutOutcome.UNKNOWN


async def test_the_same_bytes_from_somebody_else_count_as_ours(put, store):
    """Content-addressed objects are put by several; the first one has done it for all."""
    if put.kind == "put_if_absent":
        await store.inner.put_if_absent(KEY, OURS)
    else:
        await store.inner.put_if_match(KEY, OURS, put.etag)
    assert (await put.run()).outcome is PutOutcome.COMMITTED


async def test_a_swap_of_what_was_deleted_is_lost_to_nobody(store, impatient):
    etag = await store.put_if_absent(KEY, OLD)
    await store.delete([KEY])
    result = await swap(store, KEY, OURS, etag, retry=impatient)
    assert result.outcome is PutOutcome.LOST
    assert (result.etag, result.data) == (None, None)
    assert await content(store) is None


async def test_a_create_over_what_is_deleted_meanwhile_is_repeated(store, impatient):
    await store.put_if_absent(KEY, THEIRS)

    async def delete() -> None:
        await store.inner.delete([KEY])

    store.on("get", faults.call(delete))
    assert (await create(store, KEY, OURS, retry=impatient)).outcome is PutOutcome.COMMITTED


async def test_good_weather_costs_one_request(put, store):
    assert (await put.run()).outcome is PutOutcome.COMMITTED
    assert store.requests == 1


async def test_a_cancelled_put_can_be_asked_for_again(put, store):
    """The first call says nothing; its put has happened, and the second call finds it."""
    reached, never = asyncio.Event(), asyncio.Event()
    store.on(put.kind, faults.happen_then_hang(never, reached))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(put.run())
        await reached.wait()
        task.cancel()
    assert task.cancelled()
    assert await content(store) == OURS
    assert (await put.run()).outcome is PutOutcome.COMMITTED


@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_a_death_is_not_swallowed(put, store, fault):
    store.on(put.kind, fault())
    with pytest.raises(StoreKilled):
        await put.run()


async def test_an_unsynced_directory_is_unknown_although_the_object_can_be_seen(
    tmp_path, impatient, monkeypatch
):
    """A local store whose sync failed answers no reads either, so nothing turns into "committed"."""
    store = LocalStore(tmp_path / "root")
    await store.put_if_absent("folder/first", b"")
    real = os.fsync

    def fail_for_the_folder(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/folder"):
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_the_folder)
    result = await create(store, "folder/key", OURS, retry=impatient)
    assert result.outcome is PutOutcome.UNKNOWN
    assert (tmp_path / "root/folder/key").read_bytes() == OURS
    await store.aclose()


async def test_contents_are_not_in_a_repr(put, store):
    await put.rival()
    assert "theirs" not in repr(await put.run())


async def left_open(store: FaultyStore, retry: RetryPolicy):
    """Return the result of a create that happened, and whose answers were all lost."""
    store.on("put_if_absent", faults.happen_then_fail(faults.timeout()), times=5)
    store.on("get", faults.fail(faults.timeout("not_written")), times=5)
    result = await create(store, KEY, OURS, retry=retry)
    assert result.outcome is PutOutcome.UNKNOWN
    return result


@pytest.mark.parametrize("arrives_late", [False, True])
async def test_a_key_that_was_collected_before_it_was_asked_for_again(
    store, impatient, arrives_late
):
    """Ours was there, was used and removed; that the store takes it once more says nothing of that.

    Nor does an object that an earlier attempt put when the key was free again.
    """
    open_result = await left_open(store, impatient)
    await store.inner.delete([KEY])
    if arrives_late:
        await store.inner.put_if_absent(KEY, OURS)
    result = await create(store, KEY, OURS, retry=impatient, again=open_result)
    assert (result.outcome, result.is_late) == (PutOutcome.COMMITTED, True)
    with pytest.raises(OutcomeUnknownError, match="whether it was put"):
        result.decided(store.url, "it was put")


async def test_a_key_of_another_is_lost_however_late(store, impatient):
    open_result = await left_open(store, impatient)
    await store.inner.delete([KEY])
    await store.inner.put_if_absent(KEY, THEIRS)
    result = await create(store, KEY, OURS, retry=impatient, again=open_result)
    assert (result.outcome, result.is_late) == (PutOutcome.LOST, False)


async def test_an_attempt_that_hung_for_long_makes_a_create_late(store, instant_clock, impatient):
    """A process that was stopped between two attempts: collectors may have come and gone."""

    async def stop(_request: faults.Request) -> object:
        instant_clock.waits.append(TRUSTED_SECONDS)
        raise faults.timeout()

    store.on("put_if_absent", stop)
    result = await create(store, KEY, OURS, retry=impatient)
    assert (result.outcome, result.is_late) == (PutOutcome.COMMITTED, True)


async def test_one_attempt_is_never_late(store, instant_clock, impatient):
    async def stop(request: faults.Request) -> object:
        instant_clock.waits.append(TRUSTED_SECONDS)
        return await request()

    store.on("put_if_absent", stop)
    result = await create(store, KEY, OURS, retry=impatient)
    assert (result.outcome, result.is_late) == (PutOutcome.COMMITTED, False)
    assert result.decided(store.url, "it was put") is result


@pytest.mark.parametrize("was_unanswered", [False, True])
async def test_a_lost_swap_says_whether_it_may_have_happened(
    store: FaultyStore, was_unanswered: bool
) -> None:
    """Only then our object may have been there, until another program made its own from it."""
    etag = await store.put_if_absent(KEY, OLD)

    async def replaced_unseen(request):
        ours = await request()
        await store.inner.put_if_match(KEY, THEIRS, ours)
        raise faults.timeout()

    if was_unanswered:
        store.on("put_if_match", replaced_unseen)
    else:
        await store.inner.put_if_match(KEY, THEIRS, etag)
    result = await swap(store, KEY, OURS, etag, retry=RetryPolicy(first_wait_seconds=0))
    assert (result.outcome, result.data) == (PutOutcome.LOST, THEIRS)
    assert result.was_unanswered is was_unanswered
