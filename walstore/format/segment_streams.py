"""SegmentStreams: the streams with records in a segment, small enough for its footer. Pure.

Names are stored as their CRC-32C. If two names have the same CRC, one may be reported as present
although it is not, which costs a read. A stream reported as absent is always absent.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import islice
from operator import ge
from typing import Final, Self

from crc32c import crc32c

from walstore.format.packed import MalformedError

MOST: Final = 16384
"""A segment with more streams does not list them."""
_SWAP: Final = sys.byteorder == "big"


class SegmentStreams:
    """Answers whether records of a stream may be in a segment.

    Only the appending thread adds names, and only to an object that began empty.
    """

    __slots__ = ("_hashes",)

    ENTRY_BYTES: Final = 4

    def __init__(self) -> None:
        """Begin empty: the segment has no record of any stream yet."""
        self._hashes: set[int] | array[int] | None = set()

    @classmethod
    def unknown(cls) -> Self:
        """Return one that excludes no stream, for a segment whose streams are not known."""
        found = cls()
        found._hashes = None
        return found

    @property
    def is_known(self) -> bool:
        """Whether any stream can be excluded."""
        return self._hashes is not None

    def __len__(self) -> int:
        return 0 if self._hashes is None else len(self._hashes)

    def add(self, names: Collection[str]) -> None:
        """Add streams that have records in the segment."""
        hashes = self._hashes
        if not names or not isinstance(hashes, set):
            return
        hashes.update(map(_hash, names))
        if len(hashes) > MOST:
            self._hashes = None

    def may_hold(self, name: str) -> bool:
        """Return False only if the segment has no record of the stream."""
        hashes = self._hashes
        if hashes is None:
            return True
        if isinstance(hashes, set):
            return _hash(name) in hashes
        wanted = _hash(name)
        at = bisect_left(hashes, wanted)
        return at < len(hashes) and hashes[at] == wanted

    def to_bytes(self) -> bytes:
        """Return the hashes in ascending order, as little-endian u32."""
        hashes: Iterable[int] = () if self._hashes is None else self._hashes
        column = array("I", sorted(hashes))
        if _SWAP:
            column.byteswap()
        return column.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Rebuild from :meth:`to_bytes` of one that was known; MalformedError for anything else."""
        if len(data) % cls.ENTRY_BYTES or len(data) > MOST * cls.ENTRY_BYTES:
            raise MalformedError(f"a list of streams of {len(data)} bytes")
        column = array("I")
        column.frombytes(data)
        if _SWAP:
            column.byteswap()
        if any(map(ge, column, islice(column, 1, None))):
            raise MalformedError("a list of streams that does not ascend")
        found = cls()
        found._hashes = column
        return found


def _hash(name: str) -> int:
    return int(crc32c(name.encode()))
