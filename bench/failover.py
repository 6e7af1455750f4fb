"""How long a client cannot append while the primary of a replicated log is replaced.

Run from the root of the repository; it takes half a minute::

    python -m bench.failover [--rounds 5] [--directory DIR]

Each of three machines is a process. The primary is killed, or ends in order; the node of another machine
ends, a program that waits there opens the log, and a client with the addresses of all three goes on. The gap
is that between two acknowledgements of its producer. Nobody has to notice first: that is the part of a lease
or of a supervisor, and comes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from walstore import RemoteWal, connect

_FIRST = 200
"""Appends before the primary ends."""

STANDBY = """
import asyncio, sys
from walstore import Replication, Wal
from walstore.serve import Server

async def main():
    path, socket, *nodes = sys.argv[1:]
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await lines.readline()
    async with Wal.open(path, replication=Replication(nodes=nodes)) as wal:
        async with Server.open(wal, unix=socket):
            print("primary", flush=True)
            await lines.readline()

asyncio.run(main())
"""


async def begin(*command: str) -> Process:
    """Start a process whose pipes are used."""
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


async def line_of(process: Process) -> None:
    """Wait until a process says something."""
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise RuntimeError("a process of the benchmark ended")


def tell(process: Process) -> None:
    """Let a standby begin, or end."""
    assert process.stdin is not None
    process.stdin.write(b"\n")


async def append_until(
    remote: RemoteWal, acknowledged: list[float], begun: asyncio.Event, enough: asyncio.Event
) -> None:
    """Append, and note when each record was acknowledged, until there were enough."""
    producer = remote.producer("p")
    while not enough.is_set():
        await producer.append(b"v" * 100)
        acknowledged.append(time.monotonic())
        if len(acknowledged) == _FIRST:
            begun.set()


async def one_gap(directory: Path, *, is_killed: bool) -> float:
    """Return the longest time between two acknowledgements, in seconds."""
    sockets = {name: f"{directory}/{name}.sock" for name in "abc"}
    running: list[Process] = []

    async def standby(name: str) -> Process:
        others = [f"unix://{sockets[other]}" for other in "abc" if other != name]
        path = f"{directory}/{name}/orders"
        found = await begin(sys.executable, "-c", STANDBY, path, sockets[name], *others)
        running.append(found)
        return found

    try:
        for name in "abc":
            (directory / name).mkdir()
        nodes = {}
        for name in "bc":
            command = ("serve", f"{directory}/{name}", "--replicate", "--unix", sockets[name])
            nodes[name] = await begin(sys.executable, "-m", "walstore", *command)
            running.append(nodes[name])
            await line_of(nodes[name])
        first, second = await standby("a"), await standby("b")
        tell(first)
        await line_of(first)
        acknowledged: list[float] = []
        async with connect([f"unix://{socket}" for socket in sockets.values()]) as remote:
            begun, enough = asyncio.Event(), asyncio.Event()
            appending = asyncio.ensure_future(append_until(remote, acknowledged, begun, enough))
            await begun.wait()
            if is_killed:
                first.send_signal(signal.SIGKILL)
            else:
                tell(first)
                await first.wait()
            nodes["b"].send_signal(signal.SIGTERM)
            await nodes["b"].wait()
            tell(second)
            await line_of(second)
            enough.set()
            await appending  # with the append that has waited for the second
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return max(after - before for before, after in pairwise(acknowledged))


async def main(rounds: int, parent: Path | None) -> None:
    """Measure and print both, interleaved."""
    gaps: dict[str, list[float]] = {"killed": [], "closed in order": []}
    for _ in range(rounds):
        for how, found in gaps.items():
            with tempfile.TemporaryDirectory(dir=parent) as name:
                found.append(await one_gap(Path(name), is_killed=how == "killed"))
    for how, found in gaps.items():
        low, high = min(found) * 1e3, max(found) * 1e3
        print(
            f"{how:<16} median {statistics.median(found) * 1e3:,.0f} ms   {low:,.0f} to {high:,.0f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.directory))
