"""Fixtures of the benchmarks: one event loop for each, and logs in directories of their own."""

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
    """Run coroutines on one event loop for the whole benchmark."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Directory of the benchmark's log."""
    return tmp_path / "log"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two cores."""
    session = local_session(threads=2)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log for Spark, and the store it was shipped to."""
    return make_log(tmp_path_factory.mktemp("spark"))
