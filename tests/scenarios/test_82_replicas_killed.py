"""A replicated log in three processes that are killed and stopped in turn: nothing is lost, or twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from tests.effort import first_seed, some
from tests.programs import COMMANDS, WALSTORE, Program, start
from tests.scenarios.story import Story
from tests.waiting import until, wait_until
from walstore import RemoteWal, Replication, Wal, connect

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

KINDS = ("primary", "primary", "replica", "stop", "pause")
FAULTS = some(100, least=len(KINDS))
PRODUCERS = 4
PRIMARY = """
import asyncio, os, sys, itertools
from walstore import Replication, Wal, WalError, Settings

async def main():
    path, nodes, story = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
    file = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def tell(text):
        os.write(file, (text + "\\n").encode())
    replication = Replication(nodes=nodes, name="orders", patience_seconds=60)
    settings = Settings(segment_bytes=65536)
    async with Wal.open(path, replication=replication, settings=settings) as wal:
        tell(f"primary {os.getpid()} {wal.statistics().epoch}")
        async def produce(number):
            producer = wal.producer(f"p{number}")
            for at in itertools.count(await producer.last_sequence() + 1):
                value = f"{number} {at}".encode() + b"." * (at % 700)
                if at % 17 == 0:
                    async with wal.transaction() as transaction:
                        await transaction.append(b"t " + value)
                await producer.append(value, sequence=at)
                tell(f"ok {number} {at}")
        await asyncio.gather(*(produce(number) for number in range(4)))

asyncio.run(main())
"""


class Machine:
    """A machine: its process serves a copy, or is the primary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"unix://{path}.sock"
        self.errors = path.with_suffix(".err")
        self.process: Program | None = None

    def serve(self) -> None:
        self._run("serve", self.path, "--replicate", "--unix", f"{self.path}.sock")

    def lead(self, others: list[Machine], story: Story) -> None:
        nodes = ",".join(other.address for other in others)
        self.process = start(PRIMARY, self.path / "orders", nodes, story.path, stderr=DEVNULL)

    def lead_and_serve(self, machines: list[Machine]) -> None:
        command = ["serve", self.path / "orders"]
        command += ["--unix", f"{self.path}.sock", "--drain-seconds", "1"]
        for other in machines:
            command += ["--replica", other.address] * (other is not self)
        with self.errors.open("wb") as errors:
            self._run(*command, errors=errors.fileno())

    def lead_on(self, machines: list[Machine]) -> None:
        """Start it again, as a supervisor does, if it found too few copies in its time on a busy computer."""
        if self.has_ended():
            assert "are needed" in self.errors.read_text()
            self.lead_and_serve(machines)

    def _run(self, *command: object, errors: int = DEVNULL) -> None:
        self.process = start(WALSTORE, *command, imports=COMMANDS, stdout=DEVNULL, stderr=errors)

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self.path}.sock") == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def is_whole(self) -> bool:
        """Whether the copy counts in a takeover."""
        promise = self.path / "orders" / "PROMISE"
        return promise.exists() and bool(json.loads(promise.read_text())["whole"])

    def has_ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


def wait_for_more(story: Story, count: int, primary: Machine) -> None:
    """Wait until so many more appends are acknowledged."""
    goal = story.count("ok") + count
    wait_until(lambda: story.count("ok") >= goal or primary.has_ended(), seconds=120)
    assert not primary.has_ended(), "the primary has ended"


def wait_until_whole(machines: Sequence[Machine]) -> None:
    """Wait until the copies of machines count, so that these can take over without the others."""
    wait_until(lambda: all(machine.is_whole() for machine in machines), seconds=120)


def wait_for_copies(machines: list[Machine], leader: Machine) -> None:
    """Wait until the processes of all others listen: a primary needs copies to take over."""
    for machine in machines:
        if machine is not leader:
            wait_until(machine.listens, seconds=60)


def test_what_was_acknowledged_is_there_once(tmp_path: Path) -> None:
    chance, story = random.Random(first_seed("replicas")), Story(tmp_path / "story")
    machines = [Machine(tmp_path / f"m{number}") for number in range(3)]
    for machine in machines:
        machine.path.mkdir()
    leader = machines[0]
    happened: Counter[str] = Counter()
    try:
        for machine in machines[1:]:
            machine.serve()
        wait_for_copies(machines, leader)
        leader.lead(machines[1:], story)
        for turn in range(FAULTS):
            wait_for_more(story, 30, leader)
            if not turn % len(KINDS):
                faults = chance.sample(KINDS, len(KINDS))
            fault = faults.pop()
            wait_for_copies(machines, leader)
            happened[fault] += 1
            others = [machine for machine in machines if machine is not leader]
            if fault == "replica":
                victim = chance.choice(others)
                victim.kill()
                victim.serve()
            elif fault == "pause":
                victim = chance.choice(others)
                victim.send(signal.SIGSTOP)
                wait_for_more(story, 10, leader)
                victim.send(signal.SIGCONT)
            else:
                # The primary dies, or stands still while another one takes over.
                old, leader = leader, chance.choice(others)
                if fault == "primary":
                    old.kill()
                else:
                    wait_until_whole(others)
                    old.send(signal.SIGSTOP)
                leader.kill()
                leader.lead([machine for machine in machines if machine is not leader], story)
                if fault == "stop":
                    wait_for_more(story, 10, leader)
                    old.send(signal.SIGCONT)
                    wait_until(old.has_ended, seconds=120)  # once it learns that it was passed over
                    old.kill()
                old.serve()
        wait_for_more(story, 30, leader)
        wait_for_copies(machines, leader)
        leader.kill()
        check(asyncio.run(read(leader, machines)), story.look())
    finally:
        for machine in machines:
            machine.kill()
    assert happened["primary"] + happened["stop"] > FAULTS // 3


class Clients:
    """Producers and a reader that share a connection, until they are cancelled."""

    def __init__(self) -> None:
        self.acknowledged = [0] * PRODUCERS
        self.seen: list[bytes] = []

    async def produce(self, remote: RemoteWal, number: int) -> None:
        producer = remote.producer(f"p{number}")
        while True:
            await producer.append(b"%d %d" % (number, self.acknowledged[number]))
            self.acknowledged[number] += 1

    async def follow(self, remote: RemoteWal) -> None:
        async for record in remote.follow():
            self.seen.append(record.value)

    async def more(self, leader: Machine, machines: list[Machine]) -> None:
        """Wait until each of them has got on, with a leader that is started again."""
        goals = [count + 20 for count in (*self.acknowledged, len(self.seen))]

        def got_on() -> bool:
            leader.lead_on(machines)
            return all(map(int.__ge__, (*self.acknowledged, len(self.seen)), goals))

        await until(got_on, seconds=240)

    def check(self, found: list[bytes]) -> None:
        assert found[: len(self.seen)] == self.seen
        for number, count in enumerate(self.acknowledged):
            own = [value for value in found if value.startswith(b"%d " % number)]
            assert own == [b"%d %d" % (number, at) for at in range(len(own))]
            assert len(own) - count in (0, 1)


async def test_clients_go_on_with_the_next_primary(tmp_path: Path) -> None:
    """The primaries are processes that clients reach; they die, or stand still and end when they go on."""
    chance, clients = random.Random(first_seed("primaries")), Clients()
    machines = [Machine(tmp_path / f"m{number}") for number in range(3)]
    for machine in machines:
        machine.path.mkdir()
    leader = machines[0]
    try:
        for machine in machines[1:]:
            machine.serve()
        await asyncio.to_thread(wait_for_copies, machines, leader)
        leader.lead_and_serve(machines)
        addresses = [machine.address for machine in machines]
        async with (
            connect(addresses, connect_seconds=240, reconnect_seconds=240) as remote,
            asyncio.TaskGroup() as group,
        ):
            work = [clients.produce(remote, number) for number in range(PRODUCERS)]
            tasks = [group.create_task(one) for one in (*work, clients.follow(remote))]
            for number in range(max(4, FAULTS // 4)):
                await clients.more(leader, machines)
                await until(lambda: all(one.is_whole() for one in machines), seconds=120)
                old, leader = leader, chance.choice([one for one in machines if one is not leader])
                old.send(signal.SIGKILL if number % 2 else signal.SIGSTOP)
                leader.kill()
                leader.lead_and_serve(machines)
                await clients.more(leader, machines)
                assert old.process is not None
                old.send(signal.SIGCONT)  # learns that it was passed over, if it lives, and ends
                ended = await asyncio.to_thread(old.process.wait, 120)
                assert ended == (-signal.SIGKILL if number % 2 else 4)
                old.serve()
                await until(
                    old.listens, seconds=120
                )  # else the next primary may find too few copies
            await clients.more(leader, machines)
            for task in tasks:
                task.cancel()
        leader.kill()
        clients.check(await read(leader, machines))
    finally:
        for machine in machines:
            machine.kill()
    print(json.dumps({"acknowledged": clients.acknowledged, "found": remote.client.reconnects}))


async def read(leader: Machine, machines: list[Machine]) -> list[Any]:
    nodes = [machine.address for machine in machines if machine is not leader]
    replication = Replication(nodes=nodes, name="orders", patience_seconds=60)
    path = leader.path / "orders"
    async with Wal.open(path, replication=replication) as wal, wal.reader(follow=False) as reader:
        return [record.value async for record in reader]


def check(found: list[bytes], story: list[str]) -> None:
    values = [value.rstrip(b".").decode() for value in found if not value.startswith(b"t ")]
    counts = Counter(values)
    assert [value for value, times in counts.items() if times > 1] == []
    acknowledged = [line.removeprefix("ok ") for line in story if line.startswith("ok ")]
    assert [value for value in acknowledged if value not in counts] == []
    for number in range(PRODUCERS):
        own = [int(value.split()[1]) for value in values if value.startswith(f"{number} ")]
        assert own == sorted(own)
    epochs = [int(line.split()[2]) for line in story if line.startswith("primary")]
    assert epochs == sorted(set(epochs)), "two primaries had one epoch"
    print(json.dumps({"acknowledged": len(acknowledged), "primaries": len(epochs)}))
