"""What appends accept and refuse before anything is written."""

from __future__ import annotations

import msgpack
import pytest

from walstore.core.batches.append_request import make_group, make_record
from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES


def test_a_record_with_everything() -> None:
    group = make_record(b"value", b"key", "eu", {"a": b"1"}, 7)
    assert list(group.values) == [b"value"]
    assert group.keys == [b"key"]
    assert group.streams == ["eu"]
    assert group.headers is not None
    assert msgpack.unpackb(group.headers[0]) == {"a": b"1"}
    assert group.timestamps_us == [7]
    packed = len(group.headers[0])
    assert group.size_bytes == 5 + 3 + 2 + packed + RECORD_OVERHEAD_BYTES


def test_options_left_out_cost_nothing() -> None:
    group = make_record(b"", None, None, None, None)
    assert (group.keys, group.streams, group.headers, group.timestamps_us) == (None,) * 4
    assert group.size_bytes == RECORD_OVERHEAD_BYTES
    assert make_record(b"", None, None, {}, None).headers is None


def test_the_options_of_a_group_hold_for_each_record() -> None:
    group = make_group((v for v in [b"a", b"bc"]), b"k", "eu", {"h": b""}, 5)
    assert group.keys == [b"k", b"k"]
    assert group.streams == ["eu", "eu"]
    assert group.timestamps_us == [5, 5]
    packed = msgpack.packb({"h": b""})
    assert group.headers == [packed, packed]
    assert group.size_bytes == 3 + 2 * (1 + 2 + len(packed) + RECORD_OVERHEAD_BYTES)


@pytest.mark.parametrize(
    "value", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXc")[::2]]
)
def test_bytes_like_values_are_copied(value) -> None:
    group = make_record(value, value, None, {"h": value}, None)
    assert list(group.values) == [b"abc"]
    assert type(group.values[0]) is bytes
    assert group.keys == [b"abc"]


def test_changing_a_bytearray_afterwards_changes_nothing() -> None:
    value = bytearray(b"abc")
    group = make_record(value, None, None, None, None)
    value[0] = 0
    assert list(group.values) == [b"abc"]


@pytest.mark.parametrize("value", ["text", 1, None, [1], [b"x"], object()])
def test_other_values_are_type_errors(value) -> None:
    with pytest.raises(TypeError, match="a value must be bytes, not"):
        make_record(value, None, None, None, None)
    if value is not None:
        with pytest.raises(TypeError, match="a key must be bytes"):
            make_record(b"", value, None, None, None)
    with pytest.raises(TypeError, match=r"a header value \('h'\) must be bytes"):
        make_record(b"", None, None, {"h": value}, None)


def test_bad_names_are_refused() -> None:
    with pytest.raises(TypeError, match="stream must be a str, not bytes"):
        make_record(b"", None, b"eu", None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be empty"):
        make_record(b"", None, "", None, None)
    with pytest.raises(ValueError, match="surrogates"):
        make_record(b"", None, "\udc00", None, None)
    with pytest.raises(TypeError, match="a header name must be a str"):
        make_record(b"", None, None, {b"h": b""}, None)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="surrogates"):
        make_record(b"", None, None, {"\udc00": b""}, None)


@pytest.mark.parametrize("values", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_one_value_is_not_a_group(values) -> None:
    with pytest.raises(TypeError, match="values must be an iterable of bytes"):
        make_group(values, None, None, None, None)


def test_a_group_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        make_group([], None, None, None, None)
