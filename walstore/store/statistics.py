"""StoreStatistics: a snapshot of what the logs of a store share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Counters of a store. Those of a single log are its own, see :class:`walstore.Statistics`."""

    open_logs: int
    """Logs that are open now."""
    opened_logs: int
    """Logs that were opened since the store was."""
    logs_with_files: int
    """Open logs that have descriptors; the others are parked."""
    parkings: int
    """How often a log's files were closed to make room for another's."""
    cache_bytes: int
    """Bytes of recent batches that all logs keep in memory."""
    channel_bytes: int
    """Bytes that all logs have accepted and not yet on disk, including leased room."""
    waiting_logs: int
    """Logs that wait for a share of the channel budget."""
