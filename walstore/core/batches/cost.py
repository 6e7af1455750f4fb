"""Cost: what records take in memory, by which all budgets count them. Pure.

A record is more than its bytes: Python keeps an object for it and for each of its parts. For short records
that is most of what they take, so budgets that counted bytes alone held ten times what they allowed.
"""

from __future__ import annotations

from typing import Final

from walstore.records import Record

RECORD_COST_BYTES: Final = 256
"""Of a record that is an object, with its value and its offset, in addition to their bytes."""
FRAME_COST_BYTES: Final = 128
"""Of a frame that is one object, in addition to its bytes."""
BATCH_RECORDS: Final = 16_384
"""Maximum records of one batch, except for a larger group: readers unpack a batch at once, and many tiny
records would block the event loop."""
PART_COST_BYTES: Final = 48
"""Of each value, key, stream, time or headers in a batch that is being built, in addition to its bytes."""


def cost_of(record: Record) -> int:
    """Return about how many bytes a record takes, its parts included."""
    parts = len(record.value) + len(record.key or b"") + len(record.stream or "")
    headers = sum(
        len(name) + len(value) + RECORD_COST_BYTES for name, value in record.headers.items()
    )
    return RECORD_COST_BYTES + parts + headers
