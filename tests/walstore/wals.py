"""What the tests of a Wal share: settings, and names in its directory."""

from __future__ import annotations

from tests.local import (
    SMALL,
)

ACTIVE = "next.tmp"
"""The name under which a new segment was opened; its calls keep it."""


TINY = SMALL.replace(max_record_bytes=1000, channel_bytes=1000)
