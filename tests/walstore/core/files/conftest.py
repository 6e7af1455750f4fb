"""Tests of what calls the file system have a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On the disk, also where quick tests have their files in memory: here the system is called."""
    with TemporaryDirectory(prefix="walstore-test-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
