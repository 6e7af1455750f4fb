"""Retention: which sealed segments may go. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from walstore.segment import SegmentSummary


def plan_drop(
    sealed: Sequence[SegmentSummary], *, uploaded_limit: int, retention_bytes: int
) -> int:
    """Return the limit below which sealed segments are to be deleted; 0 for none.

    Only segments that are uploaded wholly are considered, oldest first, and only while the sealed
    segments together exceed ``retention_bytes``. ``sealed`` is in offset order.
    """
    excess = sum(summary.data_bytes for summary in sealed) - retention_bytes
    limit = 0
    for summary in sealed:
        if excess <= 0 or summary.limit > uploaded_limit:
            break
        limit = summary.limit
        excess -= summary.data_bytes
    return limit
