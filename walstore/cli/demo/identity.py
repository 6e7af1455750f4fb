"""Who appended a record of the demo, and as its how-manieth: what its key says. Pure."""

from __future__ import annotations

import struct
import zlib
from typing import Final

KEY: Final = struct.Struct(">HQ")
"""Key of every record: number of the producer, and the record's number among those of the producer."""

PRODUCERS_PER_LIFE: Final = 100
"""Producer 7 of the second life is number 207, so that no number is ever used by two."""


def producer_number(life: int, index: int) -> int:
    """Return the number of a producer of a life of the writing process, counted from 1."""
    return life * PRODUCERS_PER_LIFE + index


def digest(key: bytes, value: bytes, before: int) -> int:
    """Return the checksum over a producer's records, given that of the ones before."""
    return zlib.crc32(value, zlib.crc32(key, before))
