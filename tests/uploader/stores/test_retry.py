"""Attempts are bounded, waits grow and are shortened by chance, and only passing faults are repeated."""

from __future__ import annotations

import itertools

import pytest

from tests.cloud import copy_store
from uploader.stores import MemoryStore, ObjectNotFoundError, RetryingStore, RetryPolicy
from uploader.testing import FaultyStore, faults
from walstore.errors import InvalidSettingsError, LogNotFoundError, StorageUnavailableError


def passing() -> StorageUnavailableError:
    return StorageUnavailableError("passing")


async def test_waits_double_up_to_the_longest(instant_clock):
    policy = RetryPolicy(
        attempts=6,
        first_wait_seconds=1,
        longest_wait_seconds=5,
        clock=instant_clock,
        jitter=lambda: 0.0,
    )
    calls = itertools.count()

    async def request():
        next(calls)
        raise passing()

    with pytest.raises(StorageUnavailableError):
        await policy.call(request)
    assert next(calls) == 6
    assert instant_clock.waits == [1, 2, 4, 5, 5]


def test_chance_takes_up_to_a_half():
    for chance, expected in ((0.0, 2.0), (0.5, 1.5), (0.999, 1.001)):
        policy = RetryPolicy(
            first_wait_seconds=2, longest_wait_seconds=9, jitter=lambda chance=chance: chance
        )
        assert policy.wait_seconds(1) == pytest.approx(expected)


def test_by_default_no_two_clients_wait_alike():
    policy = RetryPolicy()
    waits = {policy.wait_seconds(3) for _ in range(20)}
    assert len(waits) > 10
    assert all(0.1 <= wait <= 0.2 for wait in waits)


def test_many_attempts_do_not_overflow():
    assert RetryPolicy(jitter=lambda: 0.0).wait_seconds(10_000) == 2.0


async def test_success_ends_it(impatient, instant_clock):
    answers = iter([passing(), passing(), None])

    async def request():
        if error := next(answers):
            raise error
        return "done"

    assert await impatient.call(request) == "done"
    assert len(instant_clock.waits) == 2


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailableError("final", retriable=False),
        LogNotFoundError("gone", location="x"),
        ValueError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_anything_else_is_not_repeated(impatient, instant_clock, error):
    async def request():
        raise error

    with pytest.raises(type(error)) as caught:
        await impatient.call(request)
    assert caught.value is error
    assert instant_clock.waits == []


@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"first_wait_seconds": -1}, {"first_wait_seconds": 3.0}],
)
def test_ranges_are_checked(options):
    with pytest.raises(InvalidSettingsError):
        RetryPolicy(**options)


@pytest.fixture
async def inner() -> FaultyStore:
    memory = MemoryStore()
    for number in range(5):
        await memory.put_if_absent(f"a/{number}", b"%d" % number)
    return FaultyStore(memory)


@pytest.fixture
def store(inner, impatient) -> RetryingStore:
    return RetryingStore(inner, impatient)


async def listed(store, after=None) -> list[str]:
    return [each.key async for each in store.list("a/", after=after)]


REPEATED = {
    "get": lambda store: store.get("a/1"),
    "get_range": lambda store: store.get_range("a/1", 0, 1),
    "head": lambda store: store.head("a/1"),
    "list": listed,
    "delete": lambda store: store.delete(iter(["a/1", "a/2"])),
}


@pytest.mark.parametrize("kind", REPEATED)
@pytest.mark.parametrize("fault", [faults.fail, faults.happen_then_fail])
async def test_passing_faults_are_waited_out(store, inner, instant_clock, kind, fault):
    expected = await REPEATED[kind](await copy_store(inner.inner))
    inner.on(kind, fault(faults.timeout()), times=4)
    assert await REPEATED[kind](store) == expected
    assert inner.count(kind).requests == 5
    assert len(instant_clock.waits) == 4


@pytest.mark.parametrize("kind", REPEATED)
async def test_attempts_are_bounded(store, inner, kind):
    error = faults.timeout()
    inner.on(kind, faults.fail(error), times=5)
    with pytest.raises(StorageUnavailableError) as caught:
        await REPEATED[kind](store)
    assert caught.value is error
    assert inner.count(kind).requests == 5


@pytest.mark.parametrize("kind", REPEATED)
async def test_faults_for_good_are_not_repeated(store, inner, kind):
    inner.on(kind, faults.fail(StorageUnavailableError("no right to", retriable=False)))
    with pytest.raises(StorageUnavailableError):
        await REPEATED[kind](store)
    assert inner.count(kind).requests == 1


async def test_answers_are_not_repeated(store, inner):
    with pytest.raises(ObjectNotFoundError):
        await store.get("gone")
    assert inner.count("get").requests == 1


async def test_conditional_puts_are_made_once(store, inner):
    etag = (await store.get("a/0")).etag
    for kind, put in {
        "put_if_absent": lambda: store.put_if_absent("b", b"1"),
        "put_if_match": lambda: store.put_if_match("a/0", b"1", etag),
    }.items():
        inner.on(kind, faults.fail(faults.timeout()))
        with pytest.raises(StorageUnavailableError):
            await put()
        assert inner.count(kind).requests == 1


class Breaking(MemoryStore):
    """Listings break after two objects each, ``breaks`` times."""

    breaks = 0

    async def list(self, prefix, *, after=None):
        count = 0
        async for each in super().list(prefix, after=after):
            if count == 2 and self.breaks:
                self.breaks -= 1
                raise StorageUnavailableError("cut off")
            count += 1
            yield each


async def test_a_listing_goes_on_where_it_was_cut_off(impatient):
    """Nothing is left out and nothing comes twice, however often; each part has all attempts."""
    inner = Breaking()
    for number in range(20):
        await inner.put_if_absent(f"a/{number:02}", b"")
    inner.breaks = 8
    expected = [f"a/{number:02}" for number in range(20)]
    assert await listed(RetryingStore(inner, impatient)) == expected
    assert inner.breaks == 0
    assert await listed(RetryingStore(inner, impatient), "a/03") == expected[4:]
