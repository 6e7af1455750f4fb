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

import asyncio
import hashlib
from functools import partial

import pytest

from uploader.layouts.log_session import Layout
from uploader.read.cloud_log import CloudLog
from uploader.stores.port import ListedObject, ObjectStore, PreconditionFailedError
from uploader.testing.faults import ShuffledStore
from uploader.testing.suite_conditions import ConditionTests
from uploader.testing.suite_objects import ListingTests, ObjectTests, append_word, keys
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


_AT_ONCE = 16


class LoadTests:
    """Many objects, and big ones: takes seconds to minutes. Two numbers may be lowered for a slow store."""

    objects = 2_050
    """More than two pages of the usual thousand."""

    object_bytes = 64 << 20
    """As large as fragments become."""

    async def test_many_objects(self, store: ObjectStore) -> None:
        """Listings of several pages are complete and in order, from anywhere; one call deletes all."""
        names = [f"log/{number:06}" for number in range(self.objects)]
        await _put_all(store, names)
        assert await keys(store, "") == names
        for index in (0, 998, 999, 1000, 1001, 1999, 2000, self.objects - 1):
            if index >= self.objects:
                continue
            assert await keys(store, "log/", names[index]) == names[index + 1 :], index
        assert await keys(store, "log/0019") == [name for name in names if "log/0019" in name]
        assert await keys(store, "log/2") == []
        await store.delete(names[1:])
        assert await keys(store, "") == names[:1]

    async def test_a_listing_while_objects_come_and_go(self, store: ObjectStore) -> None:
        """An object that exists throughout is listed once and in order, whatever else happens."""
        staying = [f"a/{number:06}" for number in range(0, self.objects, 2)]
        passing = [f"a/{number:06}" for number in range(1, self.objects, 20)]
        await _put_all(store, staying)
        seen = []
        async with asyncio.TaskGroup() as group:
            group.create_task(_put_all(store, passing))
            async for listed in store.list("a/"):
                seen.append(listed.key)
        assert seen == sorted(set(seen))
        assert set(staying) <= set(seen)
        async with asyncio.TaskGroup() as group:
            group.create_task(store.delete(passing))
            seen = await keys(store, "a/")
        assert set(staying) <= set(seen)
        assert await keys(store, "a/") == staying

    async def test_a_big_object(self, store: ObjectStore) -> None:
        """Put, read whole, read in parts from both ends, refused a second time, swapped."""
        data = hashlib.shake_256(b"big").digest(1 << 20) * (self.object_bytes >> 20)
        etag = await store.put_if_absent("big", data)
        found = await store.get("big")
        assert found.etag == etag
        assert hashlib.sha256(found.data).digest() == hashlib.sha256(data).digest()
        size = len(data)
        for start, limit in ((0, 100), (size - 100, size), (size // 2, size // 2 + 70_000)):
            assert await store.get_range("big", start, limit) == data[start:limit]
        with pytest.raises(PreconditionFailedError):
            await store.put_if_absent("big", data)
        await store.put_if_match("big", data[1:], etag)
        info = await store.head("big")
        assert info is not None
        assert info.size_bytes == size - 1

    async def test_many_calls_at_once(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Hundreds of calls in flight: each gets its own answer, none gives up."""

        async def put_and_get(number: int) -> None:
            key, data = f"many/{number}", b"%d" % number * 1000
            etag = await store.put_if_absent(key, data)
            found = await peer.get(key)
            assert (found.data, found.etag) == (data, etag)

        async with asyncio.TaskGroup() as group:
            for number in range(300):
                group.create_task(put_and_get(number))

    async def test_many_swaps_of_one_object(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Eight tasks swap ten times each, and no swap is lost."""
        await store.put_if_absent("words", b"")

        async def add(task: int) -> None:
            for number in range(10):
                await append_word((store, peer)[task % 2], f"{task}.{number}")

        async with asyncio.TaskGroup() as group:
            for task in range(8):
                group.create_task(add(task))
        words = (await store.get("words")).data.split()
        assert len(words) == len(set(words)) == 80


async def _put_all(store: ObjectStore, names: list[str]) -> None:
    """Create empty objects, some at a time."""
    waiting = iter(names)

    async def put() -> None:
        for name in waiting:
            await store.put_if_absent(name, b"")

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(put())


@pytest.mark.asyncio
class ObjectStoreSuite(ObjectTests, ConditionTests, ListingTests, LogTests):
    """Subclass it and provide the fixtures ``store`` and ``peer``. Some seconds at most."""


@pytest.mark.asyncio
class ObjectStoreLoadSuite(LoadTests):
    """The same for many and big objects."""
