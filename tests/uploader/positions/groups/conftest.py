"""A log in a store, opened as several processes would, for the tests of its groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cloud import FAST
from tests.waiting import until
from uploader import CloudLog
from uploader.format import layout
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from walstore.testing import ManualClock

KEY = layout.group_path("g")


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def opened(store: Any, **options: Any) -> AsyncIterator[CloudLog]:
    """Open the log as one more process would; its store stays open."""
    options.setdefault("retry", FAST)
    async with CloudLog.open("memory://g", store=FaultyStore(store), **options) as log:
        yield log


async def advance(clock: ManualClock, seconds: float, waiting: asyncio.Future[Any]) -> None:
    """Let time pass in little steps while a member waits."""
    for _ in range(round(seconds * 10)):
        await until(lambda: waiting.done() or clock.sleepers > 0)
        clock.advance(0.1)
        await until(lambda: waiting.done() or clock.sleepers > 0)
