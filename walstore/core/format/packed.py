"""Packed: reads msgpack from a file whose structure the caller knows. Pure.

A checksum shows that bytes are what was written, not that a correct program wrote them. So every type
is checked, and nothing is allocated on the word of a stored length: msgpack allocates a whole array
before its entries are read, and nested arrays multiply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import msgpack

MOST_OFFSET: Final = (1 << 62) - 1
"""No offset, position or epoch in a file is higher; sums of two still fit 64 bits."""
MOST_START: Final = MOST_OFFSET >> 1
"""No log is made on disk that begins behind it, so that offsets do not run out."""
MOST_TIMESTAMP_US: Final = (1 << 63) - 1
"""Latest time of a record, in microseconds since 1970 UTC."""
MOST_SEQUENCE: Final = (1 << 63) - 1
"""Highest number that an idempotent producer may give an append."""
SMALL_BYTES: Final = 2048
"""Up to this size the content cannot claim much memory, so it may be unpacked in one call."""
_NIL: Final = b"\xc0"
_TEXT: Final = frozenset((str,))

_T = TypeVar("_T")


class MalformedError(ValueError):
    """Bytes with a right checksum that no writer makes: damaged before it was computed, or forged."""

    position: int | None = None
    """Byte in the file, if it is known."""


def require(value: object, kind: type[_T], what: str) -> _T:
    """Return ``value`` if it is of exactly that type; MalformedError otherwise."""
    if type(value) is not kind:
        raise MalformedError(f"{what} is not {kind.__name__}: {value!r:.80}")
    return value


def require_number(value: object, what: str, *, least: int = 0, most: int = MOST_OFFSET) -> int:
    """Return ``value`` if it is a whole number of ``[least, most]``; MalformedError otherwise."""
    if type(value) is not int or not least <= value <= most:
        raise MalformedError(f"{what} is not a number of {least} to {most}: {value!r:.80}")
    return value


class Packed:
    """One msgpack value, unpacked step by step. Every method raises MalformedError."""

    def __init__(self, data: bytes | memoryview, what: str, *, longest_row: int = 0) -> None:
        """``what`` is named in errors. Arrays in values have at most ``longest_row`` entries."""
        self._what = what
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(data), 1), max_array_len=longest_row, max_ext_len=0
        )
        self._size = len(data)
        self._unpacker.feed(data)

    def fields(self) -> Iterator[str]:
        """Yield the keys of a map; read the value of each before the next. Duplicate keys are refused."""
        seen: set[str] = set()
        for _ in range(self._length(self._unpacker.read_map_header)):
            name = require(self.value(), str, f"a key of {self._what}")
            if name in seen:
                raise MalformedError(f"{self._what} with {name!r} twice")
            seen.add(name)
            yield name

    def rows(self) -> Iterator[Any]:
        """Yield the entries of an array."""
        for _ in range(self._length(self._unpacker.read_array_header)):
            yield self.value()

    def value(self) -> Any:
        """Return the next value whole."""
        try:
            return self._unpacker.unpack()
        except _UNREADABLE as error:
            raise _unreadable(self._what, error) from None

    def end(self) -> None:
        """Check that nothing follows."""
        if self._unpacker.tell() != self._size:
            raise MalformedError(
                f"{self._what} with {self._size - self._unpacker.tell()} bytes more"
            )

    def _length(self, read: Any) -> int:
        try:
            return int(read())
        except _UNREADABLE as error:
            raise _unreadable(self._what, error) from None


# Exceptions of msgpack for invalid bytes.
_UNREADABLE: Final = (ValueError, TypeError, RecursionError, msgpack.UnpackException)


def _unreadable(what: str, error: BaseException) -> MalformedError:
    return MalformedError(f"{what} that cannot be read: {error}")


def unpack_pairs(data: bytes, what: str) -> Sequence[tuple[str, Any]]:
    """Return the keys and values of a map with texts for keys, each once; MalformedError otherwise.

    For at most :data:`SMALL_BYTES`: however nested, the result takes little memory.
    """
    try:
        unpacked = msgpack.unpackb(data, object_pairs_hook=tuple)
    except _UNREADABLE as error:
        raise _unreadable(what, error) from None
    pairs: tuple[tuple[str, Any], ...] = require(unpacked, tuple, what)
    names = {require(name, str, f"a key of {what}") for name, _ in pairs}
    if len(names) != len(pairs):
        raise MalformedError(f"{what} with a key twice")
    return pairs


def unpack_names(data: memoryview | bytes) -> list[str]:
    """Return an array of texts; MalformedError for anything else."""
    if len(data) > SMALL_BYTES:
        packed = Packed(data, "names")
        found = list(packed.rows())
        packed.end()
    else:
        try:
            unpacked = msgpack.unpackb(data)
        except _UNREADABLE as error:
            raise _unreadable("names", error) from None
        found = require(unpacked, list, "what should be names")
    if not _TEXT.issuperset(map(type, found)):
        raise MalformedError("a name that is not text")
    return found


def unpack_headers(
    data: memoryview | bytes, sizes: Sequence[int], missing: Mapping[str, bytes]
) -> Sequence[Mapping[str, bytes]]:
    """Return the adjacent maps from text to bytes in ``data``; MalformedError otherwise.

    There is one for each nonzero entry of ``sizes``; ``missing`` is used for the others.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1, max_array_len=0, max_ext_len=0)
    try:
        unpacker.feed(data)
        unpacker.feed(_NIL)  # becomes part of a truncated map
        maps: list[Any] = list(unpacker)
        is_cut = not maps or maps.pop() is not None
        # Fails for anything but a map, text or bytes; checking each type would take twice as long.
        "".join(chain.from_iterable(maps))
        b"".join(chain.from_iterable(map(dict.values, maps)))
    except _UNREADABLE as error:
        raise _unreadable("headers", error) from None
    absent = sizes.count(0)
    if is_cut or len(maps) + absent != len(sizes):
        raise MalformedError("headers that are not one map for each record")
    if not absent:
        return maps
    following = iter(maps)
    return [next(following) if size else missing for size in sizes]
