"""What an append costs, counted: it is the same on every machine."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from walstore import Wal
from walstore.core.settings import KIB

MOST_LONE_CALLS = 99
"""Python calls of a lone append in both threads, with those of asyncio: 97 here, 89 outside of pytest."""
MOST_SHARED_CALLS = 9
"""The same of one among 256 at a time: 8.5, of which the producer's own is one."""
PRODUCERS, ROUNDS = 256, 20


async def test_a_lone_append_takes_few_calls(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        for _ in range(3):
            await wal.append(b"x" * KIB)
        counted = await calls(wal, lambda: wal.append(b"x" * KIB), times=100)
    assert counted <= MOST_LONE_CALLS


async def test_an_append_among_many_takes_fewer_calls_than_its_waking_by_asyncio(
    log_directory: Path,
) -> None:
    async def produce() -> None:
        for _ in range(ROUNDS):
            await wal.append(b"x" * KIB)

    async def together() -> None:
        await asyncio.gather(*(produce() for _ in range(PRODUCERS)))

    async with Wal.open(log_directory) as wal:
        await together()
        counted = await calls(wal, together, times=1)
    assert counted / (PRODUCERS * ROUNDS) <= MOST_SHARED_CALLS


async def calls(wal: Wal, action: Callable[[], Awaitable[Any]], *, times: int) -> float:
    """Return how many Python functions an action calls, in the mean, in this thread and the writer's."""
    found = Counter[int]()

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            found[threading.get_ident()] += 1

    worker = wal._engine.worker
    await worker.run(sys.setprofile, count)
    sys.setprofile(count)
    try:
        for _ in range(times):
            await action()
    finally:
        sys.setprofile(None)
        await worker.run(sys.setprofile, None)
    assert len(found) == 2
    return found.total() / times
