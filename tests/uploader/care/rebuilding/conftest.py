"""A store and a thread for each test of rebuilding."""

from __future__ import annotations

import pytest

from uploader.stores import MemoryStore
from walstore.core.runtime.threads import Worker


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()
