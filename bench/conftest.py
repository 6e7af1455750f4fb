"""Shared pieces of the benchmarks: one event loop per benchmark, and logs in a directory of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.spark_log import make_log
from walstore.spark import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session on two cores."""
    session = local_session(threads=2)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log for Spark, and the store it was shipped to."""
    return make_log(tmp_path_factory.mktemp("spark"))
