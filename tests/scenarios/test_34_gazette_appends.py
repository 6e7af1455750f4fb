"""Gazette's cases for its append state machine: offsets, registers, and how the content arrives."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.gazette import commit, values, wal
from tests.local import contents, gather_outcomes, read_values, turns
from walstore import (
    OffsetMismatchError,
    OutcomeUnknownError,
    RegisterMismatchError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
)
from walstore.core.settings import KIB

__all__ = ["values", "wal"]


# -- offsets -------------------------------------------------------------------------------------


async def test_an_offset_that_agrees(wal, values) -> None:
    assert await commit(wal, values, expect_offset=1) == range(1, 1 + len(values))
    assert await commit(wal, values, expect_offset=wal.tail) == range(
        1 + len(values), 1 + 2 * len(values)
    )


@pytest.mark.parametrize("wrong", [0, 1, 2, 4, 1000, -1])
async def test_an_offset_that_does_not_agree(wal, values, wrong: int) -> None:
    await wal.append_many([b"1", b"2"])
    with pytest.raises(OffsetMismatchError) as caught:
        await commit(wal, values, expect_offset=wrong, update={"a": "1"})
    assert (caught.value.expected, caught.value.actual) == (wrong, 3)
    assert caught.value.outcome == "not_written"
    assert (wal.tail, dict(wal.registers)) == (3, {})
    assert await read_values(wal) == [b"1", b"2"]


async def test_no_offset_is_magic(wal) -> None:
    """Gazette: 0 is "any", so that nobody can say "only if the log is empty"."""
    with pytest.raises(OffsetMismatchError):
        await wal.append_many([b"x"], expect_offset=0)
    assert await wal.append_many([b"only if empty"], expect_offset=1) == range(1, 2)
    with pytest.raises(OffsetMismatchError):
        await wal.append_many([b"only if empty"], expect_offset=1)
    assert await wal.append_many([b"any"], expect_offset=None) == range(2, 3)


async def test_an_offset_is_compared_when_the_append_is_accepted(wal) -> None:
    """Of many that expect the same offset one wins; the transaction began long before."""
    async with asyncio.timeout(60):
        outcomes = await gather_outcomes(
            commit(wal, [b"%d" % n], expect_offset=1) for n in range(10)
        )
    assert outcomes.count(range(1, 2)) == 1
    assert sum(isinstance(found, OffsetMismatchError) for found in outcomes) == 9
    assert wal.tail == 2


# -- registers -----------------------------------------------------------------------------------


async def test_absent_registers_match_none_and_nothing_else(wal, values) -> None:
    """Gazette: without any registers every selector matches, for a journal that lost all replicas."""
    with pytest.raises(RegisterMismatchError) as caught:
        await commit(wal, values, expect={"author": "me"})
    assert caught.value.actual == {}
    assert await commit(wal, values, expect={"author": None}) == range(1, 1 + len(values))


async def test_registers_that_do_not_match(wal, values) -> None:
    await commit(wal, [], update={"author": "me", "other": "x"})
    for expect in ({"author": "you"}, {"author": None}, {"author": "me", "missing": "x"}):
        with pytest.raises(RegisterMismatchError) as caught:
            await commit(wal, values, expect=expect, update={"author": "thief"})
        assert caught.value.expected == expect
        assert caught.value.actual == {"author": "me", "other": "x"}
        assert caught.value.outcome == "not_written"
    assert wal.tail == 1
    assert await commit(wal, values, expect={"author": "me"}) == range(1, 1 + len(values))


async def test_the_offset_is_compared_before_registers(wal) -> None:
    with pytest.raises(OffsetMismatchError):
        await commit(wal, [b"x"], expect_offset=7, expect={"author": "nobody"})


async def test_one_update_sets_replaces_and_removes(wal, values, log_directory) -> None:
    await commit(wal, values, update={"a": "1", "b": "1"})
    await commit(wal, values, update={"a": None, "b": "2", "c": "1", "never there": None})
    assert wal.registers == {"b": "2", "c": "1"}
    await wal.aclose()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"b": "2", "c": "1"}


async def test_registers_alone_can_be_committed(wal, log_directory) -> None:
    """Gazette: an error, since registers live only with the bytes of a fragment."""
    assert await commit(wal, [], update={"author": "me"}) == range(1, 1)
    assert wal.registers == {"author": "me"}
    assert wal.tail == 1
    await wal.aclose()
    (log_directory / "CHECKPOINT").unlink()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"author": "me"}
        assert await again.append(b"x") == 1


async def test_a_sequence_of_register_appends(wal) -> None:
    """Gazette's sequence: set, match and extend, mismatch, match and remove."""
    assert await commit(wal, [b"1"], expect={"b": None}, update={"a": "1", "b": "2"}) == range(1, 2)
    assert await commit(wal, [b"2"], expect={"b": "2"}, update={"b": "3", "c": "4"}) == range(2, 3)
    with pytest.raises(RegisterMismatchError) as caught:
        await commit(wal, [b"no"], expect={"b": "2"}, update={"d": "5"})
    assert caught.value.actual == {"a": "1", "b": "3", "c": "4"}
    assert await commit(wal, [b"3"], expect={"c": "4"}, update={"c": None}) == range(3, 4)
    assert wal.registers == {"a": "1", "b": "3"}
    assert await read_values(wal) == [b"1", b"2", b"3"]


async def test_an_empty_append_is_a_barrier_that_returns_head_and_registers(wal, faulty) -> None:
    await commit(wal, [b"x"], update={"author": "me"})
    with faulty.hold("datasync") as hold:
        wal.append_nowait(b"accepted")
        await hold.wait_entered()
        barrier = asyncio.create_task(commit(wal, [], expect={"author": "me"}))
        late = asyncio.create_task(commit(wal, [], expect={"author": "you"}))
        await turns(30)
        assert not barrier.done()
        assert not late.done(), "nobody is told of a state that a crash may take back"
    assert await barrier == range(3, 3)
    assert wal.durable_limit == 3
    with pytest.raises(RegisterMismatchError) as caught:
        await late
    assert caught.value.actual == {"author": "me"}


# -- streaming the content -----------------------------------------------------------------------


async def test_a_transaction_that_never_commits_is_nowhere(wal, values, log_directory) -> None:
    """Gazette: the stream ends without the chunk that says "commit"."""
    transaction = wal.transaction(update={"a": "1"})
    await transaction.__aenter__()
    for value in values:
        await transaction.append(value)
    await wal.append(b"other")
    assert await read_values(wal) == [b"other"]
    await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [b"other"]
    assert transaction.span is None


async def test_content_after_the_commit_is_refused_and_the_commit_stands(wal, values) -> None:
    """Gazette: an error that rolls all of it back, since the commit comes with the end of the stream."""
    async with wal.transaction() as transaction:
        for value in values:
            await transaction.append(value)
    with pytest.raises(RuntimeError):
        await transaction.append(b"more")
    await transaction.rollback()
    assert transaction.span == range(1, 1 + len(values))
    assert await read_values(wal) == values


async def test_a_slow_client_holds_nobody(wal, values) -> None:
    """Gazette: it is ended, since it holds the journal's pipeline."""
    async with wal.transaction(update={"slow": "1"}) as slow:
        for value in values:
            await slow.append(value)
        async with asyncio.timeout(60):
            for n in range(20):
                await wal.append(b"%d" % n)
            assert await commit(wal, values) == range(21, 21 + len(values))
            await wal.rotate()
            await wal.trim(5)
        assert wal.registers == {}
    assert slow.span == range(21 + len(values), 21 + 2 * len(values))
    assert (await read_values(wal, slow.span.start)) == values


async def test_pipelined_appends_commit_in_order(wal, faulty) -> None:
    finished: list[int] = []

    async def append(n: int) -> None:
        span = await commit(wal, [b"%d" % n] * (n % 3 + 1))
        finished.append(span.start)

    with faulty.hold("datasync") as hold:
        tasks = [asyncio.create_task(append(n)) for n in range(12)]
        await hold.wait_entered()
        await turns(30)
        assert not finished
        assert wal.durable_limit == 1
        assert wal.tail == 25, "all are under way"
    await asyncio.gather(*tasks)
    assert finished == sorted(finished)
    assert await read_values(wal) == [b"%d" % n for n in range(12) for _ in range(n % 3 + 1)]


async def test_cancelled_while_waiting_its_conditions_are_never_looked_at(wal, faulty) -> None:
    with faulty.hold("datasync") as hold:
        filling = asyncio.create_task(wal.append(bytes(60 * KIB)))
        await hold.wait_entered()
        others = [asyncio.create_task(wal.append(bytes(60 * KIB))) for _ in range(4)]
        await turns()
        assert wal._channel.blocked, "the last one waits for room"
        waiting = asyncio.create_task(
            wal.append_many([b"x"], expect={"a": "never"}, update={"a": "1"})
        )
        behind = asyncio.create_task(wal.append_many([b"behind"], expect={"a": None}))
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.gather(filling, *others)
    assert await behind == range(6, 7)
    assert wal.registers == {}


async def test_clients_that_vanish_leave_nothing(wal, values) -> None:
    async def vanish(after: int) -> None:
        async with wal.transaction(update={"vanished": "1"}) as transaction:
            for value in values[:after]:
                await transaction.append(value)
            raise ConnectionResetError

    clients = [vanish(after) for after in range(0, len(values) + 1, 5)]
    outcomes = await gather_outcomes([*clients, commit(wal, values, update={"stayed": "1"})])
    assert all(isinstance(found, ConnectionResetError) for found in outcomes[:-1])
    assert outcomes[-1] == range(1, 1 + len(values))
    assert wal.registers == {"stayed": "1"}
    assert await read_values(wal) == values


async def test_when_the_disk_fails_all_that_are_under_way_are_told(
    wal, faulty, log_directory
) -> None:
    await wal.append(b"safe")
    faulty.fail("datasync", error=errno.EIO)
    with faulty.hold("datasync") as hold:
        first = asyncio.create_task(commit(wal, [b"first"]))
        await hold.wait_entered()
        second = asyncio.create_task(commit(wal, [b"second"], update={"a": "1"}))
        barrier = asyncio.create_task(commit(wal, []))
        await turns(20)
    outcomes = await gather_outcomes([first, second, barrier])
    assert isinstance(outcomes[0], OutcomeUnknownError | StorageUnavailableError)
    assert outcomes[0].outcome == "unknown"
    assert [found.outcome for found in outcomes[1:]] != ["durable", "durable"]
    assert outcomes[1].outcome == "not_written"
    with pytest.raises(WalClosedError):
        await commit(wal, [b"more"])
    with pytest.raises(WalClosedError):
        await wal.aclose()
    found = [record.value for record in await contents(log_directory)]
    assert found in ([b"safe"], [b"safe", b"first"])
