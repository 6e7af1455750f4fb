"""What every object store must do: reading, ranges, keys. A part of ``uploader.testing.suite``."""

from __future__ import annotations

from typing import cast

import pytest

from uploader.stores.errors import ObjectNotFoundError, PreconditionFailedError
from uploader.stores.port import (
    MAX_KEY_BYTES,
    BoundedStore,
    ObjectStore,
    get_bounded,
    takes_limit,
)
from uploader.testing.suite_parts import fill, keys
from walstore.errors import CorruptionError, InvalidSettingsError, WalError

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
