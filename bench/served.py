"""A served log beside one that is opened: appends of many clients, lone appends, acknowledgements of a group.

Run from the root of the repository; it takes half a minute::

    python -m bench.served [--seconds 3] [--rounds 3] [--directory DIR]

Rounds are interleaved: opened, served, opened, served. Of each ratio the median is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from walstore import Wal, connect

PRODUCERS = 256
CLIENTS = 4
VALUE = b"x" * 1024
LONE = 500
JOBS = 100_000
JOBS_AT_ONCE = 5_000


async def appends_a_second(
    append: Callable[[bytes], Awaitable[object]], producers: int, seconds: float
) -> float:
    """Let so many tasks append one record after the other, each awaiting its sync.

    Each ends with an append that takes it past the end: its time counts as the record does.
    """
    count, begun = 0, time.monotonic()

    async def produce() -> None:
        nonlocal count
        while time.monotonic() - begun < seconds:
            await append(VALUE)
            count += 1

    await asyncio.gather(*(produce() for _ in range(producers)))
    return count / (time.monotonic() - begun)


async def lone_microseconds(append: Callable[[bytes], Awaitable[int]]) -> float:
    """Return the median of appends one after the other."""
    times = []
    for _ in range(LONE):
        begun = time.perf_counter()
        await append(VALUE)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


async def client(address: str, seconds: float) -> None:
    """Wait for a line on stdin, append, and print the rate: what each client process runs."""
    async with connect(address) as wal:
        await wal.append(VALUE)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(await appends_a_second(wal.append, PRODUCERS // CLIENTS, seconds), flush=True)


async def acknowledgements_a_second(log: Any) -> float:
    """Acknowledge jobs of a group in batches; each call returns when they are durable."""
    start = (await log.append_many([b"x"] * JOBS)).start
    async with log.group("g", max_ack_pending=2 * JOBS_AT_ONCE, start=start) as group:
        done, begun = 0, time.perf_counter()
        while done < JOBS:
            jobs = await group.fetch(JOBS_AT_ONCE)
            await group.ack(jobs)
            done += len(jobs)
        return JOBS / (time.perf_counter() - begun)


async def measure(directory: Path, seconds: float) -> dict[str, tuple[float, float]]:
    """Return the figures of one round: opened, served."""
    async with Wal.open(directory / "opened") as wal:
        rate = await appends_a_second(wal.append, PRODUCERS, seconds)
        lone = await lone_microseconds(wal.append)
    async with Wal.open(directory / "opened jobs") as wal:
        acks = await acknowledgements_a_second(wal)
    socket = directory / "s.sock"
    command = [
        sys.executable,
        "-m",
        "walstore",
        "serve",
        str(directory / "served"),
        "--unix",
        str(socket),
    ]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    try:
        address = f"unix://{socket}"
        async with connect(address) as remote:
            served_lone = await lone_microseconds(remote.append)
        served_rate = await clients_rate(address, seconds)
        async with connect(address) as remote:
            served_acks = await acknowledgements_a_second(remote)
    finally:
        server.terminate()
        await server.wait()
    return {
        f"{PRODUCERS} producers, appends/s": (rate, served_rate),
        "lone append, p50 us": (lone, served_lone),
        "acknowledgements/s": (acks, served_acks),
    }


async def clients_rate(address: str, seconds: float) -> float:
    """Start the client processes, let them begin together, and add up their rates."""
    command = [sys.executable, "-m", "bench.served", "--client", address, "--seconds", str(seconds)]
    clients = [
        await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(CLIENTS)
    ]
    for one in clients:
        assert one.stdout is not None
        await one.stdout.readline()
    for one in clients:
        assert one.stdin is not None
        one.stdin.write(b"\n")
    outputs = await asyncio.gather(*(one.communicate() for one in clients))
    return sum(float(out) for out, _ in outputs)


async def main(rounds: int, seconds: float, parent: Path | None) -> None:
    """Measure and print a table."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            found.append(await measure(Path(name), seconds))
    for what in found[0]:
        opened, served = zip(*(one[what] for one in found), strict=True)
        ratio = statistics.median(s / o for o, s in zip(opened, served, strict=True))
        print(
            f"{what:<28} opened {statistics.median(opened):>10,.0f}   "
            f"served {statistics.median(served):>10,.0f}   ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--client")
    given = parser.parse_args()
    if given.client:
        asyncio.run(client(given.client, given.seconds))
    else:
        asyncio.run(main(given.rounds, given.seconds, given.directory))
