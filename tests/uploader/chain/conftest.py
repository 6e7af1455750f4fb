"""A store with faults, a clock, and chains opened there."""

from __future__ import annotations

import pytest

from tests.uploader.chain.chains import InlineWorker
from uploader.chain import ChainRoot, ChainSettings
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore
from walstore.testing.clock import ManualClock


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def opened(store: FaultyStore, clock: ManualClock):
    """Make chain logs over the store; they retry without waiting."""
    logs: list[ChainRoot] = []

    def make(
        inner=None,
        *,
        alpha: int = 4,
        shards: int = 1,
        inline_bytes: int = 0,
        at: ManualClock = clock,
    ) -> ChainRoot:
        retry = RetryPolicy(
            clock=at, jitter=lambda: 0.0, first_wait_seconds=0, longest_wait_seconds=0
        )
        settings = ChainSettings(alpha=alpha, shards=shards, inline_bytes=inline_bytes)
        logs.append(ChainRoot(inner or store, retry, InlineWorker(), settings=settings))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()
