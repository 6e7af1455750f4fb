"""A log as the queue of taskiq: tasks run once, come again after a crash, and are never lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq import AckableMessage, BrokerMessage, TaskiqEvents
from taskiq.acks import AcknowledgeType
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.receiver import Receiver

from tests.clocks import SkippingClock
from tests.walstore.serve.served import serving
from walstore import Wal, WalClosedError, connect
from walstore.kits.taskiq import WalstoreBroker
from walstore.testing import FaultyFileSystem, MemoryFileSystem


def broker_in(fs: Any, **options: Any) -> WalstoreBroker:
    clock = options.pop("clock", None)
    return WalstoreBroker(lambda: Wal.open("/log", fs=fs, clock=clock), **options)


@asynccontextmanager
async def started(broker: WalstoreBroker) -> AsyncIterator[WalstoreBroker]:
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: WalstoreBroker, **options: Any) -> AsyncIterator[None]:
    """Run a worker, and stop it as taskiq's does: it ends what it has begun."""
    receiver = Receiver(broker, run_startup=False, max_async_tasks=10, **options)
    finish = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()


def message(data: bytes, **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id="id", task_name="name", message=data, labels=labels)


async def heard(broker: WalstoreBroker, count: int) -> list[AckableMessage]:
    listening = broker.listen()
    found = [await anext(listening) for _ in range(count)]
    await listening.aclose()
    assert all(isinstance(one, AckableMessage) for one in found)
    return found  # type: ignore[return-value]


# -- the broker -------------------------------------------------------------------------------


async def test_what_is_kicked_is_heard_in_order() -> None:
    async with started(broker_in(MemoryFileSystem())) as broker:
        for data in (b"1", b"2"):
            await broker.kick(message(data))
        assert [one.data for one in await heard(broker, 2)] == [b"1", b"2"]


async def test_what_was_acknowledged_does_not_come_again() -> None:
    fs = MemoryFileSystem()
    async with started(broker_in(fs)) as broker:
        for data in (b"1", b"2"):
            await broker.kick(message(data))
        first, _ = await heard(broker, 2)
        await first.ack()
    async with started(broker_in(fs)) as broker:  # what was given back comes at once
        assert [one.data for one in await heard(broker, 1)] == [b"2"]


async def test_a_worker_that_stops_listening_may_acknowledge_afterwards() -> None:
    """As taskiq does: it stops before the tasks that run have ended."""
    async with started(broker_in(MemoryFileSystem())) as broker:
        await broker.kick(message(b"1"))
        (only,) = await heard(broker, 1)
        await broker.kick(message(b"2"))
        assert [one.data for one in await heard(broker, 1)] == [b"2"]  # 1 is not given back
        await only.ack()


async def test_a_task_comes_again_after_its_lease() -> None:
    clock = SkippingClock()
    async with started(broker_in(MemoryFileSystem(), clock=clock, ack_wait_seconds=60)) as broker:
        await broker.kick(message(b"1"))
        await heard(broker, 1)
        clock.skip(61)
        assert [one.data for one in await heard(broker, 1)] == [b"1"]


async def test_two_workers_share_the_tasks(tmp_path: Any) -> None:
    async with (
        serving(tmp_path / "log") as served,
        started(WalstoreBroker(served.connect)) as one,
        started(WalstoreBroker(lambda: connect(served.address))) as two,
    ):
        await one.kick(message(b"1"))
        await two.kick(message(b"2"))
        found = await heard(one, 1) + await heard(two, 1)
        assert {task.data for task in found} == {b"1", b"2"}
        for task in found:
            await task.ack()


async def test_a_queue_is_a_stream_of_a_log() -> None:
    fs = MemoryFileSystem()
    async with started(broker_in(fs, stream="mails", group="mailers")) as broker:
        await broker.kick(message(b"1"))
        (task,) = await heard(broker, 1)
        await task.ack()
    async with Wal.open("/log", fs=fs) as wal:
        assert [record.stream async for record in wal.reader(follow=False)] == ["mails"]
        assert [group.name for group in await wal.groups()] == ["mailers"]


async def test_a_task_that_was_given_out_too_often_becomes_a_dead_letter() -> None:
    fs, clock = MemoryFileSystem(), SkippingClock()
    async with started(broker_in(fs, clock=clock, max_deliver=1)) as broker:
        await broker.kick(message(b"1"))
        await heard(broker, 1)
        clock.skip(601)
        await broker.kick(message(b"2"))
        assert [one.data for one in await heard(broker, 1)] == [b"2"]
    async with Wal.open_readonly("/log", fs=fs) as log:
        letter = await anext(log.follow(stream="taskiq.dead"))
        assert (letter.value, letter.headers["walstore.offset"]) == (b"1", b"1")


async def test_a_task_that_was_refused_is_not_in_the_log() -> None:
    async with started(broker_in(MemoryFileSystem())) as broker:
        for delay in ("soon", -1, "nan"):
            with pytest.raises(ValueError, match=r"soon|until"):
                await broker.kick(message(b"1", delay=delay))
        await broker.kick(message(b"2"))
        assert [one.data for one in await heard(broker, 1)] == [b"2"]


async def test_a_delayed_task_comes_in_its_time_and_holds_no_other_back() -> None:
    fs, clock = MemoryFileSystem(), SkippingClock()
    async with started(broker_in(fs, clock=clock)) as broker:
        await broker.kick(message(b"1", delay=3600))
        await broker.kick(message(b"2", delay="0"))
        await broker.kick(message(b"3"))
        assert {one.data for one in await heard(broker, 2)} == {b"2", b"3"}
        clock.skip(3700)
        assert [one.data for one in await heard(broker, 1)] == [b"1"]


async def test_a_kick_that_is_cancelled_is_in_the_log_if_it_was_accepted() -> None:
    disk = FaultyFileSystem(MemoryFileSystem())
    async with started(broker_in(disk)) as broker:
        hold = disk.hold("datasync")
        kicking = asyncio.ensure_future(broker.kick(message(b"1")))
        await hold.wait_entered()
        kicking.cancel()
        hold.release()
        with pytest.raises(asyncio.CancelledError):
            await kicking
        assert [one.data for one in await heard(broker, 1)] == [b"1"]


async def test_it_is_used_between_startup_and_shutdown() -> None:
    broker = broker_in(MemoryFileSystem())
    with pytest.raises(RuntimeError, match="startup"):
        await broker.kick(message(b"1"))
    for _ in range(2):
        await broker.startup()
        await broker.startup()
        await broker.kick(message(b"1"))
        (task,) = await heard(broker, 1)
        await broker.shutdown()
        await broker.shutdown()
        with pytest.raises(WalClosedError):
            await task.ack()


async def test_a_log_that_cannot_be_opened_is_an_error_of_startup() -> None:
    fs = MemoryFileSystem()
    async with Wal.open("/log", fs=fs):
        broker = broker_in(fs)
        with pytest.raises(Exception, match="open for writing"):
            await broker.startup()
    async with started(broker):
        pass


# -- with taskiq's own worker -----------------------------------------------------------------


def with_results(broker: WalstoreBroker) -> WalstoreBroker:
    return broker.with_result_backend(InmemoryResultBackend())


async def test_tasks_run_and_their_results_come_back() -> None:
    broker = with_results(broker_in(MemoryFileSystem()))
    seen: list[str] = []

    @broker.on_event(TaskiqEvents.CLIENT_STARTUP)
    async def begin(_: object) -> None:
        seen.append("started")

    @broker.task
    async def double(number: int) -> int:
        return 2 * number

    @broker.task
    def blocking(number: int) -> int:
        return 3 * number

    async with started(broker):
        async with working(broker):
            tasks = [await double.kiq(number) for number in range(5)]
            tasks.append(await blocking.kiq(5))
            results = [await task.wait_result(check_interval=0.001, timeout=60) for task in tasks]
        assert [result.return_value for result in results] == [0, 2, 4, 6, 8, 15]
    assert seen == ["started"]


@pytest.mark.parametrize("when", [AcknowledgeType.WHEN_SAVED, AcknowledgeType.WHEN_EXECUTED])
async def test_a_task_that_fails_has_ended(when: AcknowledgeType) -> None:
    fs = MemoryFileSystem()
    broker = with_results(broker_in(fs))

    @broker.task
    async def fail() -> None:
        raise ValueError("no")

    async with started(broker), working(broker, ack_type=when):
        task = await fail.kiq()
        assert (await task.wait_result(check_interval=0.001, timeout=60)).is_err
    async with Wal.open("/log", fs=fs) as wal, wal.group("taskiq") as group:
        assert await group.fetch(max_wait_seconds=0) == []


async def test_a_worker_that_stops_ends_what_it_has_begun() -> None:
    fs = MemoryFileSystem()
    broker = broker_in(fs)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @broker.task
    async def slow() -> None:
        begun.set()
        await go_on.wait()

    async with started(broker), working(broker):
        await slow.kiq()
        await begun.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    async with Wal.open("/log", fs=fs) as wal, wal.group("taskiq") as group:
        assert await group.fetch(max_wait_seconds=0) == []


def test_without_taskiq_the_error_names_the_extra() -> None:
    code = "import sys\nsys.modules['taskiq'] = None\nimport walstore.kits.taskiq"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "walstore.kits.taskiq needs the extra 'taskiq'" in done.stderr.splitlines()[-1]
