"""Consumers whose output is a log: position and output change together, and only one of a name goes on."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.cursors import Consumers, consumers_of, on_disk
from tests.local import SMALL, read_values, turns
from tests.waiting import until
from walstore import (
    CorruptionError,
    CursorMovedError,
    FencedError,
    InvalidSettingsError,
    Wal,
    WalError,
)
from walstore.testing import FaultyFileSystem, ManualClock

INPUT = [b"%d" % at for at in range(1, 21)]


class BodyError(Exception):
    """What a consumer's user raises."""


@pytest.fixture
async def wal(tmp_path: Path):
    """The input: records 1 to 20, in batches of five."""
    async with Wal.open(tmp_path / "in", settings=SMALL) as wal:
        for start in range(0, 20, 5):
            await wal.append_many(INPUT[start : start + 5])
        yield wal


@pytest.fixture
async def out(tmp_path: Path, faulty: FaultyFileSystem):
    """The output, empty, on a file system that may fail; then it need not close well."""
    wal = await Wal.open(tmp_path / "out", settings=SMALL, fs=faulty)
    yield wal
    faulty.heal()
    try:
        await wal.aclose()
    except WalError:
        assert "fail" in wal.path.name or faulty.calls


@pytest.fixture
async def make(wal: Wal):
    """What makes consumers of the input."""
    async with consumers_of(wal) as make:
        yield make


async def copy(consumer, most: int = 3) -> None:
    """Copy what is left, a few records at a time."""
    while batch := await consumer.fetch(max_records=most):
        async with consumer.transaction() as txn:
            for value in batch.values:
                await txn.append(bytes(value))


def register(wal: Wal, out: Wal, name: str = "c") -> str | None:
    return out.registers.get(f"cursor.{wal.log_id}.{name}")


async def test_copying(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out) as consumer:
        assert register(wal, out) == "1 1"
        await copy(consumer)
        assert consumer.committed == 21
    assert await read_values(out) == INPUT
    assert register(wal, out) == "21 1"
    assert await make.position() == 21, "the cursor follows, so that retention may go on"


async def test_it_goes_on_where_the_output_says(make: Consumers, wal: Wal, out: Wal) -> None:
    first = make.consumer(output=out)
    await first.__aenter__()
    async with first.transaction() as txn:
        await txn.append(bytes((await anext(first)).value))
    assert on_disk(wal.path).position == 1, "only a hint; it may lag"
    async with make.consumer(output=out) as second:
        assert second.position == 2
        await copy(second)
    assert await read_values(out) == INPUT
    with pytest.raises(FencedError):
        await first.__aexit__(None, None, None)


async def test_the_cursor_is_only_a_hint(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out) as consumer, consumer.transaction():
        await consumer.fetch(max_records=5)
    for wrong in (1, 15):
        await (await make.store.open("c")).rewind(wrong)
        async with make.consumer(output=out) as consumer:
            assert consumer.position == 6
            if wrong == 15:
                assert on_disk(wal.path).position == 6, "pinned again"


async def test_a_new_output_begins_at_the_cursor(make: Consumers, wal: Wal, out: Wal) -> None:
    await (await make.store.open("c")).commit(15)
    async with make.consumer(output=out) as consumer:
        await copy(consumer)
    assert await read_values(out) == INPUT[14:]


async def test_names_and_inputs_do_not_mix(make: Consumers, wal: Wal, out: Wal) -> None:
    for name in ("a", "b"):
        async with make.consumer(name, output=out) as consumer:
            await copy(consumer)
    assert await read_values(out) == INPUT * 2
    async with consumers_of(out) as of_out, of_out.consumer("a", output=out) as consumer:
        assert consumer.position == 1


async def test_reading_in_the_block(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out) as consumer:
        async with consumer.transaction() as txn:
            async for record in consumer:
                await txn.append(bytes(record.value))
                if record.offset == 7:
                    break
        assert register(wal, out) == "8 1"
        async with consumer.transaction() as txn:
            async for batch in consumer.batches():
                for value in batch.values:
                    await txn.append(bytes(value))
    assert await read_values(out) == INPUT


async def test_a_large_transaction(make: Consumers, wal: Wal, tmp_path: Path) -> None:
    settings = SMALL.replace(transaction_memory_bytes=16 * 1024)
    async with Wal.open(tmp_path / "large", settings=settings) as out:
        async with make.consumer(output=out) as consumer, consumer.transaction() as txn:
            for value in (await consumer.fetch()).values:
                await txn.append(bytes(value).ljust(5000, b"."))
        assert register(wal, out) == "21 1"
        assert [value.rstrip(b".") for value in await read_values(out)] == INPUT


async def test_the_output_may_be_the_input(make: Consumers, wal: Wal) -> None:
    async with make.consumer(output=wal) as consumer:
        while batch := await consumer.fetch(max_records=3):
            async with consumer.transaction() as txn:
                for record in batch.records():
                    if record.stream is None:
                        await txn.append(b"seen " + record.value, stream="seen")
    assert await read_values(wal) == [*INPUT, *(b"seen " + value for value in INPUT)]


# -- going back ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exception", "rollback", "cancel"])
async def test_what_was_rolled_back_is_handed_out_again(
    make: Consumers, wal: Wal, out: Wal, how: str
) -> None:
    async with make.consumer(output=out) as consumer:
        async with consumer.transaction() as txn:
            await txn.append(bytes((await anext(consumer)).value))
        try:
            async with consumer.transaction() as txn:
                for value in (await consumer.fetch(max_records=3)).values:
                    await txn.append(bytes(value))
                if how == "exception":
                    raise BodyError
                if how == "rollback":
                    await txn.rollback()
                if how == "cancel":
                    asyncio.current_task().cancel()
                    await turns()
        except (BodyError, asyncio.CancelledError):
            pass
        asyncio.current_task().uncancel()
        assert consumer.position == 2
        await copy(consumer)
    assert await read_values(out) == INPUT


async def test_leaving_with_an_exception(make: Consumers, wal: Wal, out: Wal) -> None:
    with pytest.raises(BodyError):
        async with make.consumer(output=out) as consumer:
            async with consumer.transaction() as txn:
                await txn.append(bytes((await anext(consumer)).value))
            await consumer.fetch(max_records=3)
            raise BodyError
    assert await make.position() == 2
    async with make.consumer(output=out) as consumer:
        await copy(consumer)
    assert await read_values(out) == INPUT


async def test_seeking_is_committed_with_the_output(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out) as consumer:
        await copy(consumer)
        consumer.seek(18)
        await copy(consumer)
        consumer.seek(5)
        async with consumer.transaction():
            pass
        assert register(wal, out) == "5 1"
    assert await read_values(out) == [*INPUT, *INPUT[17:]]
    assert await make.position() == 5


@pytest.mark.parametrize("steps", range(0, 60, 4))
async def test_cancellation_at_every_await_of_a_commit(
    make: Consumers, wal: Wal, out: Wal, steps: int
) -> None:
    async with make.consumer(output=out) as consumer:

        async def step() -> None:
            async with consumer.transaction() as txn:
                for value in (await consumer.fetch(max_records=2)).values:
                    await txn.append(bytes(value))

        for _ in range(8):
            stepping = asyncio.create_task(step())
            await turns(steps)
            stepping.cancel()
            await asyncio.wait([stepping])
        await copy(consumer)
    assert await read_values(out) == INPUT
    assert register(wal, out) == "21 1"


async def test_cancelled_while_it_syncs(
    make: Consumers, wal: Wal, out: Wal, faulty: FaultyFileSystem
) -> None:
    async with make.consumer(output=out) as consumer:
        with faulty.hold("datasync") as hold:
            copying = asyncio.create_task(copy(consumer, most=5))
            await hold.wait_entered()
            copying.cancel()
            await asyncio.wait([copying])
            assert consumer.position == 6, "it will be durable"
            assert consumer.committed == 1, "it is not yet"
        await copy(consumer)
    assert await read_values(out) == INPUT


# -- only one --------------------------------------------------------------------------------


async def test_the_second_fences_the_first(make: Consumers, wal: Wal, out: Wal) -> None:
    with pytest.raises(FencedError):
        async with make.consumer(output=out) as first:
            async with first.transaction() as txn:
                await txn.append(bytes((await anext(first)).value))
            async with make.consumer(output=out) as second:
                with pytest.raises(FencedError, match="took over"):
                    await copy(first)
                assert out.tail == 2, "nothing was written"
                for call in (first.fetch, first.__anext__, lambda: copy(first)):
                    with pytest.raises(FencedError):
                        await call()
                with pytest.raises(FencedError):
                    async with first.transaction():
                        raise AssertionError
                await copy(second)
    assert await read_values(out) == INPUT


async def test_fenced_in_the_middle_of_a_block(make: Consumers, wal: Wal, out: Wal) -> None:
    first = make.consumer(output=out)
    await first.__aenter__()
    with pytest.raises(FencedError):
        async with first.transaction() as txn:
            await txn.append(bytes((await anext(first)).value))
            async with make.consumer(output=out) as second:
                await copy(second)
    with pytest.raises(FencedError):
        await first.__aexit__(None, None, None)
    assert await read_values(out) == INPUT


async def test_many_at_the_same_moment(make: Consumers, wal: Wal, out: Wal) -> None:
    consumers = [make.consumer(output=out, auto_commit_seconds=None) for _ in range(5)]

    async def work(consumer) -> None:
        async with consumer:
            await copy(consumer)

    outcomes = await asyncio.gather(*(map(work, consumers)), return_exceptions=True)
    assert outcomes.count(None) >= 1
    assert all(found is None or isinstance(found, FencedError) for found in outcomes)
    assert await read_values(out) == INPUT
    assert register(wal, out) == "21 5"


async def test_a_fenced_one_learns_it_in_the_background(
    wal: Wal, out: Wal, clock: ManualClock
) -> None:
    async with consumers_of(wal, clock=clock) as make:
        first = make.consumer(output=out)
        await first.__aenter__()
        async with first.transaction():
            await first.fetch(max_records=3)
        async with make.consumer(output=out, auto_commit_seconds=None) as second:
            async with second.transaction():
                await second.fetch(max_records=3)
            await clock.wait_for_sleepers()
            clock.advance(5)
            await until(lambda: first._keeper.failure is not None)
            with pytest.raises(FencedError):
                await first.fetch()
        with pytest.raises(FencedError):
            await first.__aexit__(None, None, None)


# -- the cursor follows ----------------------------------------------------------------------


async def test_without_auto_commit_it_follows_at_once(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out, auto_commit_seconds=None) as consumer:
        async with consumer.transaction():
            await consumer.fetch(max_records=5)
        assert on_disk(wal.path).position == 6


async def test_it_never_overtakes_what_is_durable(
    wal: Wal, out: Wal, faulty: FaultyFileSystem
) -> None:
    async with (
        consumers_of(wal) as make,
        make.consumer(output=out, auto_commit_seconds=None) as consumer,
    ):
        with faulty.hold("datasync"):
            async with consumer.transaction(durability="memory"):
                await consumer.fetch(max_records=5)
            assert (consumer.position, consumer.committed) == (6, 1)
            assert on_disk(wal.path).position == 1
        await out.flush()
        assert consumer.committed == 6


async def test_moved_by_hand_it_comes_back(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out, auto_commit_seconds=None) as consumer:
        await (await make.store.open("c")).commit(20)
        async with consumer.transaction():
            await consumer.fetch(max_records=5)
        assert on_disk(wal.path).position == 6


async def test_deleted_it_ends_the_consumer(make: Consumers, wal: Wal, out: Wal) -> None:
    with pytest.raises(CursorMovedError, match="deleted"):
        async with make.consumer(output=out, auto_commit_seconds=None) as consumer:
            await make.store.delete("c")
            async with consumer.transaction():
                await consumer.fetch(max_records=5)


# -- what goes wrong -------------------------------------------------------------------------


async def test_a_failing_output(
    make: Consumers, wal: Wal, out: Wal, faulty: FaultyFileSystem, tmp_path: Path
) -> None:
    with pytest.raises(WalError):
        async with make.consumer(output=out) as consumer:
            async with consumer.transaction() as txn:
                await txn.append(bytes((await anext(consumer)).value))
            faulty.fail("datasync", errno.EIO)
            await copy(consumer)
    with pytest.raises(WalError):
        await out.aclose()
    async with Wal.open(tmp_path / "out", settings=SMALL) as again:
        async with make.consumer(output=again) as consumer:
            await copy(consumer)
        assert await read_values(again) == INPUT


async def test_a_foreign_register(make: Consumers, wal: Wal, out: Wal) -> None:
    name = f"cursor.{wal.log_id}.c"
    async with out.transaction(update={name: "something else"}):
        pass
    with pytest.raises(CorruptionError, match="something else"):
        async with make.consumer(output=out):
            pass


async def test_misuse(make: Consumers, wal: Wal, out: Wal) -> None:
    async with make.consumer(output=out) as consumer:
        with pytest.raises(InvalidSettingsError, match="transaction"):
            await consumer.commit()
