"""Attempts are bounded, waits grow and are shortened by chance, and only passing faults are repeated."""

from __future__ import annotations

import itertools

import pytest

from uploader.stores import RetryPolicy
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
