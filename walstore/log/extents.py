"""Which file or object holds which records of an open log, and what keeps the oldest."""

from __future__ import annotations

from walstore.core.append.log_state import LogState
from walstore.core.format.segment import file_name
from walstore.core.tier_port import DescribedTier, Extent, LogExtents
from walstore.log.retention_plan import RetentionPlan


def look_at_extents(
    state: LogState, tier: object, tier_url: str | None, plan: RetentionPlan | None
) -> LogExtents:
    """Return where the records are. Belongs to the event loop of the log."""
    segments = []
    for segment in state.segments.values():
        summary, name = segment.summary, file_name(segment.start)
        if summary is None:
            segments.append(Extent(segment.start, state.durable.value, None, "active", name))
        else:
            size = summary.data_bytes
            segments.append(Extent(segment.start, summary.limit, size, "sealed", name))
    stored = tier.extents if isinstance(tier, DescribedTier) else ()
    decisions = [str(one) for one in plan.decisions] if plan else ()
    return LogExtents(segments, stored, decisions, tier_url)
