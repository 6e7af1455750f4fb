"""A replicated log beside one on this disk alone: appends of many tasks, lone appends, processor time.

Run from the root of the repository; it takes half a minute::

    python -m bench.replicated [--seconds 3] [--rounds 3] [--directory DIR]

Three copies, quorum two; the nodes are processes of their own on the same disk. Rounds are interleaved: disk,
replicated, disk, replicated. Of each ratio the median is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.served import PRODUCERS, appends_a_second, lone_microseconds
from walstore import Replication, Wal


async def measure(wal: Wal, seconds: float) -> tuple[float, float, float]:
    """Return appends a second, microseconds of a lone one, and processor microseconds of an append."""
    began = time.process_time()
    rate = await appends_a_second(wal.append, PRODUCERS, seconds)
    used = (time.process_time() - began) / (rate * seconds) * 1e6
    return rate, await lone_microseconds(wal.append), used


async def one_round(directory: Path, seconds: float) -> dict[str, tuple[float, float]]:
    """Return the figures of one round: disk, replicated."""
    async with Wal.open(directory / "disk") as wal:
        disk = await measure(wal, seconds)
    nodes: list[Any] = []
    addresses = [f"unix://{directory}/{name}.sock" for name in "bc"]
    try:
        for name, address in zip("bc", addresses, strict=True):
            command = [sys.executable, "-m", "walstore", "serve", str(directory / name)]
            command += ["--replicate", "--unix", address.removeprefix("unix://")]
            node = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            nodes.append(node)
            await node.stdout.readline()  # type: ignore[union-attr]
        replication = Replication(nodes=addresses, quorum=2)
        async with Wal.open(directory / "replicated", replication=replication) as wal:
            replicated = await measure(wal, seconds)
    finally:
        for node in nodes:
            node.terminate()
            await node.wait()
    names = (f"{PRODUCERS} producers, appends/s", "lone append, p50 us", "processor, us an append")
    return {name: (disk[at], replicated[at]) for at, name in enumerate(names)}


async def main(rounds: int, seconds: float, parent: Path | None) -> None:
    """Measure and print a table."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            found.append(await one_round(Path(name), seconds))
    for what in found[0]:
        disk, replicated = zip(*(one[what] for one in found), strict=True)
        ratio = statistics.median(r / d for d, r in zip(disk, replicated, strict=True))
        print(
            f"{what:<28} disk {statistics.median(disk):>10,.1f}   "
            f"replicated {statistics.median(replicated):>10,.1f}   ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.seconds, given.directory))
