"""Gazette's cases for its spool, and for closing while appends are under way."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.gazette import SIZES, commit, values, wal
from tests.local import SMALL, contents, gather_outcomes, read_all, read_values, turns
from walstore import (
    CorruptionError,
    DiskFullError,
    OutcomeUnknownError,
    RegisterMismatchError,
    StreamClosedError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.core.settings import KIB

__all__ = ["values", "wal"]


# -- the spool -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["none", "small", "large"])
@pytest.mark.parametrize("end", ["commit", "rollback", "mismatch", "commit after a rollback"])
async def test_spool_table(wal, values, before: str, end: str, log_directory) -> None:
    """Whatever the log and the transaction hold: a commit adds all of it, all else changes nothing."""
    held = SIZES[before]
    await commit(wal, held, update={"r": "before"})
    tail = wal.tail
    if end != "commit":
        transaction = wal.transaction(
            update={"r": "after"}, expect={"r": "other" if end == "mismatch" else "before"}
        )
        try:
            async with transaction:
                for value in values:
                    await transaction.append(value)
                if end != "mismatch":
                    await transaction.rollback()
        except RegisterMismatchError:
            assert end == "mismatch"
        assert transaction.span is None
        assert (wal.tail, wal.durable_limit) == (tail, tail)
        assert wal.registers == {"r": "before"}
    expected = list(held)
    if end.startswith("commit"):
        assert await commit(wal, values, update={"r": "after"}) == range(tail, tail + len(values))
        assert wal.registers == {"r": "after"}
        expected += values
    assert await read_values(wal) == expected
    assert await wal.append(b"next") == len(expected) + 1
    await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [*expected, b"next"]
    assert list(log_directory.glob("transaction-*")) == []


async def test_codecs_may_change_between_openings(log_directory: Path, values) -> None:
    pytest.importorskip("zstandard")
    settings = SMALL.replace(transaction_memory_bytes=4 * KIB)
    for compression in (None, "zstd", None, "zstd"):
        chosen = settings.replace(compression=compression)
        async with Wal.open(log_directory, settings=chosen) as wal:
            await commit(wal, values)
            await wal.append(b"." * 3000)
    found = [record.value for record in await contents(log_directory)]
    assert found == [*values, b"." * 3000] * 4


async def test_transactions_at_the_same_time_do_not_mix(wal, values) -> None:
    async def run(n: int) -> range | None:
        transaction = wal.transaction()
        async with transaction:
            for value in values:
                await transaction.append(b"%d " % n + value)
                await asyncio.sleep(0)
            if n % 3 == 0:
                await transaction.rollback()
        return transaction.span

    spans = await asyncio.gather(*map(run, range(9)))
    found = await read_values(wal)
    for n, span in enumerate(spans):
        assert (span is None) == (n % 3 == 0)
        if span is not None:
            assert found[span.start - 1 : span.stop - 1] == [b"%d " % n + v for v in values]
    assert len(found) == 6 * len(values)


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "replace", "sync_directory"])
async def test_disk_errors_of_a_spool(wal, faulty, kind: str, log_directory) -> None:
    """In its own file: only the transaction fails. In the commit, which moves the log: the log fails."""
    await wal.append(b"before")
    large = SIZES["large"]
    transaction = wal.transaction(update={"a": "1"})
    with pytest.raises(WalError) as caught:
        async with transaction:
            for value in large:
                await transaction.append(value)
            faulty.fail(kind, error=errno.ENOSPC)
    failed_alone = kind in ("pwrite", "datasync")
    assert isinstance(caught.value, DiskFullError | OutcomeUnknownError)
    if failed_alone:
        assert caught.value.outcome == "not_written"
        assert await wal.append(b"after") == 2
        assert wal.registers == {}
        await wal.aclose()
    else:
        with pytest.raises(WalClosedError):
            await wal.append(b"after")
        with pytest.raises(WalClosedError):
            await wal.aclose()
    async with Wal.open(log_directory) as again:
        found = [record.value for record in await read_all(again)]
        is_whole = found == [b"before", *large]
        assert is_whole or found == [b"before", b"after"][: 1 + failed_alone]
        assert dict(again.registers) == ({"a": "1"} if is_whole else {})
        assert not (is_whole and caught.value.outcome == "not_written")
    assert list(log_directory.glob("transaction-*")) == []


async def test_a_log_that_lost_its_files_is_not_taken_for_a_new_one(wal, log_directory) -> None:
    """Gazette: the first write is shipped at once, lest offsets be used twice after a total loss."""
    await wal.append(b"first")
    await wal.aclose()
    for path in log_directory.glob("*.wal"):
        path.unlink()
    with pytest.raises(CorruptionError):
        await Wal.open(log_directory)


async def test_a_spool_raises_the_times_of_a_batch_together(wal, clock) -> None:
    """In memory a time older than the log's last record is raised to that record's, others are kept.
    In a file those behind it in the same batch move with it, as docs/transactions.md says."""
    now_us = clock.now_us()
    found: list[list[int]] = []
    for size in (20, 200):  # 30 records: in memory, and in a file
        async with wal.transaction() as transaction:
            for asked in (-100, *[-50] * 30):
                await transaction.append(bytes(size), timestamp_us=now_us + asked)
            last = await wal.append(b"meanwhile", timestamp_us=now_us - 70)
        records = await read_all(wal, last)
        found.append([record.timestamp_us - now_us for record in records])
        now_us += 1000
        clock.advance(0.001)
    assert found[0] == [-70, -70, *[-50] * 30]
    assert found[1] == [-70, -70, *[-20] * 30]


async def test_nobody_hears_of_a_closed_stream_before_that_is_durable(wal, faulty) -> None:
    """A refusal must not rest on a state that a crash may take back."""
    await wal.open_stream("eu")
    with faulty.hold("datasync") as hold:
        closing = asyncio.create_task(wal.close_stream("eu"))
        await hold.wait_entered()
        calls = [
            asyncio.create_task(commit_to(wal, "eu")),
            asyncio.create_task(wal.append_many([b"x"], stream="eu")),
            asyncio.create_task(wal.append(b"x", stream="eu")),
        ]
        await turns(30)
        told = [call.done() for call in calls]
    outcomes = await gather_outcomes(calls)
    await closing
    assert all(isinstance(found, StreamClosedError) for found in outcomes)
    assert told == [False, False, False]


async def commit_to(wal: Wal, stream: str) -> None:
    async with wal.transaction() as transaction:
        await transaction.append(b"x", stream=stream)


# -- closing -------------------------------------------------------------------------------------


async def test_closing_while_appends_are_under_way(wal, faulty, log_directory) -> None:
    with faulty.hold("datasync") as hold:
        first = asyncio.create_task(wal.append(b"first"))
        await hold.wait_entered()
        second = asyncio.create_task(commit(wal, [b"second", b"third"], update={"a": "1"}))
        large = asyncio.create_task(commit(wal, [b"large"] * 1))
        await turns(20)
        closing = asyncio.create_task(wal.aclose())
        await turns(20)
        with pytest.raises(WalClosedError) as caught:
            await wal.append(b"too late")
        assert caught.value.outcome == "not_written"
        assert not closing.done()
    assert await first == 1
    assert await second == range(2, 4)
    assert await large == range(4, 5)
    await closing
    found = [record.value for record in await contents(log_directory)]
    assert found == [b"first", b"second", b"third", b"large"]


async def test_closing_while_appends_wait_or_gather(wal, faulty, values, log_directory) -> None:
    async with asyncio.timeout(60):
        with faulty.hold("datasync") as hold:
            filling = [asyncio.create_task(wal.append(bytes(60 * KIB))) for _ in range(5)]
            await hold.wait_entered()
            await turns()
            refused = asyncio.create_task(wal.append_many([b"no room"], update={"a": "1"}))
            await turns()
            closing = asyncio.create_task(wal.aclose())
            await turns(20)
            gathering = wal.transaction()
            with pytest.raises(WalClosedError):
                await gathering.__aenter__()
        outcomes = await gather_outcomes([*filling, refused])
        await closing
    accepted = [found for found in outcomes if isinstance(found, int)]
    assert accepted == list(range(1, 1 + len(accepted)))
    for found in outcomes[len(accepted) :]:
        assert isinstance(found, WalClosedError)
        assert found.outcome == "not_written"
    assert len(await contents(log_directory)) == len(accepted)
    async with Wal.open(log_directory) as again:
        assert again.registers == {}
