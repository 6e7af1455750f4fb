"""Session: a lease that is renewed while the program lives, and granted anew when it was lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from walstore.errors import InvalidSettingsError, StorageUnavailableError
from walstore.testing import ManualClock
from walstore.topology.memory import MemoryClient, MemoryKeyValues
from walstore.topology.session import Session

TTL_SECONDS = 6
STEP_SECONDS = 2
"""Between two renewals: there are three of them in the time of a lease."""


@pytest.fixture
def store(clock: ManualClock) -> MemoryKeyValues:
    return MemoryKeyValues(clock)


@pytest.fixture
def client(store: MemoryKeyValues) -> MemoryClient:
    return store.client("m1")


async def open_session(client: MemoryClient, clock: ManualClock) -> tuple[Session, list[int]]:
    """Return a session, and its leases at each call of ``on_changed``."""
    session = await Session.open(client, ttl_seconds=TTL_SECONDS, clock=clock)
    leases: list[int] = []
    session.on_changed = lambda: leases.append(session.lease)
    return session, leases


async def step(clock: ManualClock, steps: int = 1) -> None:
    """Let the session, which sleeps, do what it does next."""
    for _ in range(steps):
        await clock.wait_for_sleepers()
        clock.advance(STEP_SECONDS)
    await clock.wait_for_sleepers()


async def test_a_lease_outlives_its_time(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock
) -> None:
    session, leases = await open_session(client, clock)
    lease = session.lease
    await step(clock, 30)
    assert clock.monotonic() == 10 * TTL_SECONDS
    assert store.leases == [lease] == [session.lease]
    assert leases == []
    await session.aclose()


@pytest.mark.parametrize("ttl_seconds", [1, 3600])
async def test_the_shortest_and_the_longest_lease(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock, ttl_seconds: int
) -> None:
    async with Session.open(client, ttl_seconds=ttl_seconds, clock=clock) as session:
        for _ in range(10):
            await clock.wait_for_sleepers()
            clock.advance(ttl_seconds / 2)
        await clock.wait_for_sleepers()
        assert store.leases == [session.lease]


@pytest.mark.parametrize(
    ("ttl_seconds", "error"),
    [
        (0, InvalidSettingsError),
        (3601, InvalidSettingsError),
        (True, TypeError),
        ("5", TypeError),
        (5.0, TypeError),
    ],
)
async def test_times_that_are_none(
    store: MemoryKeyValues,
    client: MemoryClient,
    clock: ManualClock,
    ttl_seconds: int,
    error: type[Exception],
) -> None:
    with pytest.raises(error, match="lease_seconds"):
        await Session.open(client, ttl_seconds=ttl_seconds, clock=clock)
    assert store.leases == []


async def test_no_session_without_a_lease(client: MemoryClient, clock: ManualClock) -> None:
    client.cut_off = True
    with pytest.raises(StorageUnavailableError):
        await Session.open(client, ttl_seconds=TTL_SECONDS, clock=clock)
    assert clock.sleepers == 0


async def test_a_lost_lease_is_granted_again(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock
) -> None:
    session, leases = await open_session(client, clock)
    lost = session.lease
    store.revoke(lost)
    await step(clock)
    assert store.leases == [session.lease] != [lost]
    assert leases == [0, session.lease]
    await step(clock, 10)
    assert store.leases == [session.lease]
    assert len(leases) == 2
    await session.aclose()


async def test_renewals_that_fail_do_no_harm_while_the_lease_lasts(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock
) -> None:
    session, leases = await open_session(client, clock)
    lease = session.lease
    for _ in range(5):
        client.cut_off = True
        await step(clock)
        client.cut_off = False
        await step(clock)
    for _ in range(10):
        client.loses_answers = True
        await step(clock)
    client.loses_answers = False
    assert store.leases == [lease] == [session.lease]
    assert leases == []
    await session.aclose()


async def test_another_lease_is_granted_after_one_that_ended_while_the_store_was_cut_off(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock
) -> None:
    session, leases = await open_session(client, clock)
    lost = session.lease
    client.cut_off = True
    await step(clock, 10)
    assert store.leases == []
    assert leases == []  # nobody told it
    client.cut_off = False
    await step(clock)
    assert store.leases == [session.lease] != [lost]
    assert leases == [0, session.lease]
    await session.aclose()


async def test_a_grant_that_fails_is_repeated(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock
) -> None:
    session, leases = await open_session(client, clock)

    def cut_off_when_lost() -> None:
        leases.append(session.lease)
        client.cut_off = not session.lease

    session.on_changed = cut_off_when_lost
    store.revoke(session.lease)
    await step(clock, 5)
    assert session.lease == 0
    assert leases == [0]
    client.cut_off = False
    await step(clock)
    assert store.leases == [session.lease]
    assert leases == [0, session.lease]
    await session.aclose()


async def test_a_session_that_is_closed_ends_its_lease(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock
) -> None:
    session, leases = await open_session(client, clock)
    await client.swap("k", b"", expected=0, lease=session.lease)
    await session.aclose()
    assert store.leases == []
    assert session.lease == 0
    assert await client.get("k") is None  # the client stays open
    await session.aclose()
    assert clock.sleepers == 0
    assert leases == []


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_lease_that_cannot_be_revoked_ends_by_itself(
    store: MemoryKeyValues, client: MemoryClient, clock: ManualClock, *, hangs: bool
) -> None:
    session, _ = await open_session(client, clock)
    client.cut_off, client.hangs = not hangs, hangs
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(session.aclose())
        await until(lambda: session.lease == 0)
        if hangs:
            closing.cancel()
    assert len(store.leases) == 1
    clock.advance(TTL_SECONDS)
    assert store.leases == []
    await session.aclose()
