"""Tests of what every object store must do, for authors of other stores.

    class TestMyStore(ObjectStoreSuite):
        @pytest.fixture
        async def store(self):
            async with contextlib.aclosing(MyStore(...)) as store:
                yield store                      # fresh and empty

        @pytest.fixture
        async def peer(self, store):
            async with contextlib.aclosing(MyStore(...)) as peer:
                yield peer                       # the same place, opened a second time

``ObjectStoreLoadSuite`` takes the same fixtures and more time. Needs pytest and pytest-asyncio with
``asyncio_mode = auto`` (or ``pytest_asyncio.fixture``). Faults of the network and what survives a power cut
are not covered: they cannot be provoked from outside. ``docs/stores.md`` contains a runnable example.
"""

from __future__ import annotations

import pytest

from uploader.testing.suite_conditions import ConditionTests
from uploader.testing.suite_listings import ListingTests
from uploader.testing.suite_load import LoadTests
from uploader.testing.suite_logs import LogTests
from uploader.testing.suite_objects import ObjectTests

__all__ = ["ObjectStoreLoadSuite", "ObjectStoreSuite"]


@pytest.mark.asyncio
class ObjectStoreSuite(ObjectTests, ConditionTests, ListingTests, LogTests):
    """Subclass it and provide the fixtures ``store`` and ``peer``. Some seconds at most."""


@pytest.mark.asyncio
class ObjectStoreLoadSuite(LoadTests):
    """The same for many and big objects."""
