"""Verifying one segment: header, every frame, the chain, the index and the footer. Blocking.

Changes nothing and takes no lock. The frames that a live writer adds meanwhile are after the durable limit
that the caller read before, and are not judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from walstore.errors import CorruptionError
from walstore.files.directory import evidence_of
from walstore.files.frame_walk import FrameScan
from walstore.files.segment_file import decode, read_footer, read_last_footer
from walstore.format import frame, segment
from walstore.format.checkpoint import FILE_NAME, Checkpoint, DurableCell
from walstore.format.frame import FrameHeader
from walstore.format.ledger import Marks
from walstore.format.recovery import Chain, Evidence
from walstore.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.ports import File

MAX_PROBLEMS: Final = 100
"""Most problems kept; more are only counted, so that memory stays bounded."""
_EVERYTHING: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the files is not as it was written."""

    path: str
    position: int | None
    """Byte in that file; None if the problem is the file as a whole."""
    message: str

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{where}: {self.message}"


@dataclass(slots=True)
class Findings:
    """Counts and problems of a verification in progress."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    unfinished_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    def add(self, path: Path, message: str, position: int | None = None) -> None:
        """Note a problem."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(str(path), position, message))

    def add_error(self, path: Path, error: CorruptionError, position: int | None = None) -> None:
        """Note the problem that a reader raised."""
        self.add(path, message_of(error), error.position if position is None else position)


def message_of(error: CorruptionError) -> str:
    """Return what an error says is wrong, without the place."""
    return str(error).partition(f": {error.path}")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """One segment to verify, and what the rest of the log records about it."""

    path: Path
    start: int
    """Offset in its name."""
    is_last: bool
    """Whether it may be the active segment; any other must be sealed."""
    hint: Checkpoint | None
    cell: DurableCell | None
    """As they were when verifying began."""

    @property
    def noted(self) -> SegmentSummary | None:
        """The checkpoint's summary of the segment, if it lists it as sealed."""
        sealed = self.hint.sealed if self.hint is not None else ()
        return next((summary for summary in sealed if summary.start == self.start), None)

    def described(self, header: SegmentHeader) -> Checkpoint | None:
        """Return the checkpoint if it describes this segment as the active one.

        A segment without records may be replaced by another of the same name, so then the salt must match.
        """
        hint = self.hint
        if hint is None or hint.tail_start != self.start:
            return None
        return hint if hint.next_offset > self.start or hint.tail_salt == header.salt else None


def verify_segment(
    file: File, header: SegmentHeader, task: SegmentTask, chain: Chain, findings: Findings
) -> Chain:
    """Check the segment in ``file``, whose header was read before; return the chain after it."""
    path = task.path
    findings.segments += 1
    _check_header(header, task, chain, findings)
    evidence = evidence_of(task.start, header.salt, task.hint, task.cell)
    chain = Chain(task.start, header.previous_crc, chain.timestamp_us, header.epoch)
    problems_before = findings.problem_count
    footer, is_sealed = _read_footer(file, task, findings)
    scan = FrameScan(file, footer[0].data_bytes if footer else file.size(), header.salt)
    indexes = [IndexCheck(path, footer[1], "index")] if footer else []
    hint = task.described(header)
    if hint is not None:
        indexes.append(IndexCheck(path, hint.tail_index, "checkpoint's index"))
    streams = footer[1].streams if footer else SegmentStreams.unknown()
    end = _walk(scan, path, hint, evidence, chain, indexes, streams, findings, is_sealed=is_sealed)
    for index in indexes:
        index.finish(findings)
    if (
        not is_sealed
        and evidence.durable_position > end
        and evidence.durable_limit <= chain.next_offset
        and findings.problem_count == problems_before
    ):
        findings.add(
            path,
            f"ends at byte {end}, but bytes below {evidence.durable_position} had been synced",
            end,
        )
    if footer is not None:
        if findings.problem_count == problems_before:
            _check_footer(footer[0], chain, end, path, findings)
        summary = footer[0]
        return Chain(summary.limit, summary.last_crc, summary.max_timestamp_us, chain.epoch)
    return chain


class IndexCheck:
    """Compares a sparse index with the frames in order."""

    def __init__(self, path: Path, index: SegmentIndex, name: str) -> None:
        """``name`` says in messages which index it is."""
        self._path = path
        self._index = index
        self._name = name
        self._next = 0

    def see(self, header: FrameHeader, position: int, findings: Findings) -> None:
        """Take a whole frame at ``position`` into account."""
        index = self._index
        self._skip_below(position, findings)
        if self._next == len(index.positions) or index.positions[self._next] != position:
            return
        noted = (index.starts[self._next], index.timestamps_us[self._next])
        found = (header.start, header.base_timestamp_us)
        if noted != found:
            findings.add(
                self._path,
                f"the {self._name} says offset {noted[0]} and time {noted[1]}, the batch there "
                f"{found[0]} and {found[1]}",
                position,
            )
        self._next += 1

    def pass_over(self, limit: int) -> None:
        """Skip the entries below ``limit``: their batches are known to be damaged."""
        while self._next < len(self._index.positions) and self._index.positions[self._next] < limit:
            self._next += 1

    def finish(self, findings: Findings) -> None:
        """Finish after the last frame."""
        self._skip_below(_EVERYTHING, findings)

    def _skip_below(self, position: int, findings: Findings) -> None:
        positions = self._index.positions
        while self._next < len(positions) and positions[self._next] < position:
            findings.add(
                self._path, f"the {self._name} names a batch where none is", positions[self._next]
            )
            self._next += 1


def _check_header(
    header: SegmentHeader, task: SegmentTask, chain: Chain, findings: Findings
) -> None:
    if header.start != task.start:
        findings.add(
            task.path, f"the header says first offset {header.start}, the name {task.start}", 0
        )
    if chain.next_offset and chain.next_offset != task.start:
        findings.add(
            task.path,
            f"begins at offset {task.start}, but the log continues at {chain.next_offset}",
            0,
        )
    elif chain.next_offset and chain.previous_crc != header.previous_crc:
        findings.add(
            task.path,
            f"does not continue the segment before (CRC {header.previous_crc:#010x}, expected "
            f"{chain.previous_crc:#010x})",
            0,
        )
    if header.epoch < chain.epoch:
        findings.add(task.path, f"epoch {header.epoch} after epoch {chain.epoch}", 0)


def _read_footer(
    file: File, task: SegmentTask, findings: Findings
) -> tuple[tuple[SegmentSummary, SegmentIndex] | None, bool]:
    """Return the footer if it can be read, and whether the segment is sealed."""
    try:
        read = read_last_footer if task.is_last else read_footer
        footer = read(file, task.start, task.path)
    except CorruptionError as error:
        findings.add_error(task.path, error)
        return None, True
    if footer is None and not task.is_last:
        findings.add(task.path, "sealed segment has lost its footer", file.size())
        return None, True
    if footer is not None and task.noted not in (None, footer[0]):
        findings.add(
            task.path.with_name(FILE_NAME), f"says {task.noted}, the segment itself {footer[0]}"
        )
    return footer, footer is not None


def _walk(
    scan: FrameScan,
    path: Path,
    hint: Checkpoint | None,
    evidence: Evidence,
    chain: Chain,
    indexes: list[IndexCheck],
    streams: SegmentStreams,
    findings: Findings,
    *,
    is_sealed: bool,
) -> int:
    """Check all frames; return the position after the last one."""
    mark = hint.tail_position if hint is not None else 0
    at = segment.HEADER_BYTES
    while at < scan.end:
        found = scan.whole_at(at)
        if found is None:
            resume = _behind_damage(scan, at, path, evidence, chain, findings, is_sealed=is_sealed)
            for index in indexes:
                index.pass_over(scan.end if resume is None else resume)
            if resume is None:
                break
            at = resume
            continue
        header, view = found
        _check_frame(header, path, at, chain, findings)
        _check_content(header, view, path, at, streams, findings)
        for index in indexes:
            index.see(header, at, findings)
        chain.advance(header)
        findings.batches += 1
        findings.records += header.count
        findings.size_bytes += header.length
        at += header.length
        if hint is not None and at >= mark > at - header.length:
            _check_mark(hint, chain, at, path, findings)
    if not is_sealed:  # entries after the end are covered by the check of the durable limit
        for index in indexes:
            index.pass_over(_EVERYTHING)
    return at


def _behind_damage(
    scan: FrameScan,
    at: int,
    path: Path,
    evidence: Evidence,
    chain: Chain,
    findings: Findings,
    *,
    is_sealed: bool,
) -> int | None:
    """Classify the bytes at ``at``; return where to continue, or None if the segment ends here."""
    if not is_sealed:
        scan.forget()
    later = scan.next_whole(at)
    if not is_sealed and later == at:
        return at  # a live writer finished it between two reads
    if later is None and scan.begins_with(segment.FOOTER_MAGIC, at):
        return None
    if is_sealed or _was_synced(scan, at, later, evidence, chain):
        findings.add(path, f"batch at offset {chain.next_offset} is damaged", at)
        if later is not None:
            _adopt(scan, later, chain)
        return later
    findings.unfinished_bytes += scan.used_limit(at) - at
    return None


def _was_synced(
    scan: FrameScan, at: int, later: int | None, evidence: Evidence, chain: Chain
) -> bool:
    """Return whether the bytes at ``at``, which are no whole batch, had been a batch that was synced."""
    if evidence.durable_limit > chain.next_offset or evidence.durable_position > at:
        return scan.used_limit(at) > at
    while later is not None:
        found = scan.whole_at(later)
        if found is None:
            return False
        header = found[0]
        if header.epoch >= evidence.own_epoch and (
            header.synced_limit > chain.next_offset or header.synced_position > at
        ):
            return True
        later = scan.next_whole(later + header.length)
    return False


def _adopt(scan: FrameScan, at: int, chain: Chain) -> None:
    """Continue the chain at the frame at ``at``, whatever came before."""
    found = scan.whole_at(at)
    if found is not None:
        header = found[0]
        chain.next_offset = header.start
        chain.previous_crc = header.previous_crc


def _check_frame(
    header: FrameHeader, path: Path, at: int, chain: Chain, findings: Findings
) -> None:
    if header.start != chain.next_offset:
        findings.add(
            path, f"batch begins at offset {header.start}, expected {chain.next_offset}", at
        )
    elif header.previous_crc != chain.previous_crc:
        findings.add(path, f"batch at offset {header.start} does not continue the one before", at)
    if header.epoch < chain.epoch:
        findings.add(path, f"batch of epoch {header.epoch} after epoch {chain.epoch}", at)
    if header.base_timestamp_us < chain.timestamp_us:
        findings.add(path, f"batch at offset {header.start} is older than the one before", at)
    if header.max_timestamp_us < header.base_timestamp_us:
        findings.add(path, f"batch at offset {header.start} ends before it begins in time", at)
    # Not its position: a repair may have moved the batch nearer to the beginning of a file.
    if header.synced_limit > header.start:
        findings.add(
            path, f"batch at offset {header.start} says that later batches were synced", at
        )


def _check_content(
    header: FrameHeader,
    view: memoryview,
    path: Path,
    at: int,
    streams: SegmentStreams,
    findings: Findings,
) -> None:
    """Check the content of a frame whose CRC is right."""
    try:
        batch = decode(view, header, path, at)
        if header.count:
            batch.check()
        denied = [name for name in batch.stream_names if not streams.may_hold(name)]
    except CorruptionError as error:
        findings.add_error(path, error, at)
        return
    if why := _marks_disagree(view, header):
        findings.add(path, f"batch at offset {header.start}: {why}", at)
    if denied:
        findings.add(
            path,
            f"the footer denies stream {denied[0]!r}, which the batch at offset {header.start} has",
            at,
        )


def _marks_disagree(view: memoryview, header: FrameHeader) -> str | None:
    """Return what is wrong with the marks of a batch whose CRC is right, or None."""
    try:
        data = frame.marks_of(view, header)
        if data is None:
            return None if header.count else "it holds neither records nor marks"
        Marks.decode(data)
    except ValueError as error:
        return str(error)
    return None


def _check_mark(hint: Checkpoint, chain: Chain, at: int, path: Path, findings: Findings) -> None:
    """Compare the checkpoint with the log at the position that it names."""
    expected = (hint.tail_position, hint.next_offset, hint.previous_crc)
    if expected != (at, chain.next_offset, chain.previous_crc):
        findings.add(
            path,
            f"the checkpoint says that offset {hint.next_offset} follows here, but a batch up to "
            f"offset {chain.next_offset} ends at byte {at}",
            hint.tail_position,
        )


def _check_footer(
    summary: SegmentSummary, chain: Chain, end: int, path: Path, findings: Findings
) -> None:
    found = SegmentSummary(
        summary.start, chain.next_offset, end, chain.previous_crc, chain.timestamp_us
    )
    if summary != found:
        findings.add(path, f"the footer says {summary}, the batches {found}", summary.data_bytes)
