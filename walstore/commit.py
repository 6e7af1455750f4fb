"""Commit: what one commit did, and how far a log had come when a call on its tail failed. Plain values."""

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


class Reached(NamedTuple):
    """How far the tail had come: what is durable, and what may be on disk.

    Offsets and serials (numbers of appends that change the ledger) each have three limits. From them
    alone follows what became of an append.
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
    """All registers as they are durable, if that is known after a failure."""

    # Each commit takes all three steps, and _replace() is four times as slow.

    def attempt(self, limit: int, serial: int) -> Reached:
        """Return the same after records below ``limit`` and changes up to ``serial`` were handed over."""
        durable, written, _, durable_serial, written_serial, attempted_serial, _ = self
        serial = max(attempted_serial, serial)
        return Reached(durable, written, limit, durable_serial, written_serial, serial)

    def write(self, limit: int, serial: int) -> Reached:
        """Return the same after frames up to ``limit`` and ``serial`` may be on disk."""
        durable, _, attempted, durable_serial, written_serial, attempted_serial, _ = self
        serial = max(written_serial, serial)
        return Reached(durable, limit, attempted, durable_serial, serial, attempted_serial)

    def sync(self) -> Reached:
        """Return the same after all that was written was synced."""
        _, written, attempted, _, written_serial, attempted_serial, _ = self
        return Reached(
            written, written, attempted, written_serial, written_serial, attempted_serial
        )

    def outcome(self, limit: int) -> Outcome:
        """Return what became of the records below ``limit``."""
        if limit <= self.durable_limit:
            return "durable"
        return "unknown" if limit <= self.written_limit else "not_written"

    def settled_outcome(self, serial: int) -> Outcome:
        """Return what became of the change ``serial`` of the ledger."""
        if serial <= self.durable_serial:
            return "durable"
        return "unknown" if serial <= self.written_serial else "not_written"

    def in_doubt(self) -> Reached:
        """Return the same if anything that was handed over may be on disk."""
        return self._replace(
            written_limit=self.attempted_limit, written_serial=self.attempted_serial
        )


class TailError(Exception):
    """A call on the tail failed, and with it the log; ``reached`` says what became of its records."""

    def __init__(self, cause: BaseException, reached: Reached) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.reached = reached
