"""Tests beside Chroma's own wal3. Only for ``make test-wal3``, which builds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.wal3.build import DRIVER
from tests.wal3.wal3 import running

if DRIVER not in os.environ:
    # What builds it is tested without it.
    collect_ignore_glob = ["test_[!b]*.py"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The log that both use."""
    return tmp_path / "bucket" / "log"


@pytest.fixture
def url(directory: Path) -> str:
    """The log by its address."""
    return directory.as_uri()


@pytest.fixture
async def wal3(directory: Path):
    """A process of wal3 at the log, which nobody has opened or made yet."""
    async with running(directory) as found:
        yield found


@pytest.fixture
async def second(directory: Path):
    """Another one."""
    async with running(directory) as found:
        yield found
