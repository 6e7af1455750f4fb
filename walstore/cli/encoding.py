"""Bytes of a log as JSON: text where it is text, else base64 or hex."""

from __future__ import annotations

import base64
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from walstore import Batch


class ValueEncoding(StrEnum):
    """How values, keys and header values appear in JSON."""

    AUTO = "auto"
    """A string if the bytes are UTF-8, else an object ``{"base64": "..."}``."""
    UTF8 = "utf8"
    """A string; bytes that are not UTF-8 appear as U+FFFD."""
    HEX = "hex"
    BASE64 = "base64"


def encoder(encoding: ValueEncoding) -> Callable[[bytes], Any]:
    """Return the function that turns bytes into a JSON value."""
    return {
        ValueEncoding.AUTO: _auto,
        ValueEncoding.UTF8: lambda data: data.decode("utf-8", "replace"),
        ValueEncoding.HEX: lambda data: data.hex(),
        ValueEncoding.BASE64: _base64,
    }[encoding]


def to_rows(batch: Batch, encode: Callable[[bytes], Any]) -> list[dict[str, Any]]:
    """Return the records of a batch as JSON objects."""
    return [
        {
            "offset": record.offset,
            "timestamp_us": record.timestamp_us,
            "key": None if record.key is None else encode(record.key),
            "stream": record.stream,
            "headers": {name: encode(value) for name, value in record.headers.items()},
            "value": encode(record.value),
        }
        for record in batch
    ]


def _auto(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
