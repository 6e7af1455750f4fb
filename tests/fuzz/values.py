"""Values that no writer writes: extremes, other types, and msgpack that claims what is not there."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final

import msgpack

_NUMBERS: Final = (
    *(0, 1, 2, 7, 255, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *((1 << 53), (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1),
)
_OTHERS: Final = (
    *(
        -1,
        -(1 << 63),
        math.nan,
        math.inf,
        1.5,
        True,
        False,
        None,
        "",
        "x",
        "\ud800",
        "\0",
        "é" * 300,
    ),
    *(b"", b"\xff", b"x" * 16, b"\x81" * 40, [], [[]], {}, {"a": {"b": []}}, {1: 2}, [0] * 5),
    msgpack.Timestamp(1, 1),
    msgpack.ExtType(5, b"ext"),
)
_BOMBS: Final = (
    b"\xdd\xff\xff\xff\xff",  # an array of 4 G
    b"\xdf\xff\xff\xff\xff",  # a map of 4 G
    b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x91" * 3000,
    b"\x81\xa1a" * 3000,
    b"\xdd\x00\x00\x40\x00" * 800 + bytes(20_000),  # arrays in arrays, each of 16 K entries
    b"\xdc\xff\xff" * 1000 + bytes(70_000),
    b"\xc1",
    b"\xd6\xff" + b"\xff" * 4,
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\x81\xc0\xc0",
    b"\x81\x91\x01\x01",
    b"",
    b"\x80",
    b"\x90",
    b"\x82\xa1r\x80\xa1r\x80",
)


def number(rng: Random, bits: int, before: int = 0) -> int:
    """Return an extreme that a field of so many bits can hold, or one close to what it held."""
    chosen = rng.choice((*_NUMBERS, before + 1, before - 1, before ^ 1 << rng.randrange(bits)))
    return chosen % (1 << bits)


def evil_bytes(rng: Random, before: bytes) -> bytes:
    """Return msgpack that is like ``before`` or not at all."""
    if rng.random() < 0.35:
        return rng.choice(_BOMBS)
    if rng.random() < 0.3 and before:
        found = bytearray(before)
        found[rng.randrange(len(found))] = rng.randrange(256)
        return bytes(found) + rng.choice((b"", b"", b"\xc0"))
    try:
        value = msgpack.unpackb(before, strict_map_key=False)
    except ValueError:
        value = {}
    return pack(evil(rng, value))


def pack(value: Any) -> bytes:
    """Return a value as msgpack, also one with lone surrogates."""
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


def evil(rng: Random, value: Any) -> Any:
    """Return a value with something in it replaced, left out, added or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        return _evil_map(rng, value)
    if isinstance(value, list) and value and rng.random() < 0.8:
        found = list(value)
        at = rng.randrange(len(found))
        act = rng.randrange(5)
        if act == 0:
            del found[at]
        elif act == 1:
            found.insert(at, found[at])
        elif act == 2:
            found.reverse()
        else:
            found[at] = evil(rng, found[at])
        return found
    if isinstance(value, int) and rng.random() < 0.5:
        return number(rng, 64, value)
    if isinstance(value, bytes) and rng.random() < 0.4:
        return evil_bytes(rng, value)
    return rng.choice((*_NUMBERS, *_OTHERS))


def _evil_map(rng: Random, value: dict[Any, Any]) -> dict[Any, Any]:
    found = dict(value)
    key = rng.choice(list(found))
    act = rng.randrange(6)
    if act == 0:
        del found[key]
    elif act == 1:
        found[rng.choice(("zz", b"r", 7, "", "\ud800"))] = found.pop(key)
    elif act == 2:
        found[rng.choice(("new", b"", "h", "w", "p", "r", "s"))] = rng.choice((*_NUMBERS, *_OTHERS))
    else:
        found[key] = evil(rng, found[key])
    return found
