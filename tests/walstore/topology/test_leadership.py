"""Leadership: one program claims a log, and what became of a swap without an answer is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.waiting import until
from tests.walstore.topology.programs import KEY, RENEWED_SECONDS, Program, pass_seconds, program
from walstore.errors import CorruptionError, OutcomeUnknownError, StorageUnavailableError, WalError
from walstore.testing import ManualClock
from walstore.topology.key_values import LeaseLostError
from walstore.topology.memory import MemoryKeyValues


@pytest.fixture
def store(clock: ManualClock) -> MemoryKeyValues:
    return MemoryKeyValues(clock)


@pytest.fixture
async def one(store: MemoryKeyValues) -> AsyncIterator[Program]:
    async with program(store, "one") as found:
        yield found


@pytest.fixture
async def other(store: MemoryKeyValues) -> AsyncIterator[Program]:
    async with program(store, "other") as found:
        yield found


async def test_one_of_two_programs_leads(one: Program, other: Program) -> None:
    answers = await asyncio.gather(one.take(), other.take())
    winner, loser = (one, other) if answers[0] is None else (other, one)
    assert winner.leads
    assert sorted(answers, key=bool) == [None, winner.claim.value]
    assert loser.claim.value is None


async def test_a_take_whose_answer_is_lost_is_found_by_reading(
    one: Program, other: Program
) -> None:
    one.client.fates = ["lost"]
    assert await one.take() is None
    assert one.leads
    other.client.fates = ["lost"]
    assert await other.take() == one.claim.value


@pytest.mark.parametrize(
    ("fate", "error"),
    [("dropped", OutcomeUnknownError), ("silent", WalError), ("cut off", StorageUnavailableError)],
)
async def test_a_take_that_failed_is_called_again(
    one: Program, fate: str, error: type[WalError]
) -> None:
    one.client.fates = [fate]
    with pytest.raises(error):
        await one.take()
    assert one.claim.value is None
    one.client.cut_off = False
    assert await one.take() is None
    assert one.leads


async def test_nothing_is_taken_without_a_lease(store: MemoryKeyValues, one: Program) -> None:
    store.revoke(one.session.lease)
    with pytest.raises(LeaseLostError):  # the store says so
        await one.take()
    await one.session.aclose()
    with pytest.raises(LeaseLostError):
        await one.take()


async def test_what_somebody_else_wrote_is_no_leader(store: MemoryKeyValues, one: Program) -> None:
    store.swap(KEY, b"not ours", 0, 0)
    with pytest.raises(CorruptionError):
        await one.take()


@pytest.mark.parametrize("fates", [[], ["lost"], ["dropped"], ["dropped", "dropped", "lost"]])
async def test_a_change_is_published_once(
    store: MemoryKeyValues, one: Program, fates: list[str]
) -> None:
    await one.take()
    revision, one.client.fates = store.revision, fates
    assert await one.publish(7)
    assert one.leads
    assert store.revision == revision + 1


async def test_a_change_that_stays_unknown_is_published_by_the_next_call(one: Program) -> None:
    await one.take()
    one.client.fates = ["dropped"] * 3
    with pytest.raises(OutcomeUnknownError):
        await one.publish(7)
    assert await one.publish(8)
    assert one.leads


@pytest.mark.parametrize("fates", [[], ["lost"], ["dropped"]])
async def test_nothing_is_published_after_another_took_the_key(
    store: MemoryKeyValues, one: Program, other: Program, fates: list[str]
) -> None:
    await one.take()
    store.revoke(one.session.lease)
    await other.take()
    one.client.fates = fates
    assert not await one.publish(7)
    assert one.claim.value is None
    assert other.leads


async def test_each_change_is_kept_published_and_nothing_else(
    store: MemoryKeyValues, clock: ManualClock, one: Program
) -> None:
    await one.take()
    revision = store.revision
    async with one.keeping(clock):
        await pass_seconds(clock, 3, sleepers=2)
        assert store.revision == revision
        one.value = one.value._replace(epoch=1, present=("tls://other",))
        one.client.cut_off = True
        await pass_seconds(clock, 3, sleepers=2)
        one.client.cut_off = False
        await pass_seconds(clock, 3, sleepers=2)
        assert one.leads
        assert store.revision == revision + 1


async def test_after_a_lost_lease_the_claim_is_taken_again(
    store: MemoryKeyValues, clock: ManualClock, one: Program
) -> None:
    await one.take()
    async with one.keeping(clock):
        lost = one.session.lease
        store.revoke(lost)
        await pass_seconds(clock, RENEWED_SECONDS + 2, sleepers=2)
        assert one.session.lease != lost
        assert one.leads


async def test_after_a_lost_lease_another_program_is_left_alone(
    store: MemoryKeyValues, clock: ManualClock, one: Program, other: Program
) -> None:
    await one.take()
    async with one.keeping(clock):
        store.revoke(one.session.lease)
        await other.take()
        await pass_seconds(clock, RENEWED_SECONDS + 2, sleepers=3)
        assert other.leads
        await other.claim.leave()
        await pass_seconds(clock, 1, sleepers=3)
        assert one.leads


@pytest.mark.parametrize("fates", [[], ["", "lost"], ["", "dropped"], ["lost"]])
async def test_an_earlier_claim_of_this_program_that_comes_back_is_replaced(
    store: MemoryKeyValues, clock: ManualClock, one: Program, other: Program, fates: list[str]
) -> None:
    """The store was set back to a time when the same program led, with the same lease."""
    await one.take()
    saved = store.save()
    await one.claim.leave()
    one.begin_again()
    await one.take()
    async with one.keeping(clock):
        store.set_back(saved)
        one.client.fates = list(fates)
        await pass_seconds(clock, 3, sleepers=3)
        assert one.leads
    await one.claim.leave()
    assert await other.take() is None


async def test_an_earlier_claim_of_another_session_is_left_alone(
    store: MemoryKeyValues, clock: ManualClock, one: Program, other: Program
) -> None:
    """Its program may run, and decides by the copies."""
    await other.take()
    saved = store.save()
    await other.claim.leave()
    await one.take()
    async with one.keeping(clock):
        store.set_back(saved)
        await pass_seconds(clock, 3, sleepers=3)
        assert not one.leads
        assert one.claim.value is None
    found = store.get(KEY)
    assert found is not None
    assert found.lease == other.session.lease


async def test_a_first_take_replaces_no_claim_of_this_session(
    store: MemoryKeyValues, one: Program
) -> None:
    """It may not be given up yet; the machine removes a stale one before it tries."""
    await one.take()
    first = one.claim
    one.begin_again()
    assert await one.take() == first.value


@pytest.mark.parametrize("fates", [[], ["lost"]])
async def test_a_leave_is_seen(one: Program, other: Program, fates: list[str]) -> None:
    await one.take()
    one.client.fates = fates
    await one.claim.leave()
    assert (one.claim.value, await other.take()) == (None, None)
    await one.claim.leave()
    assert other.leads


async def test_a_leave_after_a_cancelled_publish(store: MemoryKeyValues, one: Program) -> None:
    await one.take()
    revision = store.revision
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(one.publish(7))
        await until(lambda: store.revision > revision)
        publishing.cancel()
    await one.claim.leave()
    assert store.get(KEY) is None


async def test_the_claim_of_another_program_is_not_given_up(
    store: MemoryKeyValues, one: Program, other: Program
) -> None:
    await one.take()
    store.revoke(one.session.lease)
    await other.take()
    await one.claim.leave()
    assert other.leads


async def test_a_claim_that_is_not_given_up_ends_with_the_session(
    store: MemoryKeyValues, one: Program, other: Program
) -> None:
    await one.take()
    one.client.cut_off = True
    await one.claim.leave()
    assert store.get(KEY) is not None
    one.client.cut_off = False
    await one.session.aclose()
    assert await other.take() is None


async def test_a_take_of_which_nothing_can_be_read_is_unknown(clock: ManualClock) -> None:
    async with program(MemoryKeyValues(clock), "one") as one:
        one.client.fates = ["silent"]
        with pytest.raises(OutcomeUnknownError):
            await one.take()


async def test_a_publish_of_which_nothing_can_be_read_is_unknown(clock: ManualClock) -> None:
    async with program(MemoryKeyValues(clock), "one") as one:
        await one.take()
        one.client.fates = ["silent"]
        with pytest.raises(OutcomeUnknownError):
            await one.publish(7)
