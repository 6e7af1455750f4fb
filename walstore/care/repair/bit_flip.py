"""Correcting a single flipped bit of a batch or of a segment's header. Pure: bytes in, bytes out.

A CRC-32C distinguishes any two single flipped bits of a frame, so if one bit explains the damage it is found
by trying. Other damage may look like one flipped bit by chance, with odds of one in 2**32 for each bit
tried. So bits of a body are tried only up to :data:`MOST_BYTES`, which keeps the odds below one in 100 000.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from walstore.core.format import frame, segment
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader
from walstore.errors import CorruptionError, FormatVersionError

_MAGIC: Final = frame.FRAME_MAGIC.to_bytes(4, "little")
_CRC_AND_LENGTH: Final = struct.Struct("<II")
_LENGTH_AT: Final = 8

MOST_BYTES: Final = 4096
"""Greatest length of a frame whose bits after the header are tried."""


class Mended(NamedTuple):
    """A frame with one bit corrected."""

    data: bytes
    header: frame.FrameHeader
    position: int
    """Which byte of the frame was wrong."""


def mend(
    read: Callable[[int], bytes], size_bytes: int, chain: Chain, place: bytes
) -> Mended | None:
    """Return the frame that continues the log at ``chain`` if flipping one bit yields it, or None.

    ``read(size)`` returns the first ``size`` of the ``size_bytes`` bytes from the beginning of the frame on;
    ``place`` is :func:`walstore.core.format.frame.place` of that position. The frame's bytes are hashed once.
    """
    if size_bytes < frame.HEADER_BYTES + frame.TRAILER.size:
        return None
    head = read(frame.HEADER_BYTES)
    for position, candidate in _flipped(head, _LENGTH_AT, _LENGTH_AT + 4):
        header = frame.parse_header(memoryview(candidate), 0)
        if header is not None and header.length <= size_bytes and chain.follows(header):
            found = _checked(candidate + read(header.length)[len(head) :], position, chain, place)
            if found is not None:
                return found
    right = _MAGIC + head[len(_MAGIC) :]
    crc, length = _CRC_AND_LENGTH.unpack_from(right, len(_MAGIC))
    if not frame.HEADER_BYTES + frame.TRAILER.size <= length <= size_bytes:
        return None
    data = read(length)
    for position, mask in _flips(right, data, crc, place, is_magic_right=right == head):
        mended = bytearray(data)
        mended[position] ^= mask
        found = _checked(bytes(mended), position, chain, place)
        if found is not None:
            return found
    return None


def mend_header(data: bytes, start: int, path: Path) -> SegmentHeader | None:
    """Return a segment's original header if one flipped bit explains its damage, by its CRC; else None."""
    for _, mended in _flipped(data, 0, len(data)):
        try:
            header = segment.decode_header(mended, str(path))
        except (CorruptionError, FormatVersionError):
            continue
        return header if header.start == start else None
    return None


def _flips(
    head: bytes, data: bytes, crc: int, place: bytes, *, is_magic_right: bool
) -> Iterator[tuple[int, int]]:
    """Yield byte and mask of the single flipped bits that explain the CRC."""
    body_crc = crc32c(memoryview(data)[frame.HEADER_BYTES :])
    wrong = crc32c(head[frame.CRC_FROM :] + place, body_crc) ^ crc
    if not is_magic_right:
        flipped = int.from_bytes(data[:4], "little") ^ frame.FRAME_MAGIC
        if not wrong and flipped.bit_count() == 1:
            bit = flipped.bit_length() - 1
            yield bit // 8, 1 << bit % 8
        return
    if wrong.bit_count() == 1:
        bit = wrong.bit_length() - 1
        yield 4 + bit // 8, 1 << bit % 8
    # How flipping a bit changes the CRC depends only on the number of covered bytes that follow. So, from the
    # last byte backwards, the change is taken back by a byte until it is that of a bit in a last byte.
    covered = [*range(frame.HEADER_BYTES, len(data)), *range(frame.CRC_FROM, frame.HEADER_BYTES)]
    if len(data) > MOST_BYTES:
        covered = covered[-(frame.HEADER_BYTES - frame.CRC_FROM) :]
    for _ in place:
        wrong = _unshifted(wrong)
    for position in reversed(covered):
        if wrong in _MASKS:
            yield position, _MASKS[wrong]
        wrong = _unshifted(wrong)


def _unshifted(change: int) -> int:
    """Return the change of a CRC that becomes ``change`` after one more byte."""
    byte = _LAST_BYTES[change >> 24]
    return (change ^ _TABLE[byte]) << 8 | byte


def _checked(data: bytes, position: int, chain: Chain, place: bytes) -> Mended | None:
    """Return the frame if it is whole and continues the log."""
    header = frame.parse_header(memoryview(data), 0)
    if header is None or not chain.follows(header):
        return None
    if not frame.is_whole(memoryview(data), header, place):
        return None
    return Mended(data, header, position)


def _flipped(data: bytes, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the data with each one of its bits in ``[begin, end)`` flipped."""
    changed = bytearray(data)
    for position in range(begin, end):
        for bit in range(8):
            changed[position] ^= 1 << bit
            yield position, bytes(changed)
            changed[position] ^= 1 << bit


_TABLE: Final = [crc32c(bytes([byte])) ^ crc32c(b"\0") for byte in range(256)]
"""Contribution of each last byte to a CRC."""
_LAST_BYTES: Final = {change >> 24: byte for byte, change in enumerate(_TABLE)}
"""The byte by the highest eight bits of its contribution, which are different for each."""
_MASKS: Final = {_TABLE[1 << bit]: 1 << bit for bit in range(8)}
"""Mask of a single bit of a last byte by its contribution."""
