"""A producer: each append is in the log once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.faces import Face, on
from tests.contract.reading import values
from walstore import OutcomeUnknownError, SequenceMismatchError


@on("opened", "replicated", "served")
async def test_a_producer_appends_once(log: Any) -> None:
    producer = log.producer("p")
    assert await producer.append(b"a", sequence=1) == 1
    assert await producer.append(b"again", sequence=1) == 1
    with pytest.raises(SequenceMismatchError) as gap:
        await producer.append(b"c", sequence=3)
    assert (gap.value.expected, gap.value.actual) == (2, 3)
    assert gap.value.outcome == "not_written"
    assert await producer.append_many([b"b", b"c"], sequence=2) == range(2, 4)
    async with producer.transaction(sequence=2) as txn:
        await txn.append(b"dropped")
    assert (txn.span, txn.is_duplicate) == (range(2, 4), True)
    assert await log.producer("q").append(b"d") == 4
    assert await values(log) == [b"a", b"b", b"c", b"d"]


@on("opened", "replicated", "served")
async def test_its_last_number_is_asked_for(face: Face) -> None:
    producer = face.log.producer("p")
    assert await producer.last_sequence() == 0
    await producer.append(b"1", sequence=1)
    await producer.append_many([b"2", b"3"], sequence=2)
    assert await producer.last_sequence() == await face.log.producer("p").last_sequence() == 2


@on("blocking", "distant")
async def test_an_append_from_threads_is_made_once(face: Face) -> None:
    assert await face.log.append_once("p", 1, [b"a"]) == range(1, 2)
    assert await face.log.append_once("p", 1, [b"a"]) == range(1, 2)
    with pytest.raises(TypeError, match="sequence must be an int"):  # else the log would choose one
        await face.log.append_once("p", None, [b"b"])
    assert await values(face.log) == [b"a"]


@on("opened", "replicated", "served")
async def test_an_append_that_was_cancelled_is_repeated_with_its_number(face: Face) -> None:
    producer = face.log.producer("p")
    for number in range(1, 21):
        dropped = asyncio.create_task(producer.append(b"%d" % number, sequence=number))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.wait((dropped,))
        assert await producer.append(b"%d" % number, sequence=number) == number
    assert await values(face.log) == [b"%d" % number for number in range(1, 21)]


@on("opened", "replicated", "served")
async def test_an_append_repeated_when_its_producer_is_forgotten_has_an_unknown_outcome(
    log: Any,
) -> None:
    await log.producer("p").append(b"a", sequence=1)
    assert await log.producer("p").append(b"a", sequence=1, repeated=True) == 1
    others = [log.producer(f"other {number}") for number in range(1024)]
    await asyncio.gather(*(one.append(b"other", sequence=1, durability="memory") for one in others))
    with pytest.raises(OutcomeUnknownError, match="forgotten"):
        await log.producer("p").append(b"a", sequence=1, repeated=True)
    with pytest.raises(OutcomeUnknownError, match="forgotten"):
        async with log.producer("p").transaction(sequence=1, repeated=True) as txn:
            await txn.append(b"a")
    with pytest.raises(ValueError, match="needs the sequence"):
        await log.producer("p").append(b"a", repeated=True)
    assert (await values(log)).count(b"a") == 1
