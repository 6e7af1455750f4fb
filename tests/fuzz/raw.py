"""Raw damage: what disks, crashes and people do to a file. No checksum is put right afterwards."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.fuzz.bases import Base

_MOST_BYTES: Final = 64 << 10

Damage = Callable[[Random, bytes, Base], bytes]


def _flip(rng: Random, data: bytes, base: Base) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(found))
        found[at] ^= 1 << rng.randrange(8)
    return bytes(found)


def _overwrite(rng: Random, data: bytes, base: Base) -> bytes:
    at = rng.randrange(len(data))
    size = rng.choice((1, 2, 4, 8, 64, 512))
    return data[:at] + rng.randbytes(min(size, len(data) - at)) + data[at + size :]


def _truncate(rng: Random, data: bytes, base: Base) -> bytes:
    return data[: rng.choice((0, 1, 8, 63, 64, len(data) - 1, rng.randrange(len(data))))]


def _extend(rng: Random, data: bytes, base: Base) -> bytes:
    size = rng.choice((1, 7, 8, 512, 4096, _MOST_BYTES))
    own = data * (size // len(data) + 1)
    return data + rng.choice((bytes(size), rng.randbytes(size), own[:size]))


def _splice(rng: Random, data: bytes, base: Base) -> bytes:
    other = base.files[rng.choice(sorted(base.files))] or b"\0"
    low = rng.randrange(len(other))
    high = rng.randrange(low, len(other)) + 1
    at = rng.randrange(len(data))
    end = rng.choice((at, min(at + high - low, len(data)), len(data)))
    return data[:at] + other[low:high] + data[end:]


def _zero(rng: Random, data: bytes, base: Base) -> bytes:
    size = rng.choice((8, 64, 512, 4096))
    at = rng.randrange(len(data)) // 8 * 8
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


def _double(rng: Random, data: bytes, base: Base) -> bytes:
    size = rng.choice((8, 64, 512))
    low, at = rng.randrange(len(data)) // 8 * 8, rng.randrange(len(data)) // 8 * 8
    block = data[low : low + size]
    return data[:at] + block + data[at + (len(block) if rng.random() < 0.5 else 0) :]


def _replace(rng: Random, data: bytes, base: Base) -> bytes:
    return rng.choice((b"", rng.randbytes(len(data)), bytes(len(data)), rng.randbytes(3)))


KINDS: Final[dict[str, Damage]] = {
    "flip": _flip,
    "overwrite": _overwrite,
    "truncate": _truncate,
    "extend": _extend,
    "splice": _splice,
    "zero": _zero,
    "double": _double,
    "replace": _replace,
}


def damage(rng: Random, files: dict[str, bytes], base: Base) -> str:
    """Damage one of the files; return which file and how."""
    name = rng.choice(sorted(files))
    kind = rng.choice(sorted(KINDS))
    if not files[name]:
        kind = "extend"
        files[name] = b"\0"
    files[name] = KINDS[kind](rng, files[name], base)
    return f"{kind} {name}"
