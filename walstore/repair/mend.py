"""Putting a single flipped bit of a batch right. Pure: bytes in, bytes out.

A CRC-32C tells any two single flipped bits of a frame apart, so if one bit explains the damage it is found
by trying. That other damage looks like one flipped bit is possible, though: by chance one in 2**32 for each
bit tried. That is why bits of a body are only tried up to :data:`MOST_BYTES`, which keeps the odds below one
in 100 000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from walstore import frame
from walstore.recovery import Chain

MOST_BYTES: Final = 4096
"""Length up to which bits behind a frame's header are tried."""


class Mended(NamedTuple):
    """A frame with one bit put right."""

    data: bytes
    header: frame.FrameHeader
    position: int
    """Which byte of the frame was wrong."""


def mend(
    read: Callable[[int], bytes], size_bytes: int, chain: Chain, place: bytes
) -> Mended | None:
    """Return the frame that continues the log at ``chain`` if flipping one bit yields it, or None.

    ``read(size)`` returns so many bytes from where the frame begins, of which there are ``size_bytes``;
    ``place`` is :func:`walstore.frame.place` of that position.
    """
    if size_bytes < frame.HEADER_BYTES + frame.TRAILER.size:
        return None
    data = read(min(size_bytes, MOST_BYTES))
    head = data[: frame.HEADER_BYTES]
    for position, candidate in _flipped(head, 0):
        header = frame.parse_header(memoryview(candidate), 0)
        if header is None or not chain.follows(header) or header.length > size_bytes:
            continue
        if header.length > len(data):
            data = read(header.length)
        whole = candidate + data[frame.HEADER_BYTES : header.length]
        if frame.is_whole(memoryview(whole), header, place):
            return Mended(whole, header, position)
    header = frame.parse_header(memoryview(head), 0)
    if header is None or not chain.follows(header) or header.length > min(size_bytes, MOST_BYTES):
        return None
    for position, candidate in _flipped(data[: header.length], frame.HEADER_BYTES):
        if frame.is_whole(memoryview(candidate), header, place):
            return Mended(candidate, header, position)
    return None


def _flipped(data: bytes, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yield the data with each one of its bits flipped, from byte ``begin`` on."""
    changed = bytearray(data)
    for position in range(begin, len(data)):
        for bit in range(8):
            changed[position] ^= 1 << bit
            yield position, bytes(changed)
            changed[position] ^= 1 << bit
