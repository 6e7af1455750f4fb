"""Queries end with their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.walstore.spark.streaming.querying import READERS


@pytest.fixture(autouse=True)
def _queries_end() -> Iterator[None]:
    yield
    while READERS:
        READERS.pop().stop()
