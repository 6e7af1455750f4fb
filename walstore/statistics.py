"""Statistics: a snapshot of a log's counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a log looked like at one moment. Counters count since it was opened."""

    head: int
    """First offset that can be read from any tier."""
    local_head: int
    """First offset on local disk."""
    tail: int
    """Next offset to be assigned."""
    durable_limit: int
    """Every offset below is on disk."""
    uploaded_limit: int
    """Every offset below is named by the cloud tier's manifest."""
    epoch: int
    """How often the log has been opened for writing."""
    segments: int
    """Segment files on local disk, the active one included."""
    waiting_bytes: int
    """Bytes accepted and not yet on disk."""
    waiting_records: int
    """Records accepted and not yet on disk."""
    appended_records: int
    """Records that became durable."""
    appended_bytes: int
    """Bytes of frames that became durable."""
    commits: int
    """Writes with their syncs."""
    rotations: int
    """Segments sealed."""
    cache_bytes: int
    """Bytes of batches in memory."""
    cache_hits: int
    """Reads served from memory."""
    cache_evictions: int
    """Batches that left memory."""
    file_reads: int
    """Reads served from segment files."""
    tier_reads: int
    """Reads served from the cloud tier."""
    tier_failure: str | None
    """Why shipping to the cloud ended before the log was closed; None while all is well."""
