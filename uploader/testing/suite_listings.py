"""What every object store must do: listings and deletes. A part of ``uploader.testing.suite``."""

from __future__ import annotations

import asyncio

from uploader.stores.port import ObjectStore
from uploader.testing.suite_parts import fill, keys


class ListingTests:
    """Many objects."""

    async def test_delete(self, store: ObjectStore) -> None:
        """Many at once; missing ones are not an error; the key is free again."""
        await fill(store, "a", "b/c", "b/d", "e")
        await store.delete(["a", "b/c", "missing", "b/missing"])
        assert await keys(store, "") == ["b/d", "e"]
        await store.delete([])
        await store.delete(["a"])
        await store.put_if_absent("a", b"again")
        assert (await store.get("a")).data == b"again"

    async def test_delete_takes_any_iterable(self, store: ObjectStore) -> None:
        """Also an iterable that can be read only once; the same key twice is one object."""
        await fill(store, "a", "b", "c")
        await store.delete(key for key in ("a", "a", "b"))
        assert await keys(store, "") == ["c"]

    async def test_concurrent_deletes(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Several clients may remove the same objects; each succeeds."""
        names = [f"a/{number}" for number in range(30)]
        await fill(store, *names, "b")
        async with asyncio.TaskGroup() as group:
            for opened in (store, peer, store, peer):
                group.create_task(opened.delete(names))
        assert await keys(store, "") == ["b"]

    async def test_list_order(self, store: ObjectStore) -> None:
        """Keys come in the order of their bytes, in which a slash is a character like others."""
        names = ["a", "a-b/x", "a.b", "a/b", "a/b-c", "b/a", "b/a.x", "b/c/d/e", "b0", "é/x", "€"]
        await fill(store, *reversed([name for name in names if name not in {"a", "b/a"}]))
        expected = [name for name in names if name not in {"a", "b/a"}]
        assert expected == sorted(expected, key=str.encode)
        assert await keys(store, "") == expected

    async def test_list_order_beyond_ascii(self, store: ObjectStore) -> None:
        """The order is that of UTF-8, not that of UTF-16 or of any language."""
        names = ["Z", "a", "z", "é", "ÿ", "ā", "€", "\uff5e", "𐀀", "😀", "😀/a", "😀0"]
        await fill(store, *reversed(names[:-3]), *names[-2:])
        expected = [*names[:-3], *names[-2:]]
        assert expected == sorted(expected, key=str.encode)
        assert await keys(store, "") == expected
        for after in expected:
            later = [name for name in expected if name.encode() > after.encode()]
            assert await keys(store, "", after) == later, after

    async def test_list_prefix(self, store: ObjectStore) -> None:
        """Any string is a prefix, with or without a slash at its end."""
        await fill(store, "log/a/1", "log/a/2", "log/b/1", "log2/x", "lo")
        assert await keys(store, "log/") == ["log/a/1", "log/a/2", "log/b/1"]
        assert await keys(store, "log") == ["log/a/1", "log/a/2", "log/b/1", "log2/x"]
        assert await keys(store, "log/a/2") == ["log/a/2"]
        assert await keys(store, "log/b") == ["log/b/1"]
        assert await keys(store, "x") == []

    async def test_list_after(self, store: ObjectStore) -> None:
        """``after`` is exclusive and need not exist."""
        await fill(store, "a/1", "a/2", "a/3", "b/1", "c")
        everything = ["a/1", "a/2", "a/3", "b/1", "c"]
        for after in (*everything, "a", "a/", "a/15", "a0", "b", "b/2", "z"):
            expected = [key for key in everything if key > after]
            assert await keys(store, "", after) == expected, after
        assert await keys(store, "a/", "a/2") == ["a/3"]
        assert await keys(store, "b/", "a/2") == ["b/1"]

    async def test_list_tells_sizes(self, store: ObjectStore) -> None:
        """As a head does."""
        for size in (0, 1, 1000, 70_000):
            await store.put_if_absent(f"a/{size}", bytes(size))
        sizes = {item.key: item.size_bytes async for item in store.list("a/")}
        assert sizes == {f"a/{size}": size for size in (0, 1, 1000, 70_000)}

    async def test_a_listing_may_be_left(self, store: ObjectStore) -> None:
        """No caller has to read it to its end, and several may be open."""
        names = [f"a/{number}" for number in range(10)]
        await fill(store, *names)
        first, second = store.list("a/"), store.list("a/", after="a/4")
        assert (await anext(first)).key == "a/0"
        assert (await anext(second)).key == "a/5"
        assert (await anext(first)).key == "a/1"
        assert await keys(store, "a/") == names

    async def test_list_of_nothing(self, store: ObjectStore) -> None:
        """An empty store has an empty listing."""
        assert await keys(store, "") == []
        assert await keys(store, "log/") == []
