"""The runs of whole batches that surveying a damaged log finds, and what follows from them. Pure: no I/O.

What follows: the intended extent of the log, and its unbroken stretches that are left.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from walstore.care.repair.overlay import OverlayBytes
from walstore.care.repair.plan import Damage, Interval, Patch
from walstore.core.format import checkpoint
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.ledger import Marks
from walstore.core.format.segment import HEADER_BYTES, SegmentHeader, SegmentSummary
from walstore.errors import InvalidSettingsError

Keep = Literal["before", "after"] | int


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
    timestamp_us: int = 0
    """Of the last record."""
    created_us: int = 0
    """Of the first record."""
    ledger: bytes = b""
    """The ledger after them, as marks; empty for an empty ledger."""
    ledger_is_exact: bool = True
    """Whether no change of the ledger can have been lost with damaged frames before."""
    last_synced_limit: int = 0
    """``synced_limit`` of the last frame; 0 if there is no frame."""
    patches: tuple[Patch, ...] = ()
    """Wrong bytes of the file, with the right values."""

    @classmethod
    def none(cls, start: int, header: SegmentHeader) -> FrameRun:
        """Return the run of a segment without frames: it marks where they would begin."""
        at: int = HEADER_BYTES
        crc, epoch = header.previous_crc, header.epoch
        return cls(at, at, start, start, crc, crc, epoch, epoch)

    @property
    def is_empty(self) -> bool:
        """Whether it has no frame."""
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


@dataclass(slots=True)
class Stretch:
    """Runs of one or more segments, each of which continues the one before."""

    pieces: list[tuple[SegmentSurvey, FrameRun]]

    @property
    def start(self) -> int:
        """First offset."""
        return self.pieces[0][1].start

    @property
    def limit(self) -> int:
        """Offset after the last record."""
        return self.pieces[-1][1].limit

    def continues_with(self, source: SegmentSurvey, run: FrameRun) -> bool:
        """Return whether a run follows directly, in another file."""
        last_source, last = self.pieces[-1]
        return (
            source is not last_source
            and last.limit == run.start
            and last.last_crc == run.previous_crc
            and last.epoch <= run.first_epoch
        )


@dataclass(slots=True, kw_only=True)
class Situation:
    """An interpreted survey: which files belong to the log, what it should hold, and what is left."""

    log_id: bytes | None
    hint: Checkpoint | None
    """The checkpoint, if nothing contradicts it."""
    head: int
    """First offset that the log should hold."""
    limit: int
    """End of what the log should hold."""
    epoch: int
    """Highest epoch seen."""
    segments: list[SegmentSurvey]
    """Those that belong to the log and are not left over from a deletion."""
    strangers: list[SegmentSurvey]
    """Segments of other logs."""
    forgotten: list[SegmentSurvey]
    """Segments left over from a deletion that neither checkpoint nor durable cell record."""
    stretches: list[Stretch]
    damages: list[Damage] = field(default_factory=list)
    """Of the checkpoint and the durable cell."""

    @property
    def readable(self) -> list[Stretch]:
        """The stretches that hold records."""
        return [one for one in self.stretches if one.limit > max(one.start, self.head)]

    @property
    def unreadable(self) -> tuple[Interval, ...]:
        """Offsets that the log should hold and no stretch contains."""
        found = []
        at = self.head
        for one in sorted(self.readable, key=lambda stretch: stretch.start):
            if one.start > at:
                found.append(Interval(at, one.start))
            at = max(at, one.limit)
        if at < self.limit:
            found.append(Interval(at, self.limit))
        return tuple(found)

    def choose(self, keep: Keep | None) -> Stretch | None:
        """Return the stretch to keep; None for a log without records that begins at its limit.

        InvalidSettingsError if ``keep`` names none.
        """
        readable = self.readable
        if isinstance(keep, int):
            for one in readable:
                if max(one.start, self.head) <= keep < one.limit:
                    return one
            raise InvalidSettingsError(
                f"offset {keep} is not readable; give 'before', 'after', or an offset in one of "
                + ", ".join(f"[{max(one.start, self.head)}, {one.limit})" for one in readable)
            )
        ends_damaged = bool(readable) and readable[-1].limit < self.limit
        if not readable or (keep == "after" and len(readable) == 1 and ends_damaged):
            empty = [one for one in self.stretches if one.start == one.limit == self.limit]
            return empty[-1] if empty else None
        return readable[-1] if keep == "after" else readable[0]


def understand(survey: LogSurvey) -> Situation:
    """Interpret a survey."""
    log_id = _identify(survey)
    strangers = [
        one
        for one in survey.segments
        if one.header is not None and log_id is not None and one.header.log_id != log_id
    ]
    segments = [one for one in survey.segments if one not in strangers]
    damages, is_trusted = _judge_hints(survey, segments, log_id)
    hint = survey.hint if is_trusted else None
    known_heads = [one.head for one in (hint, survey.cell) if one is not None]
    noted = _without_leftovers(segments, max(known_heads, default=0))
    known_heads += [head for one in segments for run in one.runs if (head := _trimmed(run))]
    first = min((min(one.start, one.first_offset) for one in segments), default=1)
    head = max(known_heads, default=first)
    segments = _without_leftovers(segments, head)
    ends = [run.limit for one in segments for run in one.runs]
    ends += [one.footer.limit for one in segments if one.footer]
    ends += [one.start for one in segments]
    ends += [hint.next_offset] if hint else []
    ends += [survey.cell.durable_limit] if survey.cell else []
    epochs = [run.epoch for one in survey.segments for run in one.runs]
    epochs += [one.header.epoch for one in survey.segments if one.header]
    epochs += [one.epoch for one in (survey.hint, survey.cell) if one]
    return Situation(
        log_id=log_id,
        hint=hint,
        head=head,
        limit=max(head, *ends) if ends else head,
        epoch=max(epochs, default=0),
        segments=segments,
        strangers=strangers,
        forgotten=noted[: len(noted) - len(segments)],
        stretches=_join(segments),
        damages=damages,
    )


def _trimmed(run: FrameRun) -> int:
    """Return the head of the last trim, as the run's ledger records it; 0 if there was none."""
    return Marks.decode(run.ledger).head if run.ledger else 0


def summary_of(run: FrameRun) -> SegmentSummary:
    """Return the summary for the footer of a segment that consists of one run."""
    return SegmentSummary(run.start, run.limit, run.end, run.last_crc, run.timestamp_us)


def _identify(survey: LogSurvey) -> bytes | None:
    """Return the log's identity: the checkpoint's, unless no segment has it; else that of most segments."""
    counts = Counter(one.header.log_id for one in survey.segments if one.header is not None)
    if survey.hint is not None and (survey.hint.log_id in counts or not counts):
        return survey.hint.log_id
    return counts.most_common(1)[0][0] if counts else None


def _judge_hints(
    survey: LogSurvey, segments: Iterable[SegmentSurvey], log_id: bytes | None
) -> tuple[list[Damage], bool]:
    path = str(survey.path / checkpoint.FILE_NAME)
    damages = []
    if survey.hint_error:
        damages.append(Damage(path, 0, survey.hint_error))
    hint = survey.hint
    if hint is not None and hint.log_id != log_id:
        damages.append(Damage(path, None, "the checkpoint belongs to another log"))
    elif hint is not None:
        noted = {summary.start: summary for summary in hint.sealed}
        for one in segments:
            summary = noted.get(one.start)
            if one.contradicts:
                damages.append(Damage(path, None, one.contradicts))
            elif summary is not None and one.footer not in (None, summary):
                damages.append(
                    Damage(path, None, f"the checkpoint contradicts the footer of {one.name}")
                )
    is_trusted = hint is not None and not damages
    if survey.cell_error:
        cell_path = str(survey.path / checkpoint.CELL_FILE_NAME)
        damages.append(Damage(cell_path, 0, survey.cell_error))
    return damages, is_trusted


def _without_leftovers(segments: list[SegmentSurvey], head: int) -> list[SegmentSurvey]:
    """Leave out files wholly below the head, by their names and contents, left by an interrupted deletion."""
    kept = list(segments)
    while (
        len(kept) > 1 and kept[0].start <= head and max(kept[1].start, kept[1].first_offset) <= head
    ):
        kept.pop(0)
    return kept


def _join(segments: Iterable[SegmentSurvey]) -> list[Stretch]:
    stretches: list[Stretch] = []
    for source in segments:
        for run in source.runs:
            if stretches and stretches[-1].continues_with(source, run):
                stretches[-1].pieces.append((source, run))
            else:
                stretches.append(Stretch([(source, run)]))
    return stretches
