"""What every object store must do, as tests that a third party can run on its own.

    class TestMyStore(ObjectStoreSuite):
        @pytest.fixture
        async def store(self):
            async with contextlib.aclosing(MyStore(...)) as store:
                yield store                      # fresh and empty

        @pytest.fixture
        async def peer(self, store):
            async with contextlib.aclosing(MyStore(...)) as peer:
                yield peer                       # the same place, opened a second time

Needs pytest and pytest-asyncio. Faults of the network and what survives a power cut are not covered:
they cannot be provoked from outside.
"""

from __future__ import annotations

import asyncio

import pytest

from uploader.stores.errors import ObjectNotFoundError, PreconditionFailedError
from uploader.stores.port import ObjectStore
from uploader.stores.probe import PROBE_FOLDER, probe_conditional_puts
from walstore.errors import InvalidSettingsError, WalError

_CONTENDERS = 20
_LARGE = bytes(range(256)) * (8 * 1024 * 1024 // 256)
_FRAGMENT = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"


async def _keys(store: ObjectStore, prefix: str, after: str | None = None) -> list[str]:
    return [listed.key async for listed in store.list(prefix, after=after)]


async def _fill(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        await store.put_if_absent(key, key.encode())


@pytest.mark.asyncio
class ObjectStoreSuite:
    """Subclass it and provide the fixtures ``store`` and ``peer``."""

    async def test_get_returns_what_was_put_and_its_etag(self, store: ObjectStore) -> None:
        """A put's ETag is the one reads give."""
        etag = await store.put_if_absent("a/b", b"content")
        found = await store.get("a/b")
        assert (found.data, found.etag) == (b"content", etag)
        assert etag
        assert '"' not in etag

    async def test_get_missing(self, store: ObjectStore) -> None:
        """A missing object is an error that names the key, also below an object's name."""
        await store.put_if_absent("a/b", b"content")
        for key in ("a/c", "a", "nothing/at/all"):
            with pytest.raises(ObjectNotFoundError, match=key) as caught:
                await store.get(key)
            assert caught.value.key == key

    async def test_get_range(self, store: ObjectStore) -> None:
        """Ranges are half-open and end with the object."""
        await store.put_if_absent("a", b"0123456789")
        assert await store.get_range("a", 0, 1) == b"0"
        assert await store.get_range("a", 3, 7) == b"3456"
        assert await store.get_range("a", 8, 100) == b"89"
        assert await store.get_range("a", 10, 12) == b""
        assert await store.get_range("a", 50, 60) == b""

    async def test_get_range_refuses_nonsense(self, store: ObjectStore) -> None:
        """Empty and reversed ranges are mistakes of the caller; a missing object is missing."""
        await store.put_if_absent("a", b"0123456789")
        for start, limit in ((3, 3), (4, 3), (-1, 3)):
            with pytest.raises(InvalidSettingsError, match="range"):
                await store.get_range("a", start, limit)
        with pytest.raises(ObjectNotFoundError):
            await store.get_range("b", 0, 1)

    async def test_head(self, store: ObjectStore) -> None:
        """Size and ETag without the content; None if there is no object."""
        etag = await store.put_if_absent("a/b", b"content")
        info = await store.head("a/b")
        assert info is not None
        assert (info.key, info.size_bytes, info.etag) == ("a/b", 7, etag)
        assert await store.head("a") is None
        assert await store.head("b") is None

    async def test_empty_object(self, store: ObjectStore) -> None:
        """Zero bytes are a content like any other."""
        etag = await store.put_if_absent("empty", b"")
        assert (await store.get("empty")).data == b""
        assert await store.get_range("empty", 0, 10) == b""
        info = await store.head("empty")
        assert info is not None
        assert info.size_bytes == 0
        with pytest.raises(PreconditionFailedError):
            await store.put_if_absent("empty", b"")
        await store.put_if_match("empty", b"no longer", etag)
        assert [listed.size_bytes async for listed in store.list("")] == [9]

    async def test_large_object(self, store: ObjectStore) -> None:
        """8 MiB, put and read whole and in part."""
        etag = await store.put_if_absent("large", _LARGE)
        assert (await store.get("large")).data == _LARGE
        assert await store.get_range("large", 5_000_000, 5_000_256) == _LARGE[64:320]
        with pytest.raises(PreconditionFailedError):
            await store.put_if_absent("large", _LARGE)
        await store.put_if_match("large", _LARGE[1:], etag)
        info = await store.head("large")
        assert info is not None
        assert info.size_bytes == len(_LARGE) - 1

    async def test_keys_of_a_log(self, store: ObjectStore) -> None:
        """Keys as a log uses them, and others that need quoting on the way."""
        for key in (_FRAGMENT, "snapshot/SNAPSHOT.c5b3", "a b+c%20d/é?x&y#z"):
            await store.put_if_absent(key, key.encode())
            assert (await store.get(key)).data == key.encode()
            assert await _keys(store, key) == [key]

    async def test_bad_keys(self, store: ObjectStore) -> None:
        """Keys that some store cannot hold are refused by all, before anything is sent."""
        for key in ("", "/a", "a/", "a//b", "..", "a/../b", ".tmp/x", "a/./b", "a\nb", "x" * 1025):
            with pytest.raises(InvalidSettingsError, match="key"):
                await store.put_if_absent(key, b"")
            with pytest.raises(InvalidSettingsError, match="key"):
                await store.get(key)

    async def test_create_refuses_a_second(self, store: ObjectStore, peer: ObjectStore) -> None:
        """The first content stays, whoever comes second."""
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

    async def test_delete(self, store: ObjectStore) -> None:
        """Many at once; missing ones are fine; the key is free again."""
        await _fill(store, "a", "b/c", "b/d", "e")
        await store.delete(["a", "b/c", "missing", "b/missing"])
        assert await _keys(store, "") == ["b/d", "e"]
        await store.delete([])
        await store.delete(["a"])
        await store.put_if_absent("a", b"again")
        assert (await store.get("a")).data == b"again"

    async def test_list_order(self, store: ObjectStore) -> None:
        """Keys come in the order of their bytes, in which a slash is a character like others."""
        keys = ["a", "a-b/x", "a.b", "a/b", "a/b-c", "b/a", "b/a.x", "b/c/d/e", "b0", "é/x", "€"]
        await _fill(store, *reversed([key for key in keys if key not in {"a", "b/a"}]))
        expected = [key for key in keys if key not in {"a", "b/a"}]
        assert expected == sorted(expected, key=str.encode)
        assert await _keys(store, "") == expected

    async def test_list_prefix(self, store: ObjectStore) -> None:
        """Any string is a prefix, with or without a slash at its end."""
        await _fill(store, "log/a/1", "log/a/2", "log/b/1", "log2/x", "lo")
        assert await _keys(store, "log/") == ["log/a/1", "log/a/2", "log/b/1"]
        assert await _keys(store, "log") == ["log/a/1", "log/a/2", "log/b/1", "log2/x"]
        assert await _keys(store, "log/a/2") == ["log/a/2"]
        assert await _keys(store, "log/b") == ["log/b/1"]
        assert await _keys(store, "x") == []

    async def test_list_after(self, store: ObjectStore) -> None:
        """``after`` is exclusive and need not exist."""
        await _fill(store, "a/1", "a/2", "a/3", "b/1", "c")
        everything = ["a/1", "a/2", "a/3", "b/1", "c"]
        for after in (*everything, "a", "a/", "a/15", "a0", "b", "b/2", "z"):
            expected = [key for key in everything if key > after]
            assert await _keys(store, "", after) == expected, after
        assert await _keys(store, "a/", "a/2") == ["a/3"]
        assert await _keys(store, "b/", "a/2") == ["b/1"]

    async def test_list_of_nothing(self, store: ObjectStore) -> None:
        """An empty store has an empty listing."""
        assert await _keys(store, "") == []
        assert await _keys(store, "log/") == []

    async def test_concurrent_creators(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Of twenty creators exactly one wins, and its content is there."""

        async def create(number: int) -> str | None:
            data = f"creator {number}".encode()
            try:
                return await (store, peer)[number % 2].put_if_absent("contended/key", data)
            except PreconditionFailedError:
                return None

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
            try:
                return await (store, peer)[number % 2].put_if_match("contended", data, etag)
            except PreconditionFailedError:
                return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(swap(number)) for number in range(_CONTENDERS)]
        winners = [number for number, task in enumerate(tasks) if task.result()]
        assert len(winners) == 1
        assert (await store.get("contended")).data == f"swapper {winners[0]}".encode()

    async def test_no_lost_update(self, store: ObjectStore, peer: ObjectStore) -> None:
        """A counter that six tasks raise by swaps counts every success."""
        await store.put_if_absent("counter", b"0")

        async def add(opened: ObjectStore) -> None:
            while True:
                found = await opened.get("counter")
                try:
                    raised = str(int(found.data) + 1).encode()
                    await opened.put_if_match("counter", raised, found.etag)
                except PreconditionFailedError:
                    continue
                return

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(add((store, peer)[number % 2]))
        assert (await store.get("counter")).data == b"6"

    async def test_probe(self, store: ObjectStore) -> None:
        """The store is fit for a manifest, and the probe leaves nothing behind."""
        await probe_conditional_puts(store)
        assert await _keys(store, PROBE_FOLDER) == []

    async def test_url_and_repr(self, store: ObjectStore) -> None:
        """The URL has a scheme and nobody's name in it."""
        scheme, separator, rest = store.url.partition("://")
        assert scheme
        assert separator
        assert "@" not in rest

    async def test_close(self, store: ObjectStore) -> None:
        """Closing twice is allowed; what was put stays or the call says why not."""
        await store.put_if_absent("a", b"1")
        await store.aclose()
        await store.aclose()
        try:
            found = await store.get("a")
        except WalError:
            return
        assert found.data == b"1"
