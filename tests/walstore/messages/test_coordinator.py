"""Coordinator: commits, rollbacks, fencing, failures; what stores it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.local import UnsyncedFileSystem, turns
from tests.messages import committed
from tests.waiting import until
from walstore import (
    ExpectationError,
    FencedError,
    LogNotFoundError,
    RecordTooLargeError,
    StorageUnavailableError,
    Wal,
    WalClosedError,
)
from walstore.errors import LimitExceededError
from walstore.messages import CommittedReader, Coordinator, RegisterStore
from walstore.testing import FaultyFileSystem, Hold


class MemoryStore:
    """A store that fails when told to."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.error: BaseException | None = None
        self.saves = 0
        self.on_save: Callable[[], object] = lambda: None

    async def load(self) -> bytes | None:
        return self.data

    async def save(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.saves += 1
        self.on_save()
        self.data = data


@pytest.fixture
async def a(tmp_path: Path) -> AsyncIterator[Wal]:
    """A log."""
    async with Wal.open(tmp_path / "a", fs=UnsyncedFileSystem()) as wal:
        yield wal


@pytest.fixture
async def b(tmp_path: Path) -> AsyncIterator[Wal]:
    """Another log."""
    async with Wal.open(tmp_path / "b", fs=UnsyncedFileSystem()) as wal:
        yield wal


async def pending(wal: Wal) -> int:
    """Return how many producers have messages pending."""
    await wal.flush()
    reader = CommittedReader(wal, follow=False)
    async for _ in reader:
        pass
    return len(reader.pending)


async def test_commits_in_all_logs_with_the_position(a: Wal, b: Wal) -> None:
    store = RegisterStore(a, "job")
    async with Coordinator.open(store, [a, b]) as coordinator:
        assert coordinator.position is None
        for n in range(3):
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"a%d" % n, key=b"k", headers={"h": b"1"})
                await txn.publish(b, b"b%d" % n)
                txn.position = b"%d" % n
            assert coordinator.position == b"%d" % n
    assert await committed(a) == [b"a0", b"a1", b"a2"]
    assert await committed(b) == [b"b0", b"b1", b"b2"]
    async with Coordinator.open(RegisterStore(a, "job"), [a, b]) as coordinator:
        assert coordinator.position == b"2"


async def test_a_transaction_without_messages_stores_its_position(a: Wal) -> None:
    async with Coordinator.open(MemoryStore(), [a]) as coordinator:
        async with coordinator.transaction() as txn:
            txn.position = b"here"
        async with coordinator.transaction():
            pass
        assert coordinator.position == b"here"
        assert a.tail == 1


async def test_an_exception_rolls_back_in_all_logs(a: Wal, b: Wal) -> None:
    async with Coordinator.open(MemoryStore(), [a, b]) as coordinator:
        with pytest.raises(ZeroDivisionError):
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"1")
                await txn.publish(b, b"1")
                txn.position = b"lost"
                raise ZeroDivisionError
        assert coordinator.position is None
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"2")
    assert await committed(a) == [b"2"]
    assert await committed(b) == []
    assert await pending(b) == 0


async def test_cancelling_rolls_back(a: Wal) -> None:
    async with Coordinator.open(MemoryStore(), [a]) as coordinator:

        async def work() -> None:
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"1")
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await until(lambda: a.tail > 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"2")
    assert await committed(a) == [b"2"]


async def test_a_refused_message_rolls_back(a: Wal) -> None:
    store = MemoryStore()
    async with Coordinator.open(store, [a]) as coordinator:
        saves = store.saves
        with pytest.raises(RecordTooLargeError):
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"small")
                await txn.publish(a, bytes(a.settings.max_record_bytes + 1))
        assert store.saves == saves
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"2")
    assert await committed(a) == [b"2"]


async def test_one_transaction_at_a_time_and_only_inside_its_block(a: Wal, b: Wal) -> None:
    async with Coordinator.open(MemoryStore(), [a]) as coordinator:
        async with coordinator.transaction() as txn:
            with pytest.raises(ExpectationError, match="another transaction"):
                async with coordinator.transaction():
                    pass
            with pytest.raises(ValueError, match="not among the outputs"):
                await txn.publish(b, b"1")
            await txn.publish(a, b"1")
        with pytest.raises(WalClosedError, match="has ended"):
            await txn.publish(a, b"2")
    await coordinator.aclose()
    with pytest.raises(WalClosedError, match="is closed"):
        async with coordinator.transaction():
            pass
    assert await committed(a) == [b"1"]


async def test_a_save_that_was_not_written_rolls_back_and_goes_on(a: Wal) -> None:
    store = MemoryStore()
    async with Coordinator.open(store, [a]) as coordinator:
        store.error = StorageUnavailableError("try again")
        with pytest.raises(StorageUnavailableError):
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"1")
        store.error = None
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"2")
    assert await committed(a) == [b"2"]


@pytest.mark.parametrize(
    "error",
    [StorageUnavailableError("?", outcome="unknown"), OSError("?"), asyncio.CancelledError()],
    ids=repr,
)
async def test_a_save_of_unknown_outcome_ends_the_session(a: Wal, error: BaseException) -> None:
    """Neither commit nor rollback is right before the store was looked at."""
    store = MemoryStore()
    async with Coordinator.open(store, [a]) as coordinator:
        store.error = error
        with pytest.raises(type(error)):
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"1")
        store.error = None
        for _ in range(2):
            with pytest.raises(WalClosedError, match="open the logs") as refused:
                async with coordinator.transaction():
                    pass
            assert refused.value.reason == "failed"
            assert refused.value.outcome == "not_written"
    assert await pending(a) == 1
    async with Coordinator.open(store, [a]):
        assert await pending(a) == 0


async def test_a_log_that_fails_after_the_commit(tmp_path: Path, a: Wal) -> None:
    """The transaction is committed, the error says so, and opening again makes it visible."""
    store = MemoryStore()
    b = await Wal.open(tmp_path / "b", fs=UnsyncedFileSystem())
    coordinator = await Coordinator.open(store, [a, b])

    async def close_b_then_save(data: bytes) -> None:
        store.data = data
        await b.aclose()

    store.save = close_b_then_save  # type: ignore[method-assign]
    with pytest.raises(WalClosedError, match="committed") as failed:
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"1")
            await txn.publish(b, b"1")
            txn.position = b"1"
    assert failed.value.outcome == "durable"
    del store.save
    async with Wal.open(tmp_path / "b", fs=UnsyncedFileSystem()) as b:
        async with Coordinator.open(store, [a, b]) as again:
            assert again.position == b"1"
        assert await committed(a) == await committed(b) == [b"1"]


async def test_a_log_that_fails_before_the_commit(tmp_path: Path, a: Wal) -> None:
    """Nothing is stored; the rollback that fails too is only noted."""
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    store = MemoryStore()
    b = await Wal.open(tmp_path / "b", fs=faulty)
    coordinator = await Coordinator.open(store, [a, b])
    saves = store.saves
    faulty.fail("pwrite")
    with pytest.raises(StorageUnavailableError) as failed:
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"1")
            await txn.publish(b, b"1")
    assert "rolling back failed" in failed.value.__notes__[0]
    assert store.saves == saves
    with pytest.raises(WalClosedError):
        async with coordinator.transaction():
            pass
    with pytest.raises(WalClosedError):
        await b.aclose()
    faulty.heal()
    async with Wal.open(tmp_path / "b", fs=faulty) as b, Coordinator.open(store, [a, b]):
        assert await pending(a) == await pending(b) == 0
        assert await committed(a) == await committed(b) == []


async def test_intents_are_kept_until_their_acknowledgements_are_on_disk(
    tmp_path: Path, b: Wal
) -> None:
    """Also if the next transaction does not touch that log: else a crash would lose both."""
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    store = MemoryStore()
    async with (
        Wal.open(tmp_path / "a", fs=faulty) as a,
        Coordinator.open(store, [a, b]) as coordinator,
    ):
        holds: list[Hold] = []
        store.on_save = lambda: holds.append(faulty.hold("pwrite"))
        async with coordinator.transaction() as txn:
            await txn.publish(a, b"1")
        store.on_save = lambda: None
        saves = store.saves

        async def follow() -> None:
            async with coordinator.transaction() as txn:
                await txn.publish(b, b"2")

        task = asyncio.ensure_future(follow())
        await holds[0].wait_entered()
        await until(lambda: b.durable_limit == 2)
        await turns(20)
        assert store.saves == saves
        holds[0].release()
        await task
        assert store.saves == saves + 1
        assert await committed(a) == [b"1"]


async def test_only_the_coordinator_opened_last_commits(a: Wal) -> None:
    old = await Coordinator.open(RegisterStore(a), [a])
    async with old.transaction() as txn:
        await txn.publish(a, b"old")
    new = await Coordinator.open(RegisterStore(a), [a])
    with pytest.raises(FencedError, match="took over"):
        async with old.transaction() as txn:
            await txn.publish(a, b"zombie")
    with pytest.raises(WalClosedError) as refused:
        async with old.transaction():
            pass
    assert refused.value.reason == "fenced"
    async with new.transaction() as txn:
        await txn.publish(a, b"new")
    await old.aclose()
    await new.aclose()
    assert await committed(a) == [b"old", b"new"]


async def test_missing_outputs_are_refused_unless_forgotten(
    a: Wal, b: Wal, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    async with Coordinator.open(store, [a, b]) as coordinator, coordinator.transaction() as txn:
        await txn.publish(b, b"1")
    before = store.data
    with pytest.raises(LogNotFoundError, match="published to the log") as missing:
        await Coordinator.open(store, [a])
    assert missing.value.location == b.log_id
    assert store.data == before, "nobody was fenced off"
    async with Coordinator.open(store, [a], forget_missing=True) as coordinator:
        assert f"the log {b.log_id} is dropped" in caplog.text
    async with Coordinator.open(store, [a]):
        pass


async def test_a_state_larger_than_a_register(a: Wal) -> None:
    """It takes several; when it shrinks they are given back."""
    async with Coordinator.open(RegisterStore(a, "big"), [a]) as coordinator:
        for size in (10, 50_000, 10):
            async with coordinator.transaction() as txn:
                txn.position = bytes(size)
            again = RegisterStore(a, "big")
            assert bytes(size) in (await again.load() or b"")
        assert [name for name in a.registers if name.startswith("big")] == ["big", "big/0"]
        with pytest.raises(LimitExceededError, match="64 registers"):
            async with coordinator.transaction() as txn:
                await txn.publish(a, b"1")
                txn.position = bytes(1 << 20)
    assert await pending(a) == 0
    assert await committed(a) == []
