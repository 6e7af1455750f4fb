"""What every object store must do: reads, keys, listings, deletes. A part of ``uploader.testing.suite``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from uploader.root import cas
from uploader.stores.port import (
    MAX_KEY_BYTES,
    BoundedStore,
    ObjectNotFoundError,
    ObjectStore,
    PreconditionFailedError,
    get_bounded,
    takes_limit,
)
from walstore.errors import CorruptionError, InvalidSettingsError, WalError


async def keys(store: ObjectStore, prefix: str, after: str | None = None) -> list[str]:
    """Return the keys of a listing."""
    return [listed.key async for listed in store.list(prefix, after=after)]


async def fill(store: ObjectStore, *names: str) -> None:
    """Create objects whose content is their key."""
    for name in names:
        await store.put_if_absent(name, name.encode())


async def won(putting: Awaitable[cas.PutResult]) -> str | None:
    """Return the ETag of a put that won, None for one that lost; a store may not leave it open."""
    result = await putting
    assert result.outcome is not cas.PutOutcome.UNKNOWN, result.cause
    return result.etag if result.outcome is cas.PutOutcome.COMMITTED else None


async def append_word(store: ObjectStore, word: str) -> None:
    """Add a word to the object ``words`` by a swap, in parallel with other tasks that do so."""
    while True:
        found = await store.get("words")
        # An earlier swap of ours may have been taken over by the one that overtook it.
        if word.encode() in found.data.split():
            return
        await won(cas.swap(store, "words", found.data + b" " + word.encode(), found.etag))


_LARGE = bytes(range(256)) * (8 * 1024 * 1024 // 256)
_FRAGMENT = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"
_UNUSUAL = (
    _FRAGMENT,
    "snapshot/SNAPSHOT.c5b3",
    "a b+c%20d/é?x&y#z",
    "%2F",
    "a=b&c=d;e,f:g@h$i!j*k'l(m)n~o^p`q{r}s|t<u>v[w]x\\y\"z",
    "日本語/Ελληνικά/кириллица",
    # Composed and decomposed, upper and lower: four keys, not one.
    "e\u0301",
    "é",
    "E\u0301",
    "É",
    "🧵/🪡",
)


class ObjectTests:
    """Objects one at a time."""

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

    async def test_get_with_a_limit(self, store: ObjectStore) -> None:
        """A longer object is refused, if the store takes a limit; a get without it reads all of it."""
        for key, data in (("empty", b""), ("a/b", b"content"), ("large", _LARGE)):
            etag = await store.put_if_absent(key, data)
            for limit in (None, len(data), len(data) + 1, 5 << 30):
                found = await get_bounded(store, key, limit)
                assert (found.data, found.etag) == (data, etag), limit
            for limit in (0, len(data) // 2, len(data) - 1):
                if 0 <= limit < len(data):
                    with pytest.raises(CorruptionError, match=key) as caught:
                        await _get_at_most(store, key, limit)
                    assert caught.value.path == key
        with pytest.raises(ObjectNotFoundError):
            await get_bounded(store, "missing", 0)

    async def test_get_range(self, store: ObjectStore) -> None:
        """Ranges are half-open and end with the object."""
        await store.put_if_absent("a", b"0123456789")
        assert await store.get_range("a", 0, 1) == b"0"
        assert await store.get_range("a", 3, 7) == b"3456"
        assert await store.get_range("a", 8, 100) == b"89"
        assert await store.get_range("a", 10, 12) == b""
        assert await store.get_range("a", 50, 60) == b""

    async def test_get_range_at_the_edges(self, store: ObjectStore) -> None:
        """The first byte, the last, all, one too many, and limits beyond any object."""
        data = bytes(range(256)) * 4
        await store.put_if_absent("a", data)
        size = len(data)
        for start, limit in (
            (0, 1),
            (size - 1, size),
            (0, size),
            (0, size + 1),
            (size - 1, size + 1),
            (size, size + 1),
            (size + 1, size + 2),
            (0, 2**31),
            (1, 2**40),
            (2**40, 2**40 + 1),
        ):
            assert await store.get_range("a", start, limit) == data[start:limit], (start, limit)

    async def test_get_range_refuses_nonsense(self, store: ObjectStore) -> None:
        """Empty and reversed ranges are errors of the caller; a missing object is missing."""
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

    async def test_unusual_keys(self, store: ObjectStore) -> None:
        """A log's keys, and others that need quoting in a request, name different objects."""
        for key in _UNUSUAL:
            await store.put_if_absent(key, key.encode())
        for key in _UNUSUAL:
            assert (await store.get(key)).data == key.encode()
            info = await store.head(key)
            assert info is not None
            assert info.key == key
            assert (await keys(store, key))[0] == key
        assert await keys(store, "") == sorted(_UNUSUAL, key=str.encode)
        await store.delete(_UNUSUAL)
        assert await keys(store, "") == []

    async def test_long_keys(self, store: ObjectStore) -> None:
        """Without a prefix a key may have 1024 bytes; here its parts have 200 bytes."""
        key = "/".join(["x" * 200] * 4)
        assert len(key) < MAX_KEY_BYTES
        await fill(store, key)
        assert await keys(store, "x") == [key]
        assert (await store.get(key)).data == key.encode()

    async def test_bad_keys(self, store: ObjectStore) -> None:
        """Keys that some store cannot hold are refused by all, before anything is sent."""
        for key in ("", "/a", "a/", "a//b", "..", "a/../b", ".tmp/x", "a/./b", "a\nb", "x" * 1025):
            with pytest.raises(InvalidSettingsError, match="key"):
                await store.put_if_absent(key, b"")
            with pytest.raises(InvalidSettingsError, match="key"):
                await store.get(key)

    async def test_url_and_repr(self, store: ObjectStore) -> None:
        """The URL has a scheme and contains no credentials."""
        scheme, separator, rest = store.url.partition("://")
        assert scheme
        assert separator
        assert "@" not in rest

    async def test_reads_see_what_was_written(self, store: ObjectStore, peer: ObjectStore) -> None:
        """Every kind of read, through every opener, sees a put or delete that has returned."""
        etag = await store.put_if_absent("a", b"1")
        for turn in range(5):
            for reader in (store, peer):
                data = b"1" * (turn + 1)
                found = await reader.get("a")
                assert (found.data, found.etag) == (data, etag)
                assert await reader.get_range("a", 0, 100) == data
                info = await reader.head("a")
                assert info is not None
                assert (info.size_bytes, info.etag) == (len(data), etag)
                listed = [(item.key, item.size_bytes) async for item in reader.list("")]
                assert listed == [("a", len(data))]
            writer = (store, peer)[turn % 2]
            etag = await writer.put_if_match("a", b"1" * (turn + 2), etag)
        await store.delete(["a"])
        for reader in (store, peer):
            assert await reader.head("a") is None
            assert await keys(reader, "") == []
            with pytest.raises(ObjectNotFoundError):
                await reader.get("a")

    async def test_close(self, store: ObjectStore) -> None:
        """Closing is idempotent; objects stay, or the call raises."""
        await store.put_if_absent("a", b"1")
        await store.aclose()
        await store.aclose()
        try:
            found = await store.get("a")
        except WalError:
            return
        assert found.data == b"1"


async def _get_at_most(store: ObjectStore, key: str, limit: int) -> None:
    """Ask the store itself, which may take the limit and ignore it."""
    if takes_limit(type(store)):
        await cast("BoundedStore", store).get(key, max_bytes=limit)
    else:
        await get_bounded(store, key, limit)


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
