"""A log that is opened here, or served and reached over a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.local import SMALL
from tests.walstore.serve.served import Proxy, Served, connected, serving
from walstore import RemoteWal, Wal, connect


@pytest.fixture
def skipping() -> SkippingClock:
    """The clock of the log."""
    return SkippingClock()


@pytest.fixture(params=["opened", "served"])
async def log(
    request: pytest.FixtureRequest, tmp_path: Path, skipping: SkippingClock
) -> AsyncIterator[Any]:
    """The same log both ways: what a test says holds for both."""
    if request.param == "opened":
        async with Wal.open(tmp_path / "log", settings=SMALL, clock=skipping) as wal:
            yield wal
    else:
        async with connected(tmp_path / "log", settings=SMALL, clock=skipping) as (_, remote):
            yield remote


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "log", settings=SMALL) as found:
        yield found


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[Proxy]:
    """What the client's connections go through: it passes everything on, until it is told otherwise."""
    async with Proxy(served.address) as found:
        yield found


@pytest.fixture
async def remote(proxy: Proxy) -> AsyncIterator[RemoteWal]:
    async with connect(proxy.address) as found:
        yield found
