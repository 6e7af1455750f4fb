"""Producers: an append under a number that was used before is not made again."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local import SMALL, read_values
from walstore import OutcomeUnknownError, SequenceMismatchError, Wal, WalError
from walstore.core.batches.conditions import AppendConditions
from walstore.core.format.ledger import Ledger
from walstore.testing import FaultyFileSystem

SETTINGS = SMALL.replace(producer_window=4, max_producers=3)


@pytest.fixture
async def wal(log_directory: Path):
    """An open log that remembers little."""
    async with Wal.open(log_directory, settings=SETTINGS) as opened:
        yield opened


async def test_numbers_are_given_if_the_caller_gives_none(wal) -> None:
    producer = wal.producer("p")
    assert [await producer.append(b"x") for _ in range(3)] == [1, 2, 3]
    assert await producer.last_sequence() == await wal.producer("p").last_sequence() == 3
    assert await wal.producer("p").append(b"x", sequence=3) == 3


async def test_what_left_the_window_is_known_to_be_durable(wal) -> None:
    producer = wal.producer("p")
    for _ in range(6):
        await producer.append(b"x")
    assert [await producer.append(b"x", sequence=n) for n in (3, 4, 5, 6)] == [3, 4, 5, 6]
    with pytest.raises(SequenceMismatchError, match="no longer remembered") as caught:
        await producer.append(b"x", sequence=2)
    assert caught.value.outcome == "durable"
    assert wal.tail == 7


async def test_the_one_idle_longest_is_forgotten(wal) -> None:
    for name in "abcd":
        await wal.producer(name).append(b"x")
    assert await wal.producer("a").last_sequence() == 0
    assert await wal.producer("d").last_sequence() == 1


async def test_a_repeated_append_is_not_made_if_its_producer_may_be_forgotten(wal) -> None:
    for name in "abcd":
        await wal.producer(name).append(b"x", sequence=1)
    for name in "ae":  # was forgotten, and was never there: nobody can tell
        with pytest.raises(OutcomeUnknownError, match="forgotten"):
            await wal.producer(name).append(b"x", sequence=1, repeated=True)
        with pytest.raises(OutcomeUnknownError, match="forgotten"):
            async with wal.producer(name).transaction(sequence=1, repeated=True) as transaction:
                await transaction.append(b"x")
    assert await wal.producer("b").append(b"x", sequence=1, repeated=True) == 2
    assert wal.tail == 5


async def test_a_repeated_append_is_made_if_the_log_never_forgot_a_producer(wal) -> None:
    for name in "ab":
        assert await wal.producer(name).append(b"x", sequence=1, repeated=True)
    assert wal.tail == 3


async def test_many_retries_at_once_append_once(wal) -> None:
    producer = wal.producer("p")
    offsets = await asyncio.gather(*(producer.append(b"x", sequence=1) for _ in range(50)))
    assert offsets == [1] * 50
    assert wal.tail == 2


async def test_a_repeated_append_returns_only_when_the_first_is_durable(
    log_directory, faulty
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        producer = wal.producer("p")
        with faulty.hold("datasync") as hold:
            first = asyncio.create_task(producer.append(b"x", sequence=1))
            await hold.wait_entered()
            again = asyncio.create_task(producer.append(b"x", sequence=1))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not again.done()
            assert await producer.append(b"x", sequence=1, durability="memory") == 1
        assert await first == await again == 1


@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_it_is_remembered_across_reopening_and_rotation(
    log_directory: Path, *, has_checkpoint: bool
) -> None:
    for opening in range(3):
        async with Wal.open(log_directory, settings=SETTINGS) as wal:
            producer = wal.producer("p")
            assert await producer.last_sequence() == opening
            if opening:
                assert await producer.append(b"again", sequence=opening) == opening
            assert await producer.append(b"x", sequence=opening + 1) == opening + 1
            await wal.rotate()
        if not has_checkpoint:
            (log_directory / "CHECKPOINT").unlink()


async def test_an_unknown_outcome_is_settled_by_repeating(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    wal = await Wal.open(log_directory, settings=SETTINGS, fs=faulty)
    await wal.producer("p").append(b"one", sequence=1)
    faulty.fail("datasync", error=errno.EIO, happened=True)
    with pytest.raises(OutcomeUnknownError):
        await wal.producer("p").append(b"two", sequence=2)
    with pytest.raises(WalError):
        await wal.aclose()
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        assert await wal.producer("p").append(b"two", sequence=2) == 2
        assert await read_values(wal) == [b"one", b"two"]


@pytest.mark.parametrize("large", [False, True])
async def test_a_repeated_transaction_is_dropped(wal, log_directory, *, large: bool) -> None:
    values = [b"x" * 1000] * (20_000 if large else 2)
    spans = []
    for _ in range(2):
        async with wal.producer("p").transaction(sequence=1) as transaction:
            for value in values:
                await transaction.append(value)
        spans.append(transaction.span)
    assert spans == [range(1, 1 + len(values))] * 2
    assert transaction.is_duplicate
    assert wal.tail == 1 + len(values)
    assert list(log_directory.glob("transaction-*")) == []


async def test_a_number_can_be_used_up_without_records(wal) -> None:
    async with wal.producer("p").transaction(sequence=1):
        pass
    assert await wal.producer("p").last_sequence() == 1
    assert await wal.producer("p").append(b"x", sequence=2) == 1


@pytest.mark.parametrize(
    ("sequence", "error"), [(0, ValueError), (-1, ValueError), ("1", TypeError), (True, TypeError)]
)
async def test_bad_numbers_and_names(wal, sequence, error) -> None:
    with pytest.raises(error):
        await wal.producer("p").append(b"x", sequence=sequence)
    with pytest.raises(ValueError, match="producer"):
        wal.producer("")
    with pytest.raises(TypeError):
        wal.producer(7)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-6, 2)), max_size=40))
def test_whatever_the_order_each_number_is_accepted_once(attempts: list[tuple[str, int]]) -> None:
    """Retries of any age, gaps, and new appends, against a plain dictionary."""
    ledger, tail = Ledger(window=3, max_producers=2), 1
    model: dict[str, list[int]] = {"a": [], "b": []}
    for name, behind in attempts:
        accepted = model[name]
        sequence = max(1, len(accepted) + behind)
        terms = AppendConditions(producer=name, sequence=sequence)
        refused: SequenceMismatchError | None = None
        try:
            terms.check(ledger, tail)
        except SequenceMismatchError as error:
            refused = error
        if refused is not None:
            is_gap = sequence > len(accepted) + 1
            assert is_gap or sequence <= len(accepted) - 3
            assert refused.outcome == ("not_written" if is_gap else "durable")
            continue
        if terms.is_duplicate:
            assert terms.span == range(accepted[sequence - 1], accepted[sequence - 1] + 1)
            continue
        assert sequence == len(accepted) + 1
        marks = terms.marks(ledger, tail, 1)
        assert marks is not None
        ledger.apply(marks)
        accepted.append(tail)
        tail += 1


async def test_the_last_sequence_as_a_number_warns(wal: Wal) -> None:
    """It is called and awaited, as that of a served log; for one more version it is a number, too."""
    producer = wal.producer("p")
    await producer.append(b"v", sequence=1)
    for use in (
        lambda: producer.last_sequence == 1,
        lambda: producer.last_sequence + 1 == 2,
        lambda: f"{producer.last_sequence}" == str(producer.last_sequence) == "1",
        lambda: producer.last_sequence < 2,
    ):
        with pytest.warns(DeprecationWarning, match="await producer.last_sequence"):
            assert use()
    assert type(await producer.last_sequence()) is int
