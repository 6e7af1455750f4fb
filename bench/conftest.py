"""Shared pieces of the benchmarks: one event loop per benchmark, and logs in a directory of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Run coroutines on one loop that lives as long as the benchmark."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Where the log of this benchmark lies."""
    return tmp_path / "log"
