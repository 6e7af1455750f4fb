"""A replicated log beside one on this disk alone: appends of many tasks, lone appends, processor time.

Run from the root of the repository; it takes half a minute::

    python -m bench.replicated [--seconds 3] [--rounds 3] [--directory DIR]

Three copies, quorum two; the nodes are processes of their own on the same disk. Rounds are interleaved: disk,
replicated, disk, replicated. Of each ratio the median is what counts.

The last lines say what the disk allows: a process that writes 1 KiB, or 256 KiB as a commit of 256 producers
has, and syncs; the same with two others that write and sync what it sends them over a socket, until one of
them has answered.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.served import LONE, PRODUCERS, VALUE, appends_a_second, lone_microseconds
from walstore import Replication, Wal

RAW_WRITES: Final = {"1 KiB": len(VALUE), "256 KiB": len(VALUE) * PRODUCERS}
RAW_BYTES: Final = 64 << 20
"""Reserved for the file of each process, as logs reserve theirs."""


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


# -- what the disk allows --------------------------------------------------------------------


def _raw_writer(path: Path) -> Callable[[bytes], None]:
    """Return a function that appends to a file and syncs."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(file, 0, RAW_BYTES)
    os.fsync(file)
    position = 0

    def write(data: bytes) -> None:
        nonlocal position
        position += os.pwrite(file, data, position)
        os.fdatasync(file)

    return write


def _raw_copy(path: Path, link: socket.socket, size: int) -> None:
    """Write and sync what arrives, and answer: what the process of a raw copy runs."""
    write = _raw_writer(path)
    link.send(b"k")
    while data := link.recv(size, socket.MSG_WAITALL):
        write(data)
        link.send(b"k")


def raw_microseconds(directory: Path, size: int, copies: int) -> float:
    """Return the median of writes of ``size`` bytes until this process and one of ``copies`` others, if there
    are some, have them on disk."""
    data, times = b"x" * size, []
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        links: list[socket.socket] = []
        for number in range(copies):
            here, there = socket.socketpair()
            stack.callback(here.close)
            with there:
                process = context.Process(
                    target=_raw_copy, args=(directory / f"copy{number}", there, size)
                )
                process.start()
            stack.callback(process.join)
            here.recv(1)
            links.append(here)
        write = _raw_writer(directory / "own")
        missing: dict[socket.socket, int] = dict.fromkeys(links, 0)
        for _ in range(min(LONE, RAW_BYTES // size)):
            begun = time.perf_counter()
            for link in links:
                link.sendall(data)
                missing[link] += 1
            write(data)
            while links and 0 not in missing.values():
                for link in select.select(links, (), ())[0]:
                    missing[link] -= len(link.recv(64))
            times.append(time.perf_counter() - begun)
        for link in links:
            link.shutdown(socket.SHUT_WR)
            while link.recv(64):
                pass
    return statistics.median(times) * 1e6


def raw_round(parent: Path) -> dict[str, tuple[float, float]]:
    """Return microseconds of a write and sync: alone, and with two copies."""
    found = {}
    for name, size in RAW_WRITES.items():
        taken = []
        for copies in (0, 2):
            with tempfile.TemporaryDirectory(dir=parent) as directory:
                taken.append(raw_microseconds(Path(directory), size, copies))
        found[f"raw write of {name}, us"] = (taken[0], taken[1])
    return found


async def main(rounds: int, seconds: float, parent: Path | None) -> None:
    """Measure and print a table."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            logs = await one_round(Path(name), seconds)
            found.append(logs | await asyncio.to_thread(raw_round, Path(name)))
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
