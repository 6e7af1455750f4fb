"""Statistics: a snapshot of a log's counters, and the count of its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from walstore.errors import WalClosedError, WouldBlock

_NOT_COUNTED: Final = (WalClosedError, WouldBlock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot of a log. Counters count since it was opened.

    If taken on another thread than the log's event loop, each value is correct, but two of them may be
    from slightly different moments.
    """

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
    recovery_truncated_bytes: int = 0
    """Bytes of an unfinished batch, or seal, that were cut off when the log was opened."""
    waiting_bytes: int
    """Bytes accepted and not yet written."""
    waiting_records: int
    """Records accepted and not yet written."""
    durable_lag_seconds: float = 0.0
    """Time since the oldest unsynced record was accepted; 0 if there is none."""
    blocked_appends: int = 0
    """Callers that wait for room in the channel; their records are not accepted yet."""
    appended_records: int
    """Records written by commits."""
    appended_bytes: int
    """Bytes of their frames."""
    commits: int
    """Commits: writes, each with a sync unless the log's policy syncs later."""
    rotations: int
    """Segments sealed."""
    transactions_committed: int = 0
    """Transactions that committed, those without records included."""
    transactions_rolled_back: int = 0
    """Transactions that ended without a commit: by an exception, a cancellation or a failed check."""
    spilled_bytes: int = 0
    """Bytes that transactions wrote to files of their own because they exceeded their memory."""
    cache_bytes: int
    """Bytes of batches in memory."""
    cache_hits: int
    """Reads served from memory."""
    cache_read_bytes: int = 0
    """Bytes of batches that these reads returned."""
    cache_evictions: int
    """Batches that left memory."""
    file_reads: int
    """Reads served from segment files."""
    file_read_bytes: int = 0
    """Bytes of batches that these reads returned."""
    tier_reads: int
    """Reads served from the cloud tier."""
    tier_read_bytes: int = 0
    """Bytes of batches that these reads returned."""
    healed_reads: int = 0
    """Reads and searches for a time that were served from the cloud tier because a segment file is
    damaged, missing or unreadable. Above 0: run ``walstore verify``, then ``walstore repair --from-tier``."""
    readers: int = 0
    """Live readers that follow the log."""
    reader_lag_records: int = 0
    """Durable records that the slowest of them has not delivered yet."""
    cursor_lag_records: Mapping[str, int] = field(default_factory=dict)
    """For each cursor with a handle in this process, by name: visible records that it has not passed."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors by the name of their type; see :class:`ErrorCounts` for which."""
    failure: str | None = None
    """Why the log failed and must be opened again; None while it has not failed."""
    tier_failure: str | None
    """Why shipping to the cloud ended before the log was closed, or why it waits for an operator before it
    resumes by itself (refused credentials, for example); None while it works."""


class ErrorCounts:
    """Counts a log's errors by type.

    It counts failures of the log and of its tier, refused records and transactions, and failed reads.
    It does not count :class:`WouldBlock`, which makes the caller wait, :class:`WalClosedError`, whose
    cause was counted before, and errors of arguments.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, error: BaseException) -> None:
        """Count an error. Called on the log's event loop."""
        if not isinstance(error, _NOT_COUNTED):
            name = type(error).__name__
            self._counts[name] = self._counts.get(name, 0) + 1

    def snapshot(self) -> dict[str, int]:
        """Return the counts by type name. May be called on any thread."""
        return self._counts.copy()
