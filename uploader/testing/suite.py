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
from uploader.root import cas
from uploader.stores.port import (
    ListedObject,
    ObjectNotFoundError,
    ObjectStore,
    PreconditionFailedError,
)
from uploader.stores.probe import PROBE_FOLDER, probe_conditional_puts
from uploader.testing.faults import ShuffledStore
from uploader.testing.suite_objects import ListingTests, ObjectTests, append_word, keys, won
from uploader.write.cloud_writer import CloudWriter

__all__ = ["ObjectStoreLoadSuite", "ObjectStoreSuite"]


_CONTENDERS = 20


class ConditionTests:
    """Puts and their conditions.

    When many put the same object, a store may report that it is busy, or lose an answer.
    ``uploader.root.cas`` then determines the outcome of a put, as in the cloud tier.
    """

    async def test_create_refuses_a_second(self, store: ObjectStore, peer: ObjectStore) -> None:
        """The first content stays, whichever client comes second."""
        await store.put_if_absent("a", b"first")
        for second in (store, peer):
            for data in (b"second", b"first"):
                with pytest.raises(PreconditionFailedError) as caught:
                    await second.put_if_absent("a", data)
                assert caught.value.key == "a"
                assert caught.value.outcome == "not_written"
        assert (await peer.get("a")).data == b"first"

    async def test_swap(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Each swap needs the ETag of the one before."""
        first = await store.put_if_absent("a", b"1")
        second = await peer.put_if_match("a", b"2", first)
        third = await store.put_if_match("a", b"3", second)
        assert len({first, second, third}) == 3
        for stale in (first, second, "0" * len(first)):
            with pytest.raises(PreconditionFailedError):
                await store.put_if_match("a", b"x", stale)
        found = await peer.get("a")
        assert (found.data, found.etag) == (b"3", third)

    async def test_swap_of_a_missing_object(self, store: ObjectStore) -> None:
        """No object has the expected ETag: lost, not created."""
        etag = await store.put_if_absent("gone", b"1")
        await store.delete(["gone"])
        for key in ("gone", "never/there"):
            with pytest.raises(PreconditionFailedError):
                await store.put_if_match(key, b"2", etag)
            assert await store.head(key) is None

    async def test_etags_have_no_quotes_and_are_the_same_everywhere(
        self, store: ObjectStore, peer: ObjectStore
    ) -> None:
        """Put, swap, get and head give the same bare ETag, and a swap takes it from any of them."""
        etag = await store.put_if_absent("a", b"0")
        for number in range(1, 4):
            info = await peer.head("a")
            assert info is not None
            assert etag == info.etag == (await peer.get("a")).etag
            assert etag.strip('"') == etag
            assert etag.isprintable()
            source = (etag, info.etag, (await peer.get("a")).etag)[number - 1]
            etag = await store.put_if_match("a", b"%d" % number, source)

    async def test_other_content_has_another_etag(self, store: ObjectStore) -> None:
        """Also if it has the same length and was put in the same moment."""
        etags = [await store.put_if_absent("a", b"00")]
        for number in range(1, 20):
            etags.append(await store.put_if_match("a", b"%02d" % number, etags[-1]))
        assert len(set(etags)) == 20
        for stale in etags[:-1]:
            with pytest.raises(PreconditionFailedError):
                await store.put_if_match("a", b"x", stale)

    async def test_a_refused_put_changes_nothing(self, store: ObjectStore) -> None:
        """Neither the content nor the ETag, so an ETag known before stays valid."""
        etag = await store.put_if_absent("a", b"1")
        for _ in range(3):
            with pytest.raises(PreconditionFailedError):
                await store.put_if_absent("a", b"2")
            with pytest.raises(PreconditionFailedError):
                await store.put_if_match("a", b"2", "0" * len(etag))
        assert (await store.get("a")).etag == etag
        await store.put_if_match("a", b"2", etag)

    async def test_concurrent_creators(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Of twenty creators exactly one wins, and its content is there."""

        async def create(number: int) -> str | None:
            data = f"creator {number}".encode()
            return await won(cas.create((store, peer)[number % 2], "contended/key", data))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(create(number)) for number in range(_CONTENDERS)]
        winners = [number for number, task in enumerate(tasks) if task.result()]
        assert len(winners) == 1
        found = await store.get("contended/key")
        assert found.data == f"creator {winners[0]}".encode()
        assert found.etag == tasks[winners[0]].result()

    async def test_concurrent_swappers(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Of twenty swaps from one ETag exactly one wins."""
        etag = await store.put_if_absent("contended", b"start")

        async def swap(number: int) -> str | None:
            data = f"swapper {number}".encode()
            return await won(cas.swap((store, peer)[number % 2], "contended", data, etag))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(swap(number)) for number in range(_CONTENDERS)]
        winners = [number for number, task in enumerate(tasks) if task.result()]
        assert len(winners) == 1
        assert (await store.get("contended")).data == f"swapper {winners[0]}".encode()

    async def test_no_lost_update(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Six tasks add to one object by swaps, and everything added is there once."""
        await store.put_if_absent("words", b"begin")
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(append_word((store, peer)[number % 2], str(number)))
        words = (await store.get("words")).data.split()
        assert words[0] == b"begin"
        assert sorted(words[1:]) == [b"0", b"1", b"2", b"3", b"4", b"5"]

    async def test_concurrent_puts_on_many_keys(
        self, store: ObjectStore, peer: ObjectStore
    ) -> None:
        """Creators contend for each of ten keys; those of other keys do not disturb them."""

        async def create(number: int, key: str) -> str | None:
            data = f"{key} {number}"
            is_won = await won(cas.create((store, peer)[number % 2], key, data.encode()))
            return data if is_won else None

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(create(number, f"key/{number % 10}")) for number in range(40)
            ]
        winners = [data for task in tasks if (data := task.result())]
        assert len(winners) == 10
        for data in winners:
            assert (await store.get(data.partition(" ")[0])).data == data.encode()

    async def test_reads_during_swaps_are_whole(
        self, store: ObjectStore, peer: ObjectStore
    ) -> None:
        """A reader sees one content or the next, with its own ETag, and never goes back."""
        size, swaps = 50_000, 20
        etags = {0: await store.put_if_absent("a", bytes(size))}
        is_done = asyncio.Event()

        async def swap() -> None:
            for number in range(1, swaps):
                data = bytes([number]) * (size + number)
                etags[number] = await store.put_if_match("a", data, etags[number - 1])
            is_done.set()

        async def read() -> dict[int, str]:
            seen: dict[int, str] = {}
            last = 0
            while not is_done.is_set():
                found = await peer.get("a")
                number = found.data[0]
                assert found.data == bytes([number]) * (size + number)
                assert number >= last
                last = number
                seen[number] = found.etag
            return seen

        async with asyncio.TaskGroup() as group:
            group.create_task(swap())
            readers = [group.create_task(read()) for _ in range(3)]
        for reader in readers:
            assert reader.result().items() <= etags.items()

    async def test_cancelled_reads_disturb_nobody(self, store: ObjectStore) -> None:
        """At any stage of a call; more of them than a store has connections."""
        await store.put_if_absent("a", bytes(100_000))
        for turns in range(100):
            reading = asyncio.ensure_future(store.get("a"))  # noqa: TID251 - awaited just below
            await _give_way(turns % 20)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        async with asyncio.timeout(60):
            assert (await store.get("a")).data == bytes(100_000)

    async def test_a_cancelled_put_is_whole_or_not_there(self, store: ObjectStore) -> None:
        """The put may happen or not, now or later; a read never returns a part of it."""
        data = bytes(range(256)) * 400
        for turns in range(40):
            key = f"put/{turns}"
            putting = asyncio.ensure_future(store.put_if_absent(key, data))  # noqa: TID251 - ended below
            await _give_way(turns)
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
            try:
                assert (await store.get(key)).data == data
            except ObjectNotFoundError:
                continue
        await store.put_if_absent("another", b"1")

    async def test_probe(self, store: ObjectStore) -> None:
        """The store is fit for a manifest, and the probe leaves nothing behind."""
        await probe_conditional_puts(store)
        assert await keys(store, PROBE_FOLDER) == []


async def _give_way(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)  # noqa: TID251 - let the request start, a little further each time


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
