"""Commit: the result of one commit, and the state of a log when a call on its tail failed. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from walstore.batches.batch import FrameBatch
from walstore.errors import Outcome
from walstore.files.segment_file import Segment


class Commit(NamedTuple):
    """The result of one commit."""

    batches: list[FrameBatch]
    """Batches with records, in order. Empty for a large transaction, which is a segment of its own."""
    limit: int
    """Offset after the last record written."""
    durable_limit: int
    """Every offset below it is synced."""
    is_synced: bool
    """Whether all of the commit is synced."""
    serial: int
    """Highest number of an append that changed the ledger; 0 if none did."""
    sealed: list[Segment]
    """Segments sealed by the commit, oldest first."""
    active: Segment
    size_bytes: int
    """Bytes of frames written."""
    head: int
    """First retained offset."""
    registers: Mapping[str, str] | None
    """All registers, if some changed."""
    sync_seconds: float | None = None
    """Duration of the final sync; None if there was none."""


@dataclass(slots=True)
class Reached:
    """The state of the tail: what is durable, and what may be on disk.

    Offsets and serials (numbers of appends that change the ledger) each have three limits. They
    determine the outcome of an append. The tail changes its own in place, three times per commit: a new
    object each time took 1.2 µs of its 20.
    """

    durable_limit: int
    """Every offset below it is synced."""
    written_limit: int
    """No offset at or above it can be on disk."""
    attempted_limit: int
    """Every offset below it was handed to the tail."""
    durable_serial: int
    """Every serial up to it is synced."""
    written_serial: int
    """No serial above it can be on disk."""
    attempted_serial: int
    registers: Mapping[str, str] | None = None
    """The durable state of all registers, if it is known after a failure."""

    def note_attempt(self, limit: int, serial: int) -> None:
        """Record that records below ``limit`` and changes up to ``serial`` were handed over."""
        self.attempted_limit = limit
        self.attempted_serial = max(self.attempted_serial, serial)

    def note_written(self, limit: int, serial: int) -> None:
        """Record that frames up to ``limit`` and ``serial`` may be on disk."""
        self.written_limit = limit
        self.written_serial = max(self.written_serial, serial)

    def note_synced(self) -> None:
        """Record that everything written was synced."""
        self.durable_limit = self.written_limit
        self.durable_serial = self.written_serial

    def outcome(self, limit: int) -> Outcome:
        """Return the outcome of the records below ``limit``."""
        if limit <= self.durable_limit:
            return "durable"
        return "unknown" if limit <= self.written_limit else "not_written"

    def settled_outcome(self, serial: int) -> Outcome:
        """Return the outcome of the change ``serial`` of the ledger."""
        if serial <= self.durable_serial:
            return "durable"
        return "unknown" if serial <= self.written_serial else "not_written"

    def in_doubt(self) -> Reached:
        """Return the state in which everything handed over may be on disk."""
        return replace(
            self, written_limit=self.attempted_limit, written_serial=self.attempted_serial
        )


class TailError(Exception):
    """A call on the tail failed, and with it the log; ``reached`` determines the outcome of its records."""

    def __init__(self, cause: BaseException, reached: Reached) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.reached = reached
