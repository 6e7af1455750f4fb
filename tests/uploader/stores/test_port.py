"""The rules for keys and ranges that all stores share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.stores.port import MAX_KEY_BYTES, StoredObject, check_key, check_range
from walstore.errors import InvalidSettingsError


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
