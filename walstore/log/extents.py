"""LogExtents: which file or object holds which records of an open log, and what keeps the oldest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from walstore.append.state import LogState
from walstore.log.retention_plan import RetentionPlan
from walstore.ports import DescribedTier, Extent


class LogExtents(NamedTuple):
    """Where the records of a log are."""

    segments: Sequence[Extent]
    """The files on this disk, oldest first; the last is the one that is written."""
    stored: Sequence[Extent]
    """What the tier's manifest names, oldest first; empty without a tier, or one that does not tell."""
    retention: Sequence[str]
    """What retention last found that should be deleted, and why it was kept if it was."""


def look_at_extents(state: LogState, tier: object, plan: RetentionPlan | None) -> LogExtents:
    """Return where the records are. Belongs to the event loop of the log."""
    segments = []
    for segment in state.segments.values():
        summary = segment.summary
        if summary is None:
            segments.append(Extent(segment.start, state.durable.value, None, "active"))
        else:
            segments.append(Extent(segment.start, summary.limit, summary.data_bytes, "sealed"))
    stored = tier.extents if isinstance(tier, DescribedTier) else ()
    return LogExtents(segments, stored, [str(one) for one in plan.decisions] if plan else ())
