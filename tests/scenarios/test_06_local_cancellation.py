"""L14: cancelling callers at any moment burns no offset and harms nobody else."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.effort import first_seed
from tests.local import SMALL, check_contiguous, read_all, turns
from walstore import Wal

SETTINGS = SMALL.replace(max_record_bytes=2000, channel_bytes=4000, channel_records=20)


class Storm:
    """Callers of every kind, each of which may be cancelled at any turn of the event loop."""

    def __init__(self, wal: Wal, seed: int) -> None:
        self.wal = wal
        self.chance = random.Random(seed)
        self.finished: dict[bytes, range] = {}
        self.cancelled: set[bytes] = set()
        self.delivered: list[int] = []

    async def run(self) -> None:
        reader = self.wal.follow()
        tasks: list[asyncio.Task[None]] = []
        for n in range(300):
            name = b"%04d" % n
            call = self.chance.choice(
                [self.append, self.append, self.append, self.append_many, self.others]
            )
            tasks.append(asyncio.create_task(call(name)))
            if n % 3 == 0:
                await self.read(reader)
            await turns(self.chance.randrange(4))
            for task in self.chance.sample(tasks, min(len(tasks), 2)):
                if self.chance.random() < 0.4:
                    task.cancel()
        await asyncio.wait(tasks)
        await self.wal.flush()
        while not reader.is_caught_up:
            self.delivered.append((await anext(reader)).offset)

    async def append(self, name: bytes) -> None:
        try:
            offset = await self.wal.append(name * self.chance.randrange(1, 400))
            self.finished[name] = range(offset, offset + 1)
        except asyncio.CancelledError:
            self.cancelled.add(name)

    async def append_many(self, name: bytes) -> None:
        try:
            self.finished[name] = await self.wal.append_many([name * 20] * 5)
        except asyncio.CancelledError:
            self.cancelled.add(name)

    async def others(self, name: bytes) -> None:
        try:
            if self.chance.random() < 0.2:
                await self.wal.rotate()
            elif self.wal.tail > 1:
                await self.wal.wait_durable(self.wal.tail - 1)
            await self.wal.flush()
        except asyncio.CancelledError:
            self.cancelled.add(name)

    async def read(self, reader) -> None:
        """Read with a reader whose every call is cancelled after some turns."""
        fetching = asyncio.create_task(reader.fetch(max_records=self.chance.randrange(1, 40)))
        await turns(self.chance.randrange(30))
        fetching.cancel()
        await asyncio.wait([fetching])
        if not fetching.cancelled():
            self.delivered += [record.offset for record in fetching.result()]


@pytest.mark.parametrize("seed", range(8))
async def test_L14_cancellation_at_every_await(log_directory: Path, seed: int) -> None:
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        storm = Storm(wal, seed + first_seed("cancellation"))
        await storm.run()
        records = await read_all(wal)
        check_contiguous(records)
        assert wal.tail == wal.durable_limit == len(records) + 1, "no offset was burnt"
        assert storm.delivered == list(range(1, wal.tail)), "every record was delivered once"
    assert len(storm.finished) > 50
    assert len(storm.cancelled) > 20
    written: dict[bytes, list[int]] = {}
    for record in records:
        written.setdefault(record.value[:4], []).append(record.offset)
    for name, span in storm.finished.items():
        assert written.pop(name) == list(span)
    assert set(written) <= storm.cancelled
    for offsets in written.values():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        assert len(offsets) in (1, 5), "a group is there as a whole"
