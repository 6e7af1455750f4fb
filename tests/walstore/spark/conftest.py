"""One Spark for all tests that need a real one; they are skipped where it cannot run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from walstore.spark import local_session, problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    missing = problem()
    if missing:
        pytest.skip(missing)
    environment = dict(os.environ)
    session = local_session(threads=2, config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(environment)
