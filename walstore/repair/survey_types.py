"""The results of surveying a damaged log: runs of whole batches in segment files. Pure values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from walstore.format.checkpoint import Checkpoint, DurableCell
from walstore.format.segment import SegmentHeader, SegmentSummary
from walstore.repair.overlay import OverlayBytes
from walstore.repair.plan import Interval, Patch


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Whole frames of one segment, each of which continues the one before."""

    position: int
    """Where they begin in the file."""
    end: int
    """Where they end."""
    start: int
    limit: int
    previous_crc: int
    """CRC of the frame to which the first one is chained."""
    last_crc: int
    first_epoch: int
    epoch: int
    timestamp_us: int
    """Of the last record."""
    created_us: int
    """Of the first record."""
    ledger: bytes
    """The ledger after them, as marks; empty for an empty ledger."""
    ledger_is_exact: bool
    """Whether no change of the ledger can have been lost with damaged frames before."""
    last_synced_limit: int
    """``synced_limit`` of the last frame; 0 if there is no frame."""
    patches: tuple[Patch, ...] = ()
    """Wrong bytes of the file, with the right values."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no frame: it marks where the segment's frames would begin."""
        return self.position == self.end

    def joined(self, later: FrameRun) -> FrameRun:
        """Return both runs as one; ``later`` must follow directly in the same file."""
        return dataclasses.replace(
            later,
            position=self.position,
            start=self.start,
            previous_crc=self.previous_crc,
            first_epoch=self.first_epoch,
            created_us=self.created_us,
            patches=self.patches + later.patches,
        )


@dataclass(frozen=True, slots=True)
class Healed:
    """A gap that a copy's records fill."""

    interval: Interval
    is_exact: bool
    """Whether the bytes are the original ones."""


@dataclass(slots=True, kw_only=True)
class SegmentSurvey:
    """The contents of one segment file."""

    name: str
    start: int
    """Offset in its name."""
    size_bytes: int
    header: SegmentHeader | None = None
    header_error: str = ""
    """What is wrong with the header; empty if it can be read."""
    footer: SegmentSummary | None = None
    footer_error: str = ""
    """What is wrong with the footer, if there seems to be one."""
    salt: int | None = None
    """Of its header, or found by its frames; None for a segment of version 1."""
    runs: list[FrameRun] = field(default_factory=list)
    torn_bytes: int = 0
    """Bytes after the last frame that were never acknowledged."""
    rest_bytes: int = 0
    """All nonzero bytes after the last frame, including ``torn_bytes``."""
    synced_position: int = 0
    """Bytes of the last segment known to be synced, from checkpoint or durable cell; 0 if unknown."""
    contradicts: str = ""
    """How the checkpoint contradicts these frames; empty if it does not."""
    extents: tuple[OverlayBytes, ...] = ()
    """Its future pieces, if a copy's records fill its gaps; all positions refer to them."""
    healed: tuple[Healed, ...] = ()

    @property
    def lost_marks(self) -> bool:
        """Whether batches after the last whole one are damaged or missing. They may have held no records,
        but at least they changed the ledger."""
        return (
            (self.rest_bytes > self.torn_bytes or self.ends_early)
            and self.footer is None
            and bool(self.runs)
        )

    @property
    def ends_early(self) -> bool:
        """Whether bytes after the last whole batch had been synced."""
        return not self.was_sealed and bool(self.runs) and self.synced_position > self.runs[-1].end

    @property
    def first_offset(self) -> int:
        """Offset of its first whole frame; that of the name if there is none."""
        return self.runs[0].start if self.runs else self.start

    @property
    def was_sealed(self) -> bool:
        """Whether the file ends, or ended, like a sealed one."""
        return self.footer is not None or bool(self.footer_error)


@dataclass(slots=True, kw_only=True)
class LogSurvey:
    """The contents of a log's directory."""

    path: Path
    segments: list[SegmentSurvey]
    """In the order of their first offsets."""
    foreign: list[str]
    """Files whose names end like a segment's but are not segments."""
    names: frozenset[str]
    """Names of all files in the directory."""
    hint: Checkpoint | None
    hint_error: str
    """What is wrong with the checkpoint; empty if nothing is, or there is none."""
    cell: DurableCell | None
    cell_error: str
    cursors: tuple[tuple[str, int], ...]
    """Name and position of each cursor that can be read."""
