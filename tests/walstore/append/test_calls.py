"""What an append costs, counted: it is the same on every machine."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from walstore import Wal
from walstore.settings import KIB

MOST_LONE_CALLS = 140
"""Python calls of a lone append in both threads, with those of asyncio: 137 here, 127 outside of pytest."""


async def test_a_lone_append_takes_few_calls(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        for _ in range(3):
            await wal.append(b"x" * KIB)
        counted = await calls(wal, lambda: wal.append(b"x" * KIB), times=100)
    assert counted <= MOST_LONE_CALLS


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
