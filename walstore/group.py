"""Turning what callers pass to an append into a checked group of records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgpack

from walstore.draft import RECORD_OVERHEAD_BYTES, Group
from walstore.terms import Terms

_BYTES_LIKE = (bytes, bytearray, memoryview)


def make_record(
    value: bytes,
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | None,
) -> Group:
    """Return a group of one record; TypeError or ValueError for bad arguments."""
    return make_group((value,), key, stream, headers, timestamp_us)


def make_group(
    values: Iterable[bytes],
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | None,
    terms: Terms | None = None,
) -> Group:
    """Return a group whose records share key, stream, headers and timestamp."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise TypeError(f"values must be an iterable of bytes, not {type(values).__name__}")
    checked = [as_bytes(value, "value") for value in values]
    if not checked:
        raise ValueError("an atomic group needs at least one value")
    rows = len(checked)
    size = sum(map(len, checked)) + RECORD_OVERHEAD_BYTES * rows
    keys = streams = packed = times = None
    if key is not None:
        key = as_bytes(key, "key")
        keys = [key] * rows
        size += len(key) * rows
    if stream is not None:
        if not isinstance(stream, str):
            raise TypeError(f"stream must be a str, not {type(stream).__name__}")
        if not stream:
            raise ValueError("a stream name must not be empty; leave stream out instead")
        streams = [stream] * rows
        size += len(stream.encode()) * rows
    if headers:
        blob = pack_headers(headers)
        packed = [blob] * rows
        size += len(blob) * rows
    if timestamp_us is not None:
        times = [timestamp_us] * rows
    return Group(checked, keys, streams, packed, times, size, terms)


def as_bytes(value: object, what: str) -> bytes:
    """Return ``value`` as immutable bytes; TypeError if it is not bytes-like."""
    if type(value) is bytes:
        return value
    if isinstance(value, _BYTES_LIKE):
        return bytes(value)
    raise TypeError(f"a {what} must be bytes, not {type(value).__name__}; encode it first")


def pack_headers(headers: Mapping[str, bytes]) -> bytes:
    """Return headers as msgpack; TypeError unless they map str to bytes."""
    checked: dict[str, bytes] = {}
    for name, value in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"a header name must be a str, not {type(name).__name__}")
        checked[name] = as_bytes(value, f"header value ({name!r})")
    packed: bytes = msgpack.packb(checked)
    return packed
