"""Verifying one segment: header, every frame, the chain, the index and the footer. Blocking.

Changes nothing and takes no lock. The frames that a live writer adds meanwhile are after the durable limit
that the caller read before, and are not judged.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from walstore.core.files.directory import evidence_of, evidence_of_copy
from walstore.core.files.frame_walk import unfinished_bytes, used_limit
from walstore.core.files.segment_file import decode, read_footer, read_last_footer
from walstore.core.format import frame, segment
from walstore.core.format.checkpoint import FILE_NAME, Checkpoint, DurableCell
from walstore.core.format.frame import FrameHeader
from walstore.core.format.frame_scan import FrameScan, LookalikesError
from walstore.core.format.ledger import Marks
from walstore.core.format.recovery import Chain, Evidence
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.core.ports import File
from walstore.errors import CorruptionError

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


@dataclass(slots=True)
class IndexCheck:
    """Compares a sparse index with the frames in order."""

    _path: Path
    _index: SegmentIndex
    _name: str
    """Says in messages which index it is."""
    _findings: Findings
    _next: int = 0

    def see(self, header: FrameHeader, position: int) -> None:
        """Take a whole frame at ``position`` into account."""
        index = self._index
        self._skip_below(position)
        if self._next == len(index.positions) or index.positions[self._next] != position:
            return
        noted = (index.starts[self._next], index.timestamps_us[self._next])
        found = (header.start, header.base_timestamp_us)
        if noted != found:
            self._findings.add(
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

    def finish(self) -> None:
        """Finish after the last frame."""
        self._skip_below(_EVERYTHING)

    def _skip_below(self, position: int) -> None:
        positions = self._index.positions
        while self._next < len(positions) and positions[self._next] < position:
            self._findings.add(
                self._path, f"the {self._name} names a batch where none is", positions[self._next]
            )
            self._next += 1


@dataclass
class SegmentCheck:
    """Verifies one segment."""

    _path: Path
    _start: int
    """The offset in its name."""
    _hint: Checkpoint | None
    """As it was when verifying began; the cell, too."""
    _cell: DurableCell | None
    _findings: Findings
    is_last: bool = field(kw_only=True)
    """Whether it may be the active segment; any other must be sealed."""
    synced: DurableCell = field(kw_only=True)
    """What a copy of a replicated log noted, as it was when verifying began."""
    is_copy: bool = field(kw_only=True)
    """Whether the log is such a copy."""

    def run(self, file: File, header: SegmentHeader, before: Chain) -> Chain:
        """Check the segment in ``file``, whose header was read before; return the chain after it."""
        findings = self._findings
        findings.segments += 1
        self._check_header(header, before)
        self._file, self._header = file, header
        self._evidence = self._find_evidence(header)
        self._chain = Chain(self._start, header.previous_crc, before.timestamp_us, header.epoch)
        problems_before = findings.problem_count
        footer, self._is_sealed = self._read_footer(file)
        end = footer[0].data_bytes if footer else file.size()
        self._scan = FrameScan(file.pread, end, header.salt)
        self._streams = footer[1].streams if footer else SegmentStreams.unknown()
        self._indexes = [IndexCheck(self._path, footer[1], "index", findings)] if footer else []
        hint = self._described(header)
        if hint is not None:
            index = hint.tail_index
            self._indexes.append(IndexCheck(self._path, index, "checkpoint's index", findings))
        end = self._walk(hint)
        for one in self._indexes:
            one.finish()
        chain, evidence = self._chain, self._evidence
        if (
            not self._is_sealed
            and evidence.durable_position > end
            and evidence.durable_limit <= chain.next_offset
            and findings.problem_count == problems_before
        ):
            self._report(
                f"ends at byte {end}, but bytes below {evidence.durable_position} had been synced",
                end,
            )
        if footer is None:
            return chain
        summary = footer[0]
        found = SegmentSummary(
            self._start, chain.next_offset, end, chain.previous_crc, chain.timestamp_us
        )
        if findings.problem_count == problems_before and summary != found:
            self._report(f"the footer says {summary}, the batches {found}", summary.data_bytes)
        return Chain(summary.limit, summary.last_crc, summary.max_timestamp_us, chain.epoch)

    def _find_evidence(self, header: SegmentHeader) -> Evidence:
        """Return what is known to have been synced; of a copy, what that judges itself by when it opens."""
        known = self._hint, self._cell, self.synced
        if self.is_last and self.is_copy:
            try:
                return evidence_of_copy(self._path.parent, header, *known)
            except CorruptionError as error:
                self._findings.add_error(self._path.parent, error)
        return evidence_of(self._start, header.salt, *known)

    def _report(self, message: str, position: int | None) -> None:
        self._findings.add(self._path, message, position)

    def _described(self, header: SegmentHeader) -> Checkpoint | None:
        """Return the checkpoint if it describes this segment as the active one.

        A segment without records may be replaced by another of the same name, so then the salt must match.
        """
        hint = self._hint
        if hint is None or hint.tail_start != self._start:
            return None
        return hint if hint.next_offset > self._start or hint.tail_salt == header.salt else None

    def _check_header(self, header: SegmentHeader, before: Chain) -> None:
        start = self._start
        if header.start != start:
            self._report(f"the header says first offset {header.start}, the name {start}", 0)
        if before.next_offset and before.next_offset != start:
            self._report(
                f"begins at offset {start}, but the log continues at {before.next_offset}", 0
            )
        elif before.next_offset and before.previous_crc != header.previous_crc:
            self._report(
                f"does not continue the segment before (CRC {header.previous_crc:#010x}, expected "
                f"{before.previous_crc:#010x})",
                0,
            )
        if header.epoch < before.epoch:
            self._report(f"epoch {header.epoch} after epoch {before.epoch}", 0)

    def _read_footer(self, file: File) -> tuple[tuple[SegmentSummary, SegmentIndex] | None, bool]:
        """Return the footer if it can be read, and whether the segment is sealed."""
        try:
            read = read_last_footer if self.is_last else read_footer
            footer = read(file, self._start, self._path)
        except CorruptionError as error:
            self._findings.add_error(self._path, error)
            return None, True
        if footer is None and not self.is_last:
            self._report("sealed segment has lost its footer", file.size())
            return None, True
        sealed = self._hint.sealed if self._hint is not None else ()
        noted = next((summary for summary in sealed if summary.start == self._start), None)
        if footer is not None and noted not in (None, footer[0]):
            self._findings.add(
                self._path.with_name(FILE_NAME), f"says {noted}, the segment itself {footer[0]}"
            )
        return footer, footer is not None

    def _walk(self, hint: Checkpoint | None) -> int:
        """Check all frames; return the position after the last one."""
        findings = self._findings
        mark = hint.tail_position if hint is not None else 0
        end: int = segment.HEADER_BYTES
        for at, header, view in self._scan.frames(end, self._behind_damage):
            self._check_frame(header, at)
            self._check_content(header, view, at)
            for index in self._indexes:
                if at > end:
                    index.pass_over(at)
                index.see(header, at)
            self._chain.advance(header)
            findings.batches += 1
            findings.records += header.count
            findings.size_bytes += header.length
            end = at + header.length
            if hint is not None and end >= mark > at:
                self._check_mark(hint, end)
        if not self._is_sealed or end < self._scan.end:
            # Without a seal, entries after the end are covered by the check of the durable limit.
            for index in self._indexes:
                index.pass_over(self._scan.end if self._is_sealed else _EVERYTHING)
        return end

    def _behind_damage(self, at: int) -> int | None:
        """Classify the bytes at ``at``; return where to continue, or None if the segment ends here."""
        scan, chain = self._scan, self._chain
        if not self._is_sealed:
            scan.forget()
        later = scan.next_whole(at)
        if not self._is_sealed and later == at:
            return at  # a live writer finished it between two reads
        magic = segment.FOOTER_MAGIC
        if later is None and self._file.pread(len(magic), at) == magic:
            return None
        if not self._is_sealed:
            if not self._was_synced(at, later):
                self._findings.unfinished_bytes += unfinished_bytes(
                    self._file, at, scan.end, self._header, chain.previous_crc
                )
                return None
            # One read may return a batch as it was before a live writer finished it, and behind it later
            # batches that say it was synced. Read after them, it is whole unless it is damaged.
            scan.forget()
            if scan.whole_at(at) is not None:
                return at
        self._report(f"batch at offset {chain.next_offset} is damaged", at)
        found = None if later is None else scan.whole_at(later)
        if found is not None:  # the chain continues there, whatever came before
            chain.next_offset = found[0].start
            chain.previous_crc = found[0].previous_crc
        return later

    def _was_synced(self, at: int, later: int | None) -> bool:
        """Return whether the bytes at ``at``, which are no whole batch, had been a batch that was synced."""
        scan, chain, evidence = self._scan, self._chain, self._evidence
        if evidence.durable_limit > chain.next_offset or evidence.durable_position > at:
            return used_limit(self._file, at, scan.end) > at
        with contextlib.suppress(LookalikesError):
            for _, header in () if later is None else scan.whole_frames(later):
                if header.epoch >= evidence.own_epoch and (
                    header.synced_limit > chain.next_offset or header.synced_position > at
                ):
                    return True
        return False

    def _check_frame(self, header: FrameHeader, at: int) -> None:
        chain, which = self._chain, f"batch at offset {header.start}"
        if header.start != chain.next_offset:
            self._report(f"batch begins at offset {header.start}, expected {chain.next_offset}", at)
        elif header.previous_crc != chain.previous_crc:
            self._report(f"{which} does not continue the one before", at)
        if header.epoch < chain.epoch:
            self._report(f"batch of epoch {header.epoch} after epoch {chain.epoch}", at)
        if header.base_timestamp_us < chain.timestamp_us:
            self._report(f"{which} is older than the one before", at)
        if header.max_timestamp_us < header.base_timestamp_us:
            self._report(f"{which} ends before it begins in time", at)
        # Not its position: a repair may have moved the batch nearer to the beginning of a file.
        if header.synced_limit > header.start:
            self._report(f"{which} says that later batches were synced", at)

    def _check_content(self, header: FrameHeader, view: memoryview, at: int) -> None:
        """Check the content of a frame whose CRC is right."""
        try:
            batch = decode(view, header, self._path, at - header.position)
            if header.count:
                batch.check()
            denied = [name for name in batch.stream_names if not self._streams.may_hold(name)]
        except CorruptionError as error:
            self._findings.add_error(self._path, error, at)
            return
        if why := _marks_disagree(view, header):
            self._report(f"batch at offset {header.start}: {why}", at)
        if denied:
            self._report(
                f"the footer denies stream {denied[0]!r}, which the batch at offset {header.start} has",
                at,
            )

    def _check_mark(self, hint: Checkpoint, at: int) -> None:
        """Compare the checkpoint with the log at the position that it names."""
        chain = self._chain
        expected = (hint.tail_position, hint.next_offset, hint.previous_crc)
        if expected != (at, chain.next_offset, chain.previous_crc):
            self._report(
                f"the checkpoint says that offset {hint.next_offset} follows here, but a batch up to "
                f"offset {chain.next_offset} ends at byte {at}",
                hint.tail_position,
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
