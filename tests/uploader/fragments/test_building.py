"""How a fragment is built on a worker's threads: the order, what breaks it, and summing meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.frames import batch_of, build, values_only
from tests.waiting import until
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import verify_fragment
from uploader.fragments.fragment_builder import (
    Building,
    EncodedFragment,
    encode_fragment,
)
from walstore.core.batches.batch import Batch
from walstore.core.runtime.threads import Lane, Pool, Worker
from walstore.errors import StorageUnavailableError

TIME_US = 1_234_567_890_123_456
VALUES = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Two threads: what keeps its order does not owe it to them."""
    worker = Worker("test", threads=2)
    yield worker
    worker.close()


@pytest.fixture
def building(worker: Worker) -> Building:
    return Building(worker, timestamp_us=TIME_US)


class Gate:
    """Records that are not there before the gate is opened."""

    def __init__(self, records: Callable[[], Sequence[Batch]]) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self._records = records

    def __call__(self) -> Sequence[Batch]:
        self.entered.set()
        assert self.opened.wait(20)
        return self._records()


def record(number: int) -> Callable[[], list[Batch]]:
    """Return the record at this offset, as a caller would give it."""
    return lambda: [batch_of(build(values_only(VALUES[number - 1], start=number)))]


def nothing() -> list[Batch]:
    return []


def failing() -> list[Batch]:
    raise OSError("no records")


async def values_of(fragment: EncodedFragment) -> list[bytes]:
    found = await asyncio.to_thread(verify_fragment, fragment.data, fragment.entry(1))
    return list(found.values)


async def test_parts_and_the_end(building: Building) -> None:
    await building.add(record(1))
    await building.add(nothing)
    await building.add(record(2))
    fragment = await building.finish(record(3))
    assert (fragment.start, fragment.limit) == (1, 4)
    assert await values_of(fragment) == VALUES[:3]
    assert not building.is_broken


async def test_the_file_first_then_its_sum(building: Building) -> None:
    await building.add(record(1))
    file = await building.write(record(2))
    assert (file.start, file.limit) == (1, 3)
    setsum = await building.sum()
    assert setsum == Setsum.of_records(1, TIME_US, VALUES[:2])
    assert await values_of(file.summed(setsum)) == VALUES[:2]


async def test_the_writer_goes_into_the_file(worker: Worker) -> None:
    for writer in (None, "w"):
        made = await Building(worker, timestamp_us=TIME_US, writer=writer).finish(record(1))
        batches = record(1)()
        assert made == await asyncio.to_thread(
            encode_fragment, batches, timestamp_us=TIME_US, writer=writer
        )


async def test_no_record_at_all_is_told(building: Building) -> None:
    await building.add(nothing)
    with pytest.raises(ValueError, match="at least one record"):
        await building.finish(nothing)


# -- order of a building's calls ----------------------------------------------------------


async def test_calls_follow_one_another_as_they_were_made(building: Building) -> None:
    """Although there is a thread to spare. Records are asked for when it is their turn."""
    gate = Gate(record(1))
    asked: list[int] = []

    def noted(number: int) -> Callable[[], list[Batch]]:
        def records() -> list[Batch]:
            asked.append(number)
            return record(number)()

        return records

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(building.add(gate))
        tasks.create_task(building.add(noted(2)))
        tasks.create_task(building.add(noted(3)))
        writing = tasks.create_task(building.write(noted(4)))
        summing = tasks.create_task(building.sum())
        await until(gate.entered.is_set)
        assert asked == []
        gate.opened.set()
    assert asked == [2, 3, 4]
    assert await values_of(writing.result().summed(summing.result())) == VALUES


async def test_records_are_asked_for_on_a_thread(building: Building) -> None:
    threads: list[int] = []

    def noted() -> list[Batch]:
        threads.append(threading.get_ident())
        return record(len(threads))()

    await building.add(noted)
    await building.finish(noted)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_the_sum_is_computed_beside_other_work(worker: Worker, building: Building) -> None:
    """One thread of two is busy all the while, as it is when the next fragment is being encoded."""
    gate = Gate(record(1))
    await building.add(record(1))
    await building.write(record(2))
    other = Building(worker, timestamp_us=TIME_US)
    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(other.add(gate))
        await until(gate.entered.is_set)
        async with asyncio.timeout(60):
            assert await building.sum() == Setsum.of_records(1, TIME_US, VALUES[:2])
        assert not adding.done()
        gate.opened.set()
    assert (await other.finish(nothing)).limit == 2


async def test_the_sum_is_computed_on_a_thread_too(worker: Worker, building: Building) -> None:
    """It waits for one, if all are busy, rather than hold up the loop."""
    await building.write(record(1))
    gates = [Gate(nothing), Gate(nothing)]
    async with asyncio.TaskGroup() as tasks:
        for gate in gates:
            tasks.create_task(Building(worker, timestamp_us=TIME_US).add(gate))
        await until(lambda: all(gate.entered.is_set() for gate in gates))
        summing = tasks.create_task(building.sum())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not summing.done()
        for gate in gates:
            gate.opened.set()
    assert summing.result() == Setsum.of_records(1, TIME_US, VALUES[:1])


# -- what breaks a building ----------------------------------------------------------------------------


async def test_a_part_that_does_not_follow_breaks_it(building: Building) -> None:
    await building.add(record(1))
    assert not building.is_broken
    with pytest.raises(ValueError, match="does not follow"):
        await building.add(record(3))
    assert building.is_broken


async def test_records_that_cannot_be_had_break_it(building: Building) -> None:
    with pytest.raises(OSError, match="no records"):
        await building.add(failing)
    assert building.is_broken


async def test_it_stays_broken(building: Building) -> None:
    with pytest.raises(OSError, match="no records"):
        await building.add(failing)
    await building.add(record(2))
    assert building.is_broken


async def test_to_be_cancelled_breaks_it(building: Building) -> None:
    gate = Gate(record(1))
    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(building.add(gate))
        await until(gate.entered.is_set)
        assert not building.is_broken
        adding.cancel()
        await asyncio.wait((adding,))
        assert adding.cancelled()
        assert building.is_broken
        gate.opened.set()


async def test_to_be_cancelled_before_a_thread_is_free_breaks_it(worker: Worker) -> None:
    gates = [Gate(record(1)), Gate(record(1))]
    buildings = [Building(worker, timestamp_us=TIME_US) for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for building, gate in zip(buildings, gates, strict=False):
            tasks.create_task(building.add(gate))
        await until(lambda: all(gate.entered.is_set() for gate in gates))
        adding = tasks.create_task(buildings[2].add(failing))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.wait((adding,))
        for gate in gates:
            gate.opened.set()
    assert [building.is_broken for building in buildings] == [False, False, True]


async def test_to_be_cancelled_while_another_part_is_added_breaks_it(building: Building) -> None:
    gate = Gate(record(1))
    async with asyncio.TaskGroup() as group:
        group.create_task(building.add(gate))
        await until(gate.entered.is_set)
        waiting = group.create_task(building.add(record(2)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        gate.opened.set()
    assert building.is_broken
    for end in (building.finish, building.write):
        with pytest.raises(RuntimeError, match="given up"):
            await end(nothing)


async def test_a_part_whose_task_never_began_is_missed(building: Building) -> None:
    await building.add(record(1))
    adding = asyncio.create_task(building.add(record(2)))
    adding.cancel()
    await asyncio.wait((adding,))
    with pytest.raises(RuntimeError, match="given up"):
        await building.finish(nothing)


# -- encoders ------------------------------------------------------------------------------------


class Elsewhere:
    """Encoders that take everything, on threads that may not start."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.asked = 0

    def lane_for(self, batches: Sequence[Batch]) -> Lane | None:
        assert len(batches) == 1
        return self.lane

    def encode(self, batches: Sequence[Batch], **_: object) -> None:
        self.asked += 1


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("way", ["finish", "write"])
async def test_what_is_not_encoded_elsewhere(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, way: str, *, starts: bool
) -> None:
    """For example because the system has no more threads that could wait for it."""
    pool = Pool("test", 1)
    elsewhere = Elsewhere(pool.lane())
    await worker.run(int)
    if not starts:

        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(pool, "_start_thread", lambda: pool_refuses())
        monkeypatch.setattr(threading.Thread, "start", refuse)

        def pool_refuses() -> None:
            raise StorageUnavailableError("no thread can be started")

    building = Building(worker, timestamp_us=TIME_US, encoders=elsewhere)
    expected = encode_fragment(record(1)(), timestamp_us=TIME_US)
    if way == "finish":
        assert await building.finish(record(1)) == expected
    else:
        file = await building.write(record(1))
        assert file.summed(await building.sum()) == expected
    assert elsewhere.asked == 1
    pool.close()


async def test_one_that_was_built_before_its_turn(worker: Worker) -> None:
    """Whichever of the two calls comes first."""
    expected = encode_fragment(record(1)(), timestamp_us=TIME_US)
    for is_early in (True, False):
        building = Building(worker, timestamp_us=TIME_US)
        turn = asyncio.Semaphore(1 if is_early else 0)
        building_it = asyncio.create_task(building.build(record(1), turn))
        if is_early:
            await building_it
        file = await building.write(record(1))
        assert file.summed(await building.sum()) == expected
        assert await building.finish(record(1)) is file
        turn.release()
        await building_it


async def test_an_error_before_its_turn_is_raised_at_its_turn(worker: Worker) -> None:
    building = Building(worker, timestamp_us=TIME_US)
    await building.build(nothing, asyncio.Semaphore(1))
    for call in (building.finish, building.write):
        with pytest.raises(ValueError, match="at least one record"):
            await call(record(1))
