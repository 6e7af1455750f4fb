"""Fixtures for tests of programs that use walstore. pytest finds them by itself where walstore is installed.

walstore is imported by the first test that asks for one. docs/testing.md explains them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

try:
    from pytest_asyncio import fixture as async_fixture
except ModuleNotFoundError:  # another plugin runs coroutines, such as anyio's
    async_fixture = pytest.fixture  # type: ignore[assignment]

if TYPE_CHECKING:
    from walstore import Settings, Wal
    from walstore.core.ports import FileSystem
    from walstore.testing import ManualClock


@pytest.fixture
def wal_file_system() -> FileSystem | None:
    """Where :func:`wal` is: in memory. A project that overrides this and returns None has it on the disk."""
    from walstore.testing import MemoryFileSystem

    return MemoryFileSystem()


@pytest.fixture
def wal_settings() -> Settings | None:
    """The settings of :func:`wal`, by default those of every log; for a project to override."""
    return None


@pytest.fixture
def wal_clock() -> ManualClock:
    """A clock that stands still until the test advances it: that of :func:`wal`, in tests that ask for it."""
    from walstore.testing import ManualClock

    return ManualClock()


@async_fixture
async def wal(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    wal_file_system: FileSystem | None,
    wal_settings: Settings | None,
) -> AsyncIterator[Wal]:
    """An empty log, open for writing; closed after the test."""
    from walstore import Wal

    options: dict[str, Any] = {"fs": wal_file_system, "settings": wal_settings}
    if "wal_clock" in request.fixturenames:
        options["clock"] = request.getfixturevalue("wal_clock")
    async with Wal.open(tmp_path / "log", **options) as log:
        yield log


@async_fixture
async def wal_server(wal: Wal) -> AsyncIterator[str]:
    """The address at which :func:`wal` is served, for :func:`walstore.connect`."""
    from walstore.serve import Server

    async with Server.open(wal, tcp="127.0.0.1:0") as server:
        yield str(server.addresses[0])


@pytest.fixture
def wal_bucket() -> str:
    """The URL of an empty store in memory, of this test alone. Opening it needs the extra ``cloud``."""
    return f"memory://test-{secrets.token_hex(8)}"
