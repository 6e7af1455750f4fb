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

import hashlib
from functools import partial

import pytest

from uploader.layouts.log_session import Layout
from uploader.read.cloud_log import CloudLog
from uploader.stores.port import ListedObject, ObjectStore
from uploader.testing.faults import ShuffledStore
from uploader.testing.suite_conditions import ConditionTests
from uploader.testing.suite_load import LoadTests
from uploader.testing.suite_objects import ListingTests, ObjectTests
from uploader.write.cloud_writer import CloudWriter

__all__ = ["ObjectStoreLoadSuite", "ObjectStoreSuite"]


class LogTests:
    """What a log needs of an object store, from end to end."""

    @pytest.mark.parametrize("layout", ["swap", "chain"])
    async def test_a_log_rests_on_no_order(
        self, store: ObjectStore, peer: ObjectStore, layout: Layout
    ) -> None:
        """Writers take turns and a reader finds all records, whatever the order of listings."""
        expected = []
        for turn in range(4):
            lent = _Lent((store, peer)[turn % 2], partial(_mix, turn=turn))
            async with CloudWriter.open(store.url, store=lent, layout=layout) as log:
                for number in range(5):
                    expected.append(b"%d of turn %d" % (number, turn))
                    await log.append(expected[-1])
        async with CloudLog.open(store.url, store=_Lent(peer, partial(_mix, turn=4))) as log:
            await log.verify()
            assert [record.value async for record in log.reader()] == expected


def _mix(found: list[ListedObject], *, turn: int) -> None:
    found.sort(key=lambda listed: hashlib.sha256(f"{turn} {listed.key}".encode()).digest())


class _Lent(ShuffledStore):
    """Stays open when a log is closed."""

    async def aclose(self) -> None:
        """Do nothing."""


@pytest.mark.asyncio
class ObjectStoreSuite(ObjectTests, ConditionTests, ListingTests, LogTests):
    """Subclass it and provide the fixtures ``store`` and ``peer``. Some seconds at most."""


@pytest.mark.asyncio
class ObjectStoreLoadSuite(LoadTests):
    """The same for many and big objects."""
