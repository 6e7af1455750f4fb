"""Eight client processes and their server, killed in turn: nothing acknowledged is lost, nothing is twice."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.programs import COMMANDS, WALSTORE, Program, start
from tests.waiting import wait_until
from walstore import Wal

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

KILLS = some(200)
"""In turn a client and the server."""
CLIENTS = 8
CLIENT = """
import asyncio, os, sys
from walstore import OutcomeUnknownError, StorageUnavailableError, connect

async def main():
    address, name, acks = sys.argv[1:]
    file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with connect(address, connect_seconds=60, reconnect_seconds=60) as wal:
        once = wal.producer(name)

        async def append(kind, way):
            number = 0
            while True:
                number += 1
                value = f"{name} {kind} {number}"
                try:
                    offset = await way(value.encode())
                except (OutcomeUnknownError, StorageUnavailableError):
                    assert kind == "plain", "a producer's append is sent again"
                    continue
                os.write(file, f"{offset} {value}\\n".encode())

        async with asyncio.TaskGroup() as group:
            group.create_task(append("plain", wal.append))
            group.create_task(append("once", once.append))

asyncio.run(main())
"""


def start_server(directory: Path, socket: Path) -> Program:
    server = start(
        WALSTORE, "serve", directory, "--unix", socket, imports=COMMANDS, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdout.readline().startswith(b"serving")
    return server


class Clients:
    """Client processes, each replaced by one with another name when it is killed."""

    def __init__(self, address: str, acks: Path) -> None:
        self.address, self.acks = address, acks
        self.running: list[Program] = []
        self.count = 0

    def start(self) -> None:
        self.count += 1
        self.running.append(start(CLIENT, self.address, f"client{self.count}", self.acks))

    def kill(self, chance: random.Random) -> None:
        victim = self.running.pop(chance.randrange(len(self.running)))
        victim.kill()
        victim.wait()
        self.start()

    def check_alive(self) -> None:
        assert [client.poll() for client in self.running] == [None] * CLIENTS


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    chance = random.Random(first_seed("serving"))
    socket, acks = tmp_path / "s.sock", tmp_path / "acks"
    acks.touch()
    clients = Clients(f"unix://{socket}", acks)
    server = start_server(tmp_path / "log", socket)
    try:
        for _ in range(CLIENTS):
            clients.start()
        for kill in range(KILLS):
            wait_for_more(acks, chance.randrange(1, 400))
            clients.check_alive()
            if kill % 2:
                clients.kill(chance)
            else:
                server.send_signal(signal.SIGKILL)
                server.communicate()
                server = start_server(tmp_path / "log", socket)
        wait_for_more(acks, 200)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        for process in (server, *clients.running):
            process.kill()
            process.communicate()
    found = asyncio.run(read(tmp_path / "log"))
    check(found, acks.read_text())


def wait_for_more(acks: Path, count: int) -> None:
    """Return when ``count`` more appends were acknowledged."""
    size = acks.stat().st_size + count * 20
    wait_until(lambda: acks.stat().st_size >= size, seconds=120)


async def read(directory: Path) -> list[tuple[int, str]]:
    async with Wal.open(directory) as wal, wal.reader(follow=False) as reader:
        return [(record.offset, record.value.decode()) async for record in reader]


def check(found: list[tuple[int, str]], acks: str) -> None:
    """Each value at most once, in order of its client; each acknowledged one where it was acknowledged."""
    counts = Counter(value for _, value in found)
    assert [value for value, times in counts.items() if times > 1] == []
    last: defaultdict[str, int] = defaultdict(int)
    for _, value in found:
        name, kind, number = value.split()
        assert int(number) > last[name + kind]
        if kind == "once":  # no gap: each was sent until it was there
            assert int(number) == last[name + kind] + 1
        last[name + kind] = int(number)
    offsets = {value: offset for offset, value in found}
    lines = [line.split(" ", 1) for line in acks.splitlines()]
    assert len(lines) > 10 * KILLS
    assert [line for line in lines if offsets.get(line[1]) != int(line[0])] == []
