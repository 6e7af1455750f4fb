"""An uplink that all puts share and that is too slow for many of them: what is sent arrives all the same."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cloud import URL, cloud_values
from tests.local import turns
from uploader import CloudTier, UploadSettings
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.wrapper import Request, StoreWrapper
from uploader.testing.faults import timeout
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import Settings, Wal
from walstore.testing import ManualClock

_T = TypeVar("_T")

FRAGMENT_BYTES = 64 << 10
BYTES_PER_SECOND = 3e6 * FRAGMENT_BYTES / (8 << 20)
"""As 3 MB/s to fragments of 8 MiB."""
STEP_SECONDS = 0.25
RANDOM = random.Random(7)  # what does not compress
CONTENT = [RANDOM.randbytes(1000) for _ in range(32 * 64)]


class Uplink(StoreWrapper):
    """Divides its bandwidth among the requests under way, each of which is given up after a minute."""

    def __init__(self, inner: ObjectStore, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._sending = 0
        self.sent_bytes = 0.0

    async def _call(self, request: Request[_T]) -> _T:
        left, began = float(request.sent_bytes), self._clock.monotonic()
        self._sending += 1
        try:
            while left > 0:
                await self._clock.sleep(STEP_SECONDS)
                step = BYTES_PER_SECOND * STEP_SECONDS / self._sending
                left -= step
                self.sent_bytes += step
                if self._clock.monotonic() - began > 60:
                    raise timeout()
        finally:
            self._sending -= 1
        return await request()


async def pass_time(clock: ManualClock, task: asyncio.Future[object]) -> None:
    """Let time pass until the task has ended, and no more than an hour."""
    while not task.done() and clock.monotonic() < 3600:
        await turns(50)
        clock.advance(STEP_SECONDS)
    assert task.done(), "nothing arrives"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["swap", "chain"])
@pytest.mark.parametrize("parallel_puts", [False, True])
async def test_a_writer_with_many_fragments(
    clock: ManualClock, layout, parallel_puts: bool
) -> None:
    """All appends are acknowledged, though all of their fragments together take longer than patience."""
    inner = MemoryStore()
    uplink = Uplink(inner, clock)
    settings = WriterSettings(fragment_bytes=FRAGMENT_BYTES, parallel_puts=parallel_puts)
    retry = RetryPolicy(clock=clock)

    async def write() -> None:
        async with CloudWriter.open(
            URL, store=uplink, settings=settings, retry=retry, layout=layout, clock=clock
        ) as log:
            told = await asyncio.gather(*map(log.append, CONTENT))
            assert told == list(range(1, len(CONTENT) + 1))

    task = asyncio.create_task(write())
    await pass_time(clock, task)
    await task
    assert await cloud_values(inner) == CONTENT
    assert uplink.sent_bytes < 2 * sum(map(len, CONTENT))


@pytest.mark.slow
async def test_a_local_log_with_many_fragments(log_directory: Path, clock: ManualClock) -> None:
    """Requests that are given up are sent again, and fewer at once."""
    inner = MemoryStore()
    uplink = Uplink(inner, clock)
    async with Wal.open(log_directory, settings=Settings(batch_bytes=16 << 10)) as wal:
        for at in range(0, len(CONTENT), 16):
            await wal.append_many(CONTENT[at : at + 16])
    settings = UploadSettings(
        fragment_bytes=FRAGMENT_BYTES, max_in_flight=64, fragment_age_seconds=0
    )
    tier = CloudTier(
        URL,
        store=uplink,
        settings=settings,
        layout="chain",
        retry=RetryPolicy(clock=clock),
        clock=clock,
    )

    async def ship() -> None:
        async with Wal.open(log_directory, tier=tier, clock=clock) as wal:
            await wal.wait_durable(len(CONTENT), "cloud")

    task = asyncio.create_task(ship())
    await pass_time(clock, task)
    await task
    assert await cloud_values(inner) == CONTENT
