"""Event loops side by side in one process, each in a thread with a log of its own: do they share the machine?

    python -m bench.two_loops                       # five rounds of three seconds each
    python3.14t -m bench.two_loops --directory DIR

With the interpreter's lock one loop at a time runs Python, so two loops have the rate of one unless the disk
is what they wait for. Without it (3.13t, 3.14t) two loops may have twice the rate, as far as processors and
disk go. Needs nothing but the core of walstore.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from walstore import Durability, Wal

WAYS = ("256 producers, disk", "256 producers, memory", "append_many of 256, disk")
VALUE = bytes(1024)
PRODUCERS = 256


async def drive(path: Path, way: str, seconds: float, ready: threading.Barrier) -> float:
    """Append for a while; return records per second."""
    durability = Durability(way.rpartition(" ")[2])
    async with Wal.open(path) as wal:
        await asyncio.to_thread(ready.wait)
        began, count = time.perf_counter(), 0

        async def alone() -> int:
            done = 0
            while time.perf_counter() < began + seconds:
                await wal.append(VALUE, durability=durability)
                done += 1
            return done

        if way.startswith("append_many"):
            while time.perf_counter() < began + seconds:
                await wal.append_many([VALUE] * PRODUCERS, durability=durability)
                count += PRODUCERS
        else:
            count = sum(await asyncio.gather(*(alone() for _ in range(PRODUCERS))))
        return count / (time.perf_counter() - began)


def rate(directory: Path, way: str, loops: int, seconds: float) -> float:
    """Return the rate of all loops together."""
    ready = threading.Barrier(loops)
    with (
        tempfile.TemporaryDirectory(dir=directory) as name,
        ThreadPoolExecutor(max_workers=loops) as threads,
    ):
        paths = [Path(name) / str(number) for number in range(loops)]
        runs = [threads.submit(asyncio.run, drive(path, way, seconds, ready)) for path in paths]
        return sum(run.result() for run in runs)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.two_loops")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"{sys.version.split()[0]}, {'with' if has_lock else 'without'} the interpreter's lock")
    for way in WAYS:
        pairs = [
            (rate(args.directory, way, 1, args.seconds), rate(args.directory, way, 2, args.seconds))
            for _ in range(args.rounds)
        ]
        one, two = (median(values) for values in zip(*pairs, strict=True))
        scaling = sorted(b / a for a, b in pairs)
        print(
            f"{way}: one loop {one:,.0f}/s, two {two:,.0f}/s; ratio {median(scaling):.2f} "
            f"({scaling[0]:.2f} to {scaling[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
