"""A log that is open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walstore.wals import TINY
from walstore import (
    Wal,
)
from walstore.testing import FaultyFileSystem, ManualClock


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem, clock: ManualClock):
    """An open log with little room in its channel."""
    async with Wal.open(log_directory, settings=TINY, fs=faulty, clock=clock) as opened:
        yield opened
        faulty.heal()
