"""Commit: what one commit did, and what became of one that failed. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from walstore.batch import FrameBatch
from walstore.errors import Outcome
from walstore.segment_file import Segment


class Commit(NamedTuple):
    """What one commit did."""

    batches: list[FrameBatch]
    """Batches with records, in order. A large transaction has none here: it is a segment of its own."""
    limit: int
    """Offset after the last record written."""
    durable_limit: int
    """Every offset below it is synced."""
    is_synced: bool
    """Whether all of it is."""
    serial: int
    """Highest number of an append that changed the ledger; 0 if none did."""
    sealed: list[Segment]
    """Segments that were sealed on the way, oldest first."""
    active: Segment
    size_bytes: int
    """Bytes of frames written."""
    head: int
    """First retained offset."""
    registers: Mapping[str, str] | None
    """All registers, if some changed."""
    sync_seconds: float | None = None
    """How long the sync at its end took; None if there was none."""


class CommitError(Exception):
    """A commit failed: below ``durable_limit`` all is safe; ``outcome`` holds for the rest."""

    def __init__(self, cause: OSError, durable_limit: int, outcome: Outcome) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.durable_limit = durable_limit
        self.outcome = outcome
