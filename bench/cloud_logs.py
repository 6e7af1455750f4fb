"""The cost of many logs in object storage in one process: threads, and memory for each.

Run from the root of the repository; some seconds each::

    python -m bench.cloud_logs
    python -m bench.cloud_logs --logs 100 --directory /mnt/disk

Each line is measured in a process of its own. All logs are open and ship one record at the same time, and
then another, after which the process is measured. The store is a directory. Memory is the process's resident
set, including what the logs leave in its allocator.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from uploader import CloudTier, CloudWriter, UploadSettings
from walstore import Wal, WalStore

Append = Callable[[bytes], Awaitable[int]]


def rss_bytes() -> int:
    """Return the resident set of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_tier(directory: Path, name: str) -> CloudTier:
    """Return a tier in a directory that ships at once."""
    return CloudTier(
        f"file://{directory}/tier/{name}", settings=UploadSettings(fragment_age_seconds=0)
    )


def shipped(log: Wal) -> Append:
    """Return a function that appends to a local log and waits for its tier."""

    async def append(value: bytes) -> int:
        return await log.append(value, durability="cloud")

    return append


@asynccontextmanager
async def of_a_store(directory: Path, count: int) -> AsyncIterator[Sequence[Append]]:
    """Logs of a ``WalStore``, each with a tier."""
    async with WalStore.open(directory / "logs", tier=partial(make_tier, directory)) as store:
        yield [shipped(await store.wal(f"log-{number}")) for number in range(count)]


@asynccontextmanager
async def by_themselves(directory: Path, count: int) -> AsyncIterator[Sequence[Append]]:
    """Logs opened one by one, each with a tier."""
    async with AsyncExitStack() as stack:
        logs = []
        for number in range(count):
            name = f"log-{number}"
            opening = Wal.open(directory / "logs" / name, tier=make_tier(directory, name))
            logs.append(shipped(await stack.enter_async_context(opening)))
        yield logs


@asynccontextmanager
async def writers(directory: Path, count: int) -> AsyncIterator[Sequence[Append]]:
    """Cloud writers, one for each log."""
    async with AsyncExitStack() as stack:
        logs = []
        for number in range(count):
            opening = CloudWriter.open(f"file://{directory}/log-{number}")
            logs.append((await stack.enter_async_context(opening)).append)
        yield logs


KINDS = {"store": of_a_store, "wal": by_themselves, "writer": writers}


async def measure(kind: str, count: int, directory: Path) -> str:
    """Return the threads, and the KiB for each log, of a process that does nothing else."""
    async with KINDS[kind](directory / "first", 1) as (append,):
        await append(b"1")  # what is imported late is no log's
        gc.collect()
        before = rss_bytes()
    async with KINDS[kind](directory / "many", count) as logs:
        for value in (b"1", b"2"):
            await asyncio.gather(*(append(value) for append in logs))
        gc.collect()
        each = (rss_bytes() - before) / count / 1024
        return f"{threading.active_count()} | {each:.0f}"


def main() -> None:
    """Measure each line in a child."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=400)
    parser.add_argument("--writers", type=int, default=1000)
    parser.add_argument("--directory", help="where the logs lie")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind is not None:
        count = args.writers if args.kind == "writer" else args.logs
        print(asyncio.run(measure(args.kind, count, Path(args.directory))))
        return
    lines = {
        "store": f"{args.logs} logs of a `WalStore` with a tier",
        "wal": f"{args.logs} logs by themselves with a tier",
        "writer": f"{args.writers} `CloudWriter`",
    }
    print("| open at once | threads | KiB each |\n|---|---|---|")
    for kind, name in lines.items():
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            command = [sys.executable, "-m", "bench.cloud_logs", "--kind", kind]
            command += ["--directory", directory]
            command += ["--logs", str(args.logs), "--writers", str(args.writers)]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"| {name} | {found.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
