"""Who appended a record of the demo, and as its how-manieth: what its key says. Pure.

All records of one append share a key. It says which of the producer's records the first of them is and
how many they are, so a reader can tell a record that is missing, comes twice, or stands alone although
its group was to be atomic.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

KEY: Final = struct.Struct(">HQI")
"""Number of the producer; number of the group's first record among the producer's; records of the group."""

PRODUCERS_PER_LIFE: Final = 100
"""Producer 7 of the second life is number 207, so that no number is ever used by two."""


def producer_number(life: int, index: int) -> int:
    """Return the number of a producer of a life of the writing process, counted from 1."""
    return life * PRODUCERS_PER_LIFE + index


def digest(values: Sequence[bytes], before: int) -> int:
    """Return the checksum over a producer's values, given that of the ones before.

    It does not matter how the values are cut into calls.
    """
    return crc32c(b"\n".join([*values, b""]), before)
