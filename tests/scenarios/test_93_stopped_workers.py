"""Workers of a group are told to stop at any moment: in a handler, in an ack, between the two."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from walstore import Wal
from walstore.positions.groups.group import Group, Job

pytestmark = pytest.mark.slow

STOPS = some(1000)
MOST_TURNS = 4000
"""Turns of the event loop before a worker is stopped: enough for the disk to answer some of its acks."""


class Worker:
    """Handles jobs until it is cancelled; knows which it handled and which acknowledgements returned."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()
        self.acknowledged: set[int] = set()
        self.after_ack: list[int] = []

    async def run(self, group: Group) -> None:
        async for job in group:
            if job.offset in self.acknowledged:
                self.after_ack.append(job.offset)
            await asyncio.sleep(0)  # the work
            self.handled[job.offset] += 1
            await job.ack()
            self.acknowledged.add(job.offset)

    async def take(self, jobs: list[Job], group: Group) -> None:
        self.after_ack += [job.offset for job in jobs if job.offset in self.acknowledged]
        self.handled.update(job.offset for job in jobs)
        await group.ack(jobs)


async def _stop_after(turns: int, working: asyncio.Task[None]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_what_was_acknowledged_does_not_come_again(scratch: Path) -> None:
    chance = random.Random(first_seed("stopped workers"))
    worker = Worker()
    async with Wal.open(scratch / "log") as wal:
        for _ in range(STOPS):
            await wal.append(b"job")
            async with wal.group("workers") as group:
                working = asyncio.create_task(worker.run(group))
                await _stop_after(int(MOST_TURNS ** chance.random()), working)
        await wal.append(b"end")
        async with wal.group("workers") as group:
            while wal.tail - 1 not in worker.handled:
                await worker.take(await group.fetch(100), group)
    assert worker.after_ack == []
    assert len(worker.acknowledged) >= STOPS // 20, "not all were stopped before it"
    assert set(worker.handled) == set(range(1, STOPS + 2)), "each is handled"
    repeats = worker.handled.total() - STOPS
    assert repeats <= STOPS, "a stop costs at most the job in hand"
