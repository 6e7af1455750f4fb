"""Column selection: picks rows from the columns of a frame without decoding the others. Pure.

Rows are counted from 0 and given in ascending order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain, compress
from typing import TypeVar

from walstore.core.format import frame

_T = TypeVar("_T")

_AT_ONCE = 16
_DENSE = 16
"""If more than one in this many rows is wanted, one pass over all rows costs less than separate
searches."""
_DENSE_BLOBS = 8
"""The same for finding where each wanted item of a column of bytes begins."""


def split_even(blob: memoryview, size: int) -> list[bytes]:
    """Return the items of a column of adjacent items that are all ``size`` bytes long."""
    if len(blob) < 2 * _AT_ONCE * size:
        data = bytes(blob)
        return [data[at : at + size] for at in range(0, len(data), size)]
    # Sixteen items per call of struct take a third of the time of sixteen slices.
    several = struct.Struct(f"{size}s" * _AT_ONCE)
    even = len(blob) - len(blob) % several.size
    found: list[bytes] = list(chain.from_iterable(several.iter_unpack(blob[:even])))
    found += [bytes(blob[at : at + size]) for at in range(even, len(blob), size)]
    return found


def pick(column: Sequence[_T], rows: Sequence[int]) -> Sequence[_T]:
    """Return the entries of a decoded column at ``rows``; the column itself if those are all."""
    if isinstance(rows, range):
        return column if len(rows) == len(column) else column[rows.start : rows.stop]
    return [column[row] for row in rows]


def rows_of(wanted: int, data: memoryview, encoding: int, count: int) -> Sequence[int]:
    """Return the rows at which an integer column of ``count`` entries has the value ``wanted``.

    A range if that is all of them or none.
    """
    if encoding == frame.CONSTANT:
        return range(count) if frame.decode_uints(data, encoding, 1)[0] == wanted else range(0)
    packed = bytes(data)
    if wanted >= 1 << 8 * encoding:
        return range(0)
    if encoding == 1 and packed.count(wanted) * _DENSE > count:
        marks = bytearray(256)
        marks[wanted] = 1
        return list(compress(range(count), packed.translate(marks)))
    found: list[int] = []
    needle = wanted.to_bytes(encoding, "little")
    at = packed.find(needle)
    while at >= 0:
        row, rest = divmod(at, encoding)
        if not rest:
            found.append(row)
        at = packed.find(needle, at + 1)
    return found


def pick_blobs(blob: memoryview, lengths: Sequence[int], rows: Sequence[int]) -> list[bytes]:
    """Return the items at ``rows`` of a column of adjacent items with the given lengths."""
    if len(rows) * _DENSE_BLOBS > len(lengths):
        data = bytes(blob)
        bounds = list(accumulate(lengths, initial=0))
        return [data[bounds[row] : bounds[row + 1]] for row in rows]
    found: list[bytes] = []
    at = behind = 0
    for row in rows:
        at += sum(lengths[behind:row])
        limit = at + lengths[row]
        found.append(bytes(blob[at:limit]))
        at, behind = limit, row + 1
    return found


def pick_even_blobs(blob: memoryview, size: int, rows: Sequence[int]) -> list[bytes]:
    """As :func:`pick_blobs`, for items that are all ``size`` bytes long."""
    return [bytes(blob[row * size : (row + 1) * size]) for row in rows]


def pick_optional_blobs(
    blob: memoryview, sizes: Sequence[int], rows: Sequence[int]
) -> list[bytes | None]:
    """As :func:`pick_blobs`, for a column in which size 0 means None and size n + 1 means n bytes."""
    found: list[bytes | None] = []
    at = behind = 0
    for row in rows:
        passed = sizes[behind:row]
        at += sum(passed) - len(passed) + passed.count(0)
        size = sizes[row]
        limit = at + max(size - 1, 0)
        found.append(bytes(blob[at:limit]) if size else None)
        at, behind = limit, row + 1
    return found
