"""A log that is only numbers, for tests of what looks at logs."""

from __future__ import annotations

from typing import Any

from walstore import CopyStatistics, GroupStatistics, Statistics
from walstore.core.runtime.statistics import CopyScrub, ScrubRound, UploadStatistics

_NOTHING: dict[str, Any] = {
    "head": 1,
    "local_head": 1,
    "tail": 1,
    "durable_limit": 1,
    "uploaded_limit": 1,
    "epoch": 1,
    "segments": 1,
    "waiting_bytes": 0,
    "waiting_records": 0,
    "appended_records": 0,
    "appended_bytes": 0,
    "commits": 0,
    "rotations": 0,
    "cache_bytes": 0,
    "cache_hits": 0,
    "cache_evictions": 0,
    "file_reads": 0,
    "tier_reads": 0,
    "tier_failure": None,
}


GROUP = GroupStatistics("workers", 1, 2, 3, 4, 5, 6, 7)
COPY = CopyStatistics("tls://b:7430", is_present=False, limit=3, lag=7)
SCRUB = ScrubRound(
    number=2,
    is_asked=False,
    checked_bytes=5,
    total_bytes=9,
    ended_us=1_700_000_000_000_000,
    copies=(
        CopyScrub(
            address="",
            checked_bytes=5,
            damaged_segments=2,
            mended_bytes=3,
            left={"1.wal": "batch is damaged"},
            trouble=None,
        ),
    ),
)
UPLOAD = UploadStatistics(1, 2, 3, 4, 5, 0.6, 0.7)


class NumbersLog:
    """Implements ``ObservedLog`` with values that a test sets: ``log.set(commits=3)``."""

    def __init__(self, **values: Any) -> None:
        self._values = _NOTHING | values

    def set(self, **values: Any) -> None:
        self._values = self._values | values

    def statistics(self) -> Statistics:
        return Statistics(**self._values)
