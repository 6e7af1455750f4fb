"""A transaction: whole or not at all."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.contract.faces import Face, on
from tests.contract.reading import values
from tests.local import turns
from walstore import (
    RecordTooLargeError,
    RegisterMismatchError,
    WalClosedError,
)


@on("opened", "replicated", "served")
async def test_a_transaction_commits_whole_or_not_at_all(log: Any) -> None:
    async with log.transaction(expect={"r": None}, update={"r": "1"}) as txn:
        assert await txn.append(b"a") == 0
        assert await txn.append(b"b", key=b"k", stream="s", headers={"h": b"1"}) == 1
        txn.set_registers({"q": "2"})
        assert txn.span is None
    assert txn.span == range(1, 3)
    assert log.registers == {"r": "1", "q": "2"}
    with pytest.raises(ZeroDivisionError):
        async with log.transaction() as txn:
            await txn.append(b"lost")
            raise ZeroDivisionError
    async with log.transaction() as txn:
        await txn.append(b"lost")
        await txn.rollback()
        with pytest.raises(WalClosedError):
            await txn.append(b"more")
    with pytest.raises(RegisterMismatchError):
        async with log.transaction(expect={"r": "2"}) as txn:
            await txn.append(b"lost")
    async with log.transaction(update={"r": None}):
        pass
    assert log.registers == {"q": "2"}
    with pytest.raises(RuntimeError):
        await log.transaction().append(b"outside its block")
    async with log.transaction() as txn:
        with pytest.raises(RecordTooLargeError):
            await txn.append(b"x" * (64 << 10) + b"x")
        await txn.append(b"c")
    assert await values(log) == [b"a", b"b", b"c"]


@on("opened", "replicated", "served")
async def test_a_transaction_larger_than_memory(log: Any) -> None:
    async with log.transaction() as txn:
        for number in range(100):
            await txn.append(b"%03d" % number + b"x" * 50_000)
    assert txn.span == range(1, 101)
    assert [value[:3] for value in await values(log)] == [b"%03d" % n for n in range(100)]


@on("opened", "replicated", "served", "blocking", "distant")
async def test_it_is_in_the_log_whole_or_nowhere(face: Face) -> None:
    async with face.log.transaction() as txn:
        assert await txn.append(b"1") == 0
        assert await txn.append(b"2", b"key") == 1
    assert txn.span == range(1, 3)
    with pytest.raises(ZeroDivisionError):
        async with face.log.transaction() as txn:
            await txn.append(b"lost")
            raise ZeroDivisionError
    async with face.log.transaction() as txn:
        await txn.append(b"lost")
        await txn.rollback()
    assert await values(face.log) == [b"1", b"2"]


@on("opened", "replicated", "served")
async def test_one_that_is_cancelled_rolls_back_alone(face: Face) -> None:
    """Others of the same handle, that were begun before and end later, commit."""
    async with face.log.transaction() as kept:
        await kept.append(b"kept")
        for number in range(10):

            async def write(number: int = number) -> None:
                async with face.log.transaction() as dropped:
                    for _ in range(4):
                        await dropped.append(bytes(60_000))
                    await asyncio.get_running_loop().create_future()

            writing = asyncio.create_task(write())
            for _ in range(number):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait((writing,))
        await kept.append(b"too")
    assert kept.span == range(1, 3)
    assert await values(face.log) == [b"kept", b"too"]


@on("opened", "replicated", "served")
async def test_a_commit_that_is_cancelled_says_whether_it_is_in_the_log(face: Face) -> None:
    """Whenever that is; so a program knows whether to make the transaction again."""
    written: list[bytes] = []
    for number in range(60):
        value = b"%d" % number
        transaction = face.log.transaction()

        async def write(transaction: Any = transaction, value: bytes = value) -> None:
            async with transaction:
                await transaction.append(value)

        writing = asyncio.create_task(write())
        await turns(number)
        writing.cancel()
        await asyncio.wait((writing,))
        if transaction.span is not None:
            written.append(value)
    await face.log.append(b"last")
    assert await values(face.log) == [*written, b"last"]


@on("opened", "replicated", "served")
async def test_one_that_is_in_the_log_says_so_to_who_uses_it_further(face: Face) -> None:
    """Also if its commit was cancelled, at whatever moment."""
    for number in range(60):
        transaction = face.log.transaction()

        async def write(transaction: Any = transaction) -> None:
            async with transaction:
                await transaction.append(b"v")

        writing = asyncio.create_task(write())
        await turns(number)
        writing.cancel()
        await asyncio.wait((writing,))
        if transaction.span is not None:
            said = re.escape(f"the transaction is committed, as {transaction.span}")
            with pytest.raises(RuntimeError, match=said):
                await transaction.append(b"more")
            with pytest.raises(RuntimeError, match=said):
                transaction.set_registers({"r": "1"})
        elif number:
            with pytest.raises(WalClosedError):
                await transaction.append(b"more")


@on("opened", "replicated", "served")
async def test_nothing_is_added_or_taken_back_once_it_commits(log: Any) -> None:
    """By another task: what it was told would not be so."""
    txn = log.transaction()
    await txn.__aenter__()
    await txn.append(b"in time")
    ending = asyncio.ensure_future(txn.__aexit__(None, None, None))
    await turns(1)
    assert not ending.done()
    for late in (lambda: txn.append(b"late"), txn.rollback):
        with pytest.raises(RuntimeError, match="is being committed"):
            await late()
    with pytest.raises(RuntimeError, match="is being committed"):
        txn.set_registers({"late": "1"})
    await ending
    assert (txn.span, await values(log), log.registers) == (range(1, 2), [b"in time"], {})
    await txn.rollback()
