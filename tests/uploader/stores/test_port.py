"""The rules for keys and ranges that all stores share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.partitioned.partitions import SubStore
from uploader.stores import MemoryStore, StoreWrapper
from uploader.stores.port import (
    MAX_KEY_BYTES,
    StoredObject,
    check_key,
    check_range,
    get_bounded,
)
from walstore.errors import CorruptionError, InvalidSettingsError


@pytest.mark.parametrize("key", ["a", "a/b", "x" * MAX_KEY_BYTES, "é" * 512, "a b", "A=1/b.c-d_e"])
def test_good_keys(key):
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../a",
        "a/..",
        ".tmp/a",
        "a/.b",
        "a\0",
        "a\r",
        "\ud800",
    ],
)
def test_bad_keys(key):
    with pytest.raises(InvalidSettingsError, match="key"):
        check_key(key)


def test_the_limit_is_in_bytes():
    with pytest.raises(InvalidSettingsError, match="1024 bytes"):
        check_key("é" * 513)


@given(st.text(max_size=20))
def test_a_good_key_stays_below_any_root(key):
    try:
        check_key(key)
    except InvalidSettingsError:
        return
    parts = key.split("/")
    assert all(part not in {"", ".", ".."} for part in parts)
    assert not key.startswith("/")


def test_ranges():
    check_range(0, 1)
    for start, limit in ((0, 0), (2, 1), (-1, 1)):
        with pytest.raises(InvalidSettingsError):
            check_range(start, limit)


def test_the_content_of_an_object_is_not_in_its_repr():
    assert "secret" not in repr(StoredObject(b"secret", "etag"))


class OfBefore(MemoryStore):
    """A store as users wrote it before there was a limit; it counts what it reads."""

    reads = 0

    async def get(self, key):
        self.reads += 1
        return await super().get(key)


class Delegating:
    """One that has no method of its own."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("wrap", [lambda store: store, StoreWrapper, Delegating])
async def test_a_store_that_takes_no_limit_goes_on_working(wrap):
    store = OfBefore()
    await store.put_if_absent("a", b"12345")
    wrapped = wrap(store)
    assert (await get_bounded(wrapped, "a", 5)).data == b"12345"
    assert (await get_bounded(wrapped, "a", None)).data == b"12345"
    with pytest.raises(CorruptionError, match="longer") as caught:
        await get_bounded(wrapped, "a", 4)
    assert (caught.value.path, caught.value.found) == ("a", 5)
    assert store.reads == 3


async def test_a_limit_reaches_the_store_below():
    """So that it is not read whole on the way. The error names the object in that store."""
    inner = MemoryStore()
    await inner.put_if_absent("3/a", b"12345")
    with pytest.raises(CorruptionError, match="longer") as caught:
        await SubStore(StoreWrapper(inner), 3).get("a", max_bytes=4)
    assert caught.value.path == "3/a"
