"""StreamSet: which streams a fragment holds records of, small enough for its footer. Pure.

Few names are listed, so the answer is exact. Many go into a Bloom filter: what is denied is not there, and
one stream in a hundred and twenty is thought to be there although it is not, which costs a read. A set that
was damaged, or that a newer version wrote in another way, denies nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final, Self

from crc32c import crc32c

MOST_LISTED: Final = 32
MOST_LISTED_BYTES: Final = 1024
"""More names, or longer ones, are not listed."""
MOST: Final = 16384
"""A fragment of more streams does not say which."""
BITS_PER_NAME: Final = 10
HASHES: Final = 7
"""These two let through 0.8 % of the streams that are not there."""
MOST_HASHES: Final = 32
MOST_BITS_BYTES: Final = 64 << 10
"""A filter that asks for more work, or is longer, than three times what this version writes is not used."""

_HALVES: Final = struct.Struct("<QQ")


class StreamSet:
    """Answers whether records of a stream may be in a fragment. Immutable."""

    __slots__ = ("_bits", "_hashes", "_names")

    def __init__(
        self, *, names: Collection[str] | None = None, bits: bytes = b"", hashes: int = HASHES
    ) -> None:
        """Wrap names, or the bits of a filter, or neither; see :meth:`of` and :meth:`unknown`."""
        self._names = None if names is None else frozenset(names)
        self._bits = bits
        self._hashes = hashes

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """Return the set of these streams; of very many, one that denies nothing."""
        distinct = set(names)
        if len(distinct) <= MOST_LISTED and len(_listed(distinct)) <= MOST_LISTED_BYTES:
            return cls(names=distinct)
        if len(distinct) > MOST:
            return cls.unknown()
        bits = bytearray(-(-len(distinct) * BITS_PER_NAME // 8))
        for name in distinct:
            for at in _positions(name, 8 * len(bits), HASHES):
                bits[at >> 3] |= 1 << (at & 7)
        return cls(bits=bytes(bits))

    @classmethod
    def unknown(cls) -> Self:
        """Return a set that denies nothing."""
        return cls()

    @property
    def is_known(self) -> bool:
        """Whether anything can be denied."""
        return self._names is not None or bool(self._bits)

    @property
    def names(self) -> frozenset[str] | None:
        """All streams, if they are listed."""
        return self._names

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes."""
        names = self._names or ()
        return 200 + len(self._bits) + sum(100 + 4 * len(name) for name in names)

    def may_hold(self, name: str) -> bool:
        """Return False only if no record of the stream is there."""
        if self._names is not None:
            return name in self._names
        bits = self._bits
        if not bits:
            return True
        places = _positions(name, 8 * len(bits), self._hashes)
        return all(bits[at >> 3] >> (at & 7) & 1 for at in places)

    def to_text(self) -> str | None:
        """Return the set as ASCII text for a footer; None if it denies nothing."""
        if self._names is not None:
            text = "names " + _listed(self._names)
        elif self._bits:
            text = f"bloom {self._hashes} {base64.b64encode(self._bits).decode()}"
        else:
            return None
        return f"{crc32c(text.encode()):08x} {text}"

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """Read what :meth:`to_text` wrote; anything else gives a set that denies nothing."""
        data = text.encode() if isinstance(text, str) else text
        crc, _, rest = data.partition(b" ")
        if crc != b"%08x" % crc32c(rest):
            return cls.unknown()
        kind, _, content = rest.partition(b" ")
        try:
            if kind == b"names":
                return cls._of_listed(json.loads(content))
            if kind == b"bloom":
                hashes, _, bits = content.partition(b" ")
                return cls._of_bits(base64.b64decode(bits, validate=True), int(hashes))
        except (ValueError, RecursionError):
            pass  # not ours, although the checksum fits
        return cls.unknown()

    @classmethod
    def _of_listed(cls, names: object) -> Self:
        """Return the set of names out of a footer, if that is what they are."""
        is_sound = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return cls(names=names) if is_sound else cls.unknown()  # type: ignore[arg-type]

    @classmethod
    def _of_bits(cls, bits: bytes, hashes: int) -> Self:
        """Return the filter out of a footer, if it is one that this version can have written."""
        is_sound = 1 <= hashes <= MOST_HASHES and len(bits) <= MOST_BITS_BYTES
        return cls(bits=bits, hashes=hashes) if is_sound else cls.unknown()

    def __repr__(self) -> str:
        if self._names is not None:
            return f"<StreamSet {sorted(self._names)}>"
        return f"<StreamSet of {8 * len(self._bits)} bits>"


def _listed(names: Collection[str]) -> str:
    return json.dumps(sorted(names), separators=(",", ":"))


def _positions(name: str, bits: int, hashes: int) -> Iterator[int]:
    """Yield which bits of a filter stand for a name."""
    first, step = _halves(name)
    for number in range(hashes):
        yield (first + number * step) % bits


@lru_cache(maxsize=1024)
def _halves(name: str) -> tuple[int, int]:
    """Return two numbers out of a name; a reader asks many fragments for the same one."""
    first, step = _HALVES.unpack_from(hashlib.sha3_256(name.encode()).digest())
    return first, step | 1
