"""What Jepsen found in NATS JetStream, done to our replicated log.

The report is https://jepsen.io/analyses/nats-2.12.1, of December 2025, with these findings:

  * Acknowledged before it was synced (nats-server issue 7564): machines that lost power at the same time lost
    what they had acknowledged. Here: ``test_power_is_lost_at_several_machines_at_once``.
  * One flipped bit, or a cut, in a data file of a minority lost records also of sound machines, when the
    machine with that file led (7549). Here: ``test_one_damaged_copy_loses_nothing`` and
    ``test_a_damaged_copy_is_made_anew``.
  * A damaged snapshot let a machine take its stream for an orphan and delete it (7556). Here:
    ``test_damaged_metadata_deletes_nothing`` and ``test_a_machine_of_a_cluster_keeps_what_it_cannot_read``.
  * Killed processes forgot that a stream was there (6888, in 2.10.22). Here:
    ``test_killed_programs_do_not_forget_the_log``.
  * One machine lost power while others stood still or were cut off. Those that had the records were not asked
    then, and what had been acknowledged was gone at some machines (7567). Here:
    ``test_a_power_failure_while_others_stand_still``.

Writes that were under way at a machine that stood still are between the last two:
``test_what_was_under_way_at_a_leader_that_stood_still`` and
``test_what_was_under_way_at_a_copy_that_stood_still``.

A machine is a node of a process here, with a disk that can lose power, and can stand still.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machines
from tests.walstore.cluster.replication.cluster import SMALL, Cluster, Machine
from tests.walstore.cluster.replication.test_replication import caught_up, forget
from walstore import CorruptionError, StorageUnavailableError, Wal, WalClosedError, WalError
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.format import checkpoint
from walstore.core.format.segment import HEADER_BYTES
from walstore.testing import FaultyFileSystem, Hold, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = [pytest.mark.slow]

PRODUCERS: Final = 6
FILLER: Final = b"." * 900


class PoweredMachine(Machine):
    """A machine whose disk loses what is not synced when the power is cut, and can stand still."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lives = 0
        self._plug_in(path)

    def _plug_in(self, path: Path) -> None:
        self.path = path
        self.power = PowerLossFileSystem(path / "orders")
        self.disk = FaultyFileSystem(self.power)
        self.fs = self.disk
        self._holds: list[Hold] = []

    def stand_still(self) -> None:
        """Let every call on the disk wait: nothing is promised, written or synced."""
        self._holds.append(self.disk.hold("*"))

    def go_on(self) -> None:
        """End that."""
        holds, self._holds = self._holds, []
        for hold in holds:
            hold.release()

    async def come_back(self, seed: int) -> None:
        """Be there again after the power was cut, with what the disk has then."""
        self.power.cut()
        self.go_on()
        with suppress(WalError):
            await self.stop()
        self._lives += 1
        path = self.path.with_name(f"{self.socket.parent.name}-{self._lives}")
        path.mkdir()
        await asyncio.to_thread(self.power.crash, seed, path / "orders")
        self._plug_in(path)
        await self.start()


class PoweredCluster(Cluster):
    """Machines whose power can be cut."""

    def __init__(self, path: Path, size: int = 3) -> None:
        super().__init__(path, 0)
        self.powered = [PoweredMachine(path / f"m{number}") for number in range(size)]
        self.machines = [*self.powered]

    async def __aexit__(self, *_: object) -> None:
        for machine in self.powered:
            machine.go_on()
        await super().__aexit__()


class Producers:
    """Append to one log after the other, and know what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        """Values by their offsets."""
        self._numbers = count(1)

    async def append(self, wal: Wal, filler: bytes = b"") -> None:
        """Append one record."""
        value = b"%d" % next(self._numbers) + filler
        offset = await wal.append(value)
        assert self.acknowledged.setdefault(offset, value) == value, (
            f"{offset} is acknowledged twice"
        )

    async def fill(self, wal: Wal, records: int) -> None:
        """Append some, with several under way."""
        await asyncio.gather(*(self.append(wal, FILLER) for _ in range(records)))

    @asynccontextmanager
    async def running(self, wal: Wal) -> AsyncIterator[None]:
        """Append all the time, each producer until an append fails or the block ends."""

        async def produce() -> None:
            with suppress(WalError):
                while True:
                    await self.append(wal)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(produce()) for _ in range(PRODUCERS)]
            yield
            for task in tasks:
                task.cancel()

    async def more(self, records: int) -> None:
        """Wait until so many more are acknowledged."""
        goal = len(self.acknowledged) + records
        await until(lambda: len(self.acknowledged) >= goal, seconds=120)

    def check(self, found: dict[int, bytes]) -> None:
        """Compare with a log: all that was acknowledged is there in its place, nothing is there twice."""
        assert {offset: found.get(offset) for offset in self.acknowledged} == self.acknowledged
        assert len(set(found.values())) == len(found)


async def records(wal: Wal) -> dict[int, bytes]:
    """Return the values of all records that readers see, by their offsets."""
    async with wal.reader(follow=False) as reader:
        return {record.offset: record.value async for record in reader}


@asynccontextmanager
async def leading(
    cluster: Cluster, number: int, patience_seconds: float = 60.0
) -> AsyncIterator[Wal]:
    """Let a machine lead for a while; then it serves its copy again."""
    wal = await cluster.primary(number, patience_seconds=patience_seconds)
    try:
        yield wal
    finally:
        with suppress(WalError):
            await wal.aclose()
        await cluster.machines[number].start()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


# -- acknowledged before it is synced ----------------------------------------------------------


@pytest.mark.parametrize("seed", [LOSE_ALL, 2, 3])
@pytest.mark.parametrize("lost", [(0, 1, 2), (0, 1), (0, 2), (1, 2)], ids=str)
async def test_power_is_lost_at_several_machines_at_once(
    tmp_path: Path, lost: tuple[int, ...], seed: int
) -> None:
    """Machine 0 leads. What it acknowledged at that moment is on the disks of a quorum."""
    done = Producers()
    async with PoweredCluster(tmp_path) as cluster:
        old = await cluster.primary(0)
        async with done.running(old):
            await done.more(150)
            for number in lost:
                cluster.powered[number].power.cut()
            if 0 in lost:
                with suppress(WalError):
                    await old.aclose()
            for number in lost:
                await cluster.powered[number].come_back(seed * (1 + number))
            if 0 not in lost:
                await done.more(50)  # goes on with what the copies have now
        if 0 not in lost:
            await old.aclose()
            await cluster.machines[0].start()
        for number in ((seed + 1) % 3, (seed + 2) % 3):
            async with leading(cluster, number) as wal:
                done.check(await records(wal))
                await done.fill(wal, 3)


# -- damage in the files of one copy -----------------------------------------------------------


def flip(data: bytes, at: int) -> bytes:
    """Flip one bit."""
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def lose_block(data: bytes, at: int) -> bytes:
    """Let one block be zeroes."""
    begin = at - at % 4096
    return data[:begin] + bytes(4096) + data[begin + 4096 :]


def cut(data: bytes, at: int) -> bytes:
    """Cut the file off."""
    return data[:at]


DAMAGE: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "a flipped bit": flip,
    "a lost block": lose_block,
    "a cut": cut,
}
PLACES: Final = ("the first segment", "the middle of the last segment", "the last record")


def damage(directory: Path, place: str, kind: str) -> None:
    """Damage the records of a copy that nobody uses now."""
    segments = sorted(directory.glob("*.wal"))
    assert len(segments) > 2
    path = segments[0] if place == "the first segment" else segments[-1]
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    at = used - 100 if place == "the last record" else used // 2
    path.write_bytes(DAMAGE[kind](data, at))


async def prefix(wal: Wal) -> tuple[dict[int, bytes], bool]:
    """Return what can be read of a log, and whether reading ended with damage that was found."""
    found: dict[int, bytes] = {}
    async with wal.reader(follow=False) as reader:
        try:
            async for record in reader:
                found[record.offset] = record.value
        except CorruptionError:
            return found, True
    return found, False


async def stop_and_damage(cluster: Cluster, victim: int, place: str, kind: str) -> Producers:
    """Fill a log that machine 0 leads, stop all, and damage the copy of a machine."""
    done = Producers()
    wal = await cluster.primary(0)
    await done.fill(wal, 160)
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    for machine in cluster.machines:
        await machine.stop()
    damage(cluster.machines[victim].path / "orders", place, kind)
    for machine in cluster.machines:
        await machine.start()
    return done


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", [0, 1], ids=["of the leader", "of a copy"])
async def test_one_damaged_copy_loses_nothing(
    cluster: Cluster, victim: int, place: str, kind: str
) -> None:
    """Whoever leads, also the machine with the damage: all records, or an error that says where it is."""
    done = await stop_and_damage(cluster, victim, place, kind)
    sound, other = (number for number in range(3) if number != victim)

    # Alone with the damaged copy, a sound one has everything, or does not lead.
    await cluster.machines[other].stop()
    with suppress(StorageUnavailableError):
        async with leading(cluster, sound, patience_seconds=0.5) as wal:
            done.check(await records(wal))
            await done.fill(wal, 2)
    if cluster.machines[sound].server is None:
        await cluster.machines[sound].start()
    await cluster.machines[other].start()

    # The damaged one may lead, but says nothing that is wrong.
    with suppress(CorruptionError):
        async with leading(cluster, victim) as wal:
            found, is_damaged = await prefix(wal)
            known = {offset: done.acknowledged.get(offset) for offset in found}
            assert found == known
            assert is_damaged or found == done.acknowledged
            await done.fill(wal, 2)
    if cluster.machines[victim].server is None:
        await cluster.machines[victim].start()

    # The others have everything, and go on.
    for number in (sound, other):
        async with leading(cluster, number) as wal:
            done.check(await records(wal))
            await done.fill(wal, 2)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("place", PLACES)
async def test_a_damaged_copy_is_made_anew(cluster: Cluster, place: str, kind: str) -> None:
    """Its directory is emptied, as the error says; then it is as good as the others."""
    done = await stop_and_damage(cluster, 1, place, kind)
    await cluster.machines[1].stop()
    forget(cluster.machines[1])
    await cluster.machines[1].start()
    async with leading(cluster, 0) as wal:
        await done.fill(wal, 2)
        await caught_up(cluster, wal, 1, 2)
    async with leading(cluster, 1) as wal:
        done.check(await records(wal))
        await done.fill(wal, 2)
        assert await records(wal) == done.acknowledged


# -- damage in what is written beside the records ----------------------------------------------

BESIDE: Final = (PROMISE_NAME, checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)
HEADERS: Final = ("the first header", "the last header")


def damage_metadata(directory: Path, name: str, how: str) -> None:
    """Damage a file of a copy that nobody uses now, or the header of a segment."""
    segments = sorted(directory.glob("*.wal"))
    path = {HEADERS[0]: segments[0], HEADERS[1]: segments[-1]}.get(name, directory / name)
    data = path.read_bytes()
    match how:
        case "a flipped bit":
            path.write_bytes(flip(data, len(data) // 3 if name in BESIDE else HEADER_BYTES // 3))
        case "empty":
            path.write_bytes(b"")
        case "gone" if name in BESIDE:
            path.unlink()
        case "gone":  # of a header: the file stays
            path.write_bytes(bytes(HEADER_BYTES) + data[HEADER_BYTES:])


def content(directory: Path) -> dict[str, bytes]:
    """Return the segments of a copy, without the space that is reserved behind their records."""
    return {path.name: path.read_bytes().rstrip(b"\0") for path in directory.glob("*.wal")}


@pytest.mark.parametrize("how", ["a flipped bit", "empty", "gone"])
@pytest.mark.parametrize(
    ("victim", "name"),
    [
        *((0, name) for name in (*BESIDE, *HEADERS)),
        *((1, name) for name in (*BESIDE[:2], *HEADERS)),  # one that never led has no cell
    ],
)
async def test_damaged_metadata_deletes_nothing(
    cluster: Cluster, victim: int, name: str, how: str
) -> None:
    """The copy stays as it is, or has the log again; it is never empty, and nobody begins a new log."""
    done = Producers()
    # With several checkpoints, so that the copies get one.
    wal = await cluster.primary(0, settings=replace(SMALL, checkpoint_bytes=65536))
    await done.fill(wal, 160)
    await until((cluster.machines[1].path / "orders" / checkpoint.FILE_NAME).exists)
    await caught_up(cluster, wal, 1, 2)
    log_id = wal.log_id
    await wal.aclose()
    for machine in cluster.machines:
        await machine.stop()
    directory = cluster.machines[victim].path / "orders"
    whole = content(directory)
    damage_metadata(directory, name, how)
    before = content(directory)
    for machine in cluster.machines:
        await machine.start()

    sound = 1 - victim
    async with leading(cluster, sound) as wal:
        assert wal.log_id == log_id
        done.check(await records(wal))
        await done.fill(wal, 2)
        await caught_up(cluster, wal, 2)
    with suppress(CorruptionError):
        async with leading(cluster, victim) as wal:
            assert wal.log_id == log_id
            done.check(await records(wal))
            await done.fill(wal, 2)
    after = content(directory)
    assert set(after) >= set(before), "a segment was deleted"
    for segment, data in whole.items():
        # At most the end is newer: that of a new leader's epoch, and what came then.
        kept = after[segment][: len(data) - 4096]
        assert kept in (data[: len(data) - 4096], before[segment][: len(data) - 4096])
    if cluster.machines[victim].server is None:
        await cluster.machines[victim].start()
    async with leading(cluster, 2) as wal:
        assert wal.log_id == log_id
        done.check(await records(wal))
        await done.fill(wal, 2)


@pytest.mark.parametrize("name", [*BESIDE, *HEADERS])
async def test_a_machine_of_a_cluster_keeps_what_it_cannot_read(tmp_path: Path, name: str) -> None:
    """The machine that led finds one of its files damaged. The log is led, and no copy of it deleted."""
    async with Machines(tmp_path) as machines:
        await machines.apply()
        leader = await machines.led()
        done = Producers()
        wal = leader.led()
        assert wal is not None
        await done.fill(wal, 160)
        log_id = wal.log_id
        await leader.stop()
        directory = leader.path / "orders"
        damage_metadata(directory, name, "a flipped bit")
        before = set(content(directory))
        await leader.start()
        next_leader = await machines.led()
        wal = next_leader.led()
        assert wal is not None
        assert wal.log_id == log_id
        done.check(await records(wal))
        await done.fill(wal, 2)
        assert set(content(directory)) >= before
    assert set(content(directory)) >= before


async def kill_all_while_opening(cluster: PoweredCluster, number: int, calls: int) -> None:
    """Open the log on a machine; kill all after so many calls on its disk, and start them again."""
    disk = cluster.powered[number].disk
    opening = asyncio.create_task(cluster.primary(number))
    goal = len(disk.calls) + calls
    await until(lambda: len(disk.calls) > goal or opening.done())
    for machine in cluster.powered:
        machine.power.cut()
    with suppress(WalError):
        await (await opening).aclose()
    for machine in cluster.powered:
        await machine.come_back(KEEP_ALL)  # the system has what a killed process wrote


async def test_killed_programs_do_not_forget_the_log(tmp_path: Path) -> None:
    """All processes are killed again and again, also while the log is opened; what they wrote stays."""
    done = Producers()
    async with PoweredCluster(tmp_path) as cluster:
        async with leading(cluster, 0) as wal:
            await done.fill(wal, 50)
            log_id = wal.log_id
        for turn in range(6):
            await kill_all_while_opening(cluster, turn % 3, calls=4 * turn)
        async with leading(cluster, 1) as wal:
            assert wal.log_id == log_id
            done.check(await records(wal))
            await done.fill(wal, 2)


# -- machines that stand still -----------------------------------------------------------------


async def test_what_was_under_way_at_a_leader_that_stood_still(tmp_path: Path) -> None:
    """It is not acknowledged, and what producers repeat at the next leader is there once."""
    done = Producers()
    async with PoweredCluster(tmp_path) as cluster:
        old = await cluster.primary(0)
        await done.fill(old, 20)
        producers = [old.producer(f"p{number}") for number in range(PRODUCERS)]
        for number, producer in enumerate(producers):
            await producer.append(b"p%d 1" % number, sequence=1)
        cluster.powered[0].stand_still()
        pending = [
            asyncio.create_task(producer.append(b"p%d 2" % number, sequence=2))
            for number, producer in enumerate(producers)
        ]
        async with leading(cluster, 1) as new:
            await done.fill(new, 20)
            for number in range(PRODUCERS // 2):
                await new.producer(f"p{number}").append(b"p%d 2" % number, sequence=2)
            cluster.powered[0].go_on()
            outcomes = await asyncio.gather(*pending, return_exceptions=True)
            assert all(isinstance(one, WalError) for one in outcomes), outcomes
            assert all(one.outcome == "unknown" for one in outcomes if isinstance(one, WalError))
            for number in range(PRODUCERS):
                await new.producer(f"p{number}").append(b"p%d 2" % number, sequence=2)
            await done.fill(new, 20)
            found = await records(new)
            done.check(found)
            for number in range(PRODUCERS):
                own = [value for value in found.values() if value.startswith(b"p%d " % number)]
                assert own == [b"p%d 1" % number, b"p%d 2" % number]
            with pytest.raises(WalClosedError):
                await old.append(b"too late")
            with suppress(WalError):
                await old.aclose()
        await cluster.machines[0].start()
        async with leading(cluster, 0) as wal:
            assert await records(wal) == {**found, **done.acknowledged}


async def test_what_was_under_way_at_a_copy_that_stood_still(tmp_path: Path) -> None:
    """Its leader is gone meanwhile. The next leader has what it had received once, or not."""
    done = Producers()
    async with PoweredCluster(tmp_path) as cluster:
        old = await cluster.primary(0)
        await done.fill(old, 20)
        await cluster.machines[2].stop()
        cluster.powered[1].stand_still()
        producer = old.producer("p")
        pending = asyncio.create_task(producer.append(b"p 1", sequence=1))
        node = cluster.machines[1].node
        assert node is not None
        calls = len(cluster.powered[1].disk.calls)
        await until(lambda: len(cluster.powered[1].disk.calls) > calls, seconds=120)
        cluster.powered[0].power.cut()  # the leader is gone, and only the copy may have the record
        with suppress(WalError):
            await old.aclose()
        with pytest.raises(WalError):
            await pending
        await cluster.machines[2].start()
        opening = asyncio.create_task(cluster.primary(2, patience_seconds=60.0))
        await until(
            lambda: PROMISE_NAME in {one.path.name for one in cluster.powered[2].disk.calls},
            seconds=120,
        )
        cluster.powered[1].go_on()
        wal = await opening
        await wal.producer("p").append(b"p 1", sequence=1)
        await done.fill(wal, 20)
        found = await records(wal)
        done.check(found)
        assert [value for value in found.values() if value.startswith(b"p")] == [b"p 1"]
        await cluster.powered[0].come_back(LOSE_ALL)
        await wal.aclose()
        await cluster.machines[2].start()
        async with leading(cluster, 0) as wal:
            assert await records(wal) == found


@pytest.mark.parametrize("seed", [LOSE_ALL, 2, 3])
@pytest.mark.parametrize("size", [3, 5])
async def test_a_power_failure_while_others_stand_still(
    tmp_path: Path, size: int, seed: int
) -> None:
    """As many as a quorum can spare are cut off, and one that acknowledged loses power and comes back.

    Then those are there again, and the other ones that have the records stand still. So the next leader has
    the records from the machine that lost power, or not at all.
    """
    done, slow = Producers(), size // 2
    async with PoweredCluster(tmp_path, size) as cluster:
        old_number, crashed = size - 1, slow
        old = await cluster.primary(old_number)
        await done.fill(old, 20)
        for machine in cluster.machines[:slow]:
            await machine.stop()
        async with done.running(old):
            await done.more(100)
            for machine in cluster.powered[slow + 1 :]:
                machine.stand_still()
            cluster.powered[crashed].power.cut()
        for machine in cluster.machines[:slow]:
            await machine.start()
        await cluster.powered[crashed].come_back(seed)
        async with leading(cluster, 0, patience_seconds=60.0) as wal:
            done.check(await records(wal))
            await done.fill(wal, 20)
            for machine in cluster.powered[slow + 1 :]:
                machine.go_on()
            with pytest.raises(WalError):  # it does not lead any more
                while True:
                    await old.append(b"of the old leader")
            with suppress(WalError):
                await old.aclose()
            await cluster.machines[old_number].start()
            await done.fill(wal, 20)
            found = await records(wal)
            done.check(found)
        async with leading(cluster, old_number) as wal:
            assert await records(wal) == found
