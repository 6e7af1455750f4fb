"""Scanning a log's directory: its segments, checked against each other and the checkpoint. Blocking.

Reads all that opening needs before it changes anything. Files that contradict each other raise
CorruptionError and are not changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from walstore.core.files.directory import pick_segments
from walstore.core.files.frame_stream import UNREADABLE
from walstore.core.files.frame_walk import walk_file
from walstore.core.files.segment_file import (
    read_footer,
    read_header,
    read_last_footer,
    trailer_length,
)
from walstore.core.format import segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.ledger import Ledger, Marks
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentSummary
from walstore.core.ports import File, FileSystem
from walstore.errors import CorruptionError


@dataclass(frozen=True, slots=True)
class ScannedLog:
    """The contents of the directory, before anything is changed."""

    log_id: bytes
    head: int
    sealed: list[SegmentSummary]
    chain: Chain
    """Where the log stands at ``position``."""
    index: SegmentIndex
    """Of the last segment: all of it if it is sealed, else up to ``position``."""
    position: int
    """Where to walk the active segment from; if the last one is sealed, where its frames end."""
    header: SegmentHeader
    """Of the last segment."""
    is_sealed: bool
    """Whether the last segment is sealed; then it is the last of ``sealed``, too."""
    given_up: list[int]
    """First offsets of segments wholly below the head, left by an interrupted deletion."""


def find_log(
    fs: FileSystem,
    directory: Path,
    names: Iterable[str],
    hint: Checkpoint | None,
    cell: DurableCell | None,
    ledger: Ledger,
) -> ScannedLog | None:
    """Return the contents of ``directory``; None if there is no log.

    ``names`` are the names of its files, ``hint`` is the checkpoint and ``cell`` the durable cell, if they
    exist. The log's state besides records goes into ``ledger``, as far as it is known without walking the
    active segment. Raises CorruptionError, FormatVersionError, OSError.
    """
    starts = pick_segments(directory, names)
    if not starts:
        if hint is not None:
            raise CorruptionError(
                "the checkpoint names segments that are gone; restore them, or move the checkpoint "
                "away to begin a new log",
                path=str(directory),
                expected=segment.file_name(hint.tail_start),
            )
        if cell is not None and cell.durable_limit > cell.head:
            raise CorruptionError(
                "the durable cell speaks of records in segments that are gone; put them back, or "
                f"'walstore repair' begins the log at offset {cell.durable_limit} without them",
                path=str(directory),
                expected=segment.file_name(cell.tail_start),
            )
        return None
    known_head = max(hint.head if hint else 0, cell.head if cell else 0)
    given_up = []
    while len(starts) > 1 and starts[1] <= known_head:
        given_up.append(starts.pop(0))
    summaries = {s.start: s for s in hint.sealed} if hint else {}
    scan = _Scan(fs, directory, hint)
    for start in starts[:-1]:
        scan.check_adjacent(start)
        scan.sealed.append(summaries.get(start) or scan.read_sealed(start))
    last = starts[-1]
    scan.check_adjacent(last)
    if starts[0] > known_head > 0:
        # The checkpoint is never older than the removal of a segment.
        why = "" if hint is not None else " (or the durable cell is older than their removal)"
        raise scan.missing(
            f"segments are missing at the beginning of the log{why}; put them back, or begin it at "
            f"offset {starts[0]} with 'walstore repair'",
            known_head,
            starts[0],
        )
    if hint is not None and last < hint.tail_start:
        raise scan.missing("segments are missing at the end of the log", hint.tail_start, last)
    return scan.find_tail(last, known_head or starts[0], given_up, ledger)


def find_damaged(
    fs: FileSystem, directory: Path, names: Iterable[str], log_id: bytes
) -> dict[int, str]:
    """Return which segments before the last one are missing, or have a header or footer that is not whole.

    By their first offsets, of several in a row that are missing the first one; each with what the disk said
    if it does not read it, which may be otherwise the next time, else with no text. :func:`find_log` refuses
    a log with one of them. All footers are read, also those that a checkpoint knows: it may be gone once the
    segments were repaired. CorruptionError for whole files that contradict each other; FormatVersionError,
    OSError.
    """
    starts = pick_segments(directory, names)
    scan, found = _Scan(fs, directory, None, log_id), {}
    for start in starts:
        if scan.sealed and scan.sealed[-1].limit < start:
            found[scan.sealed[-1].limit] = ""
            scan.sealed.clear()
        scan.check_adjacent(start)
        is_last = start == starts[-1]
        try:
            header, summary = scan.read_ends(start, is_last=is_last)
        except (CorruptionError, OSError) as error:
            found[start] = _why_damaged(error, is_last=is_last)
            scan.sealed.clear()
            continue
        scan.check_header(header, start)
        if summary is not None:
            scan.sealed.append(summary)
    return found


def look_again(
    fs: FileSystem, directory: Path, damaged: Mapping[int, str], start: int, last: SegmentHeader
) -> dict[int, str]:
    """Return what :func:`find_damaged` does, of a copy in which one segment was changed since.

    ``damaged`` is what it returned before, ``last`` the header of the last segment. Reads the one that
    begins at ``start``, and looks for the one behind it. FormatVersionError, OSError.
    """
    found = {one: why for one, why in damaged.items() if one != start}
    scan = _Scan(fs, directory, None, last.log_id)
    try:
        header, summary = scan.read_ends(start)
        scan.check_header(header, start)
    except FileNotFoundError:  # it is not complete
        return dict(damaged)
    except (CorruptionError, OSError) as error:
        found[start] = _why_damaged(error)
        return found
    assert summary is not None
    limit = summary.limit
    if limit < last.start and limit not in found and not has_segment(fs, directory, limit):
        found[limit] = ""  # of several in a row only the first was known
    return found


def _why_damaged(error: CorruptionError | OSError, *, is_last: bool = False) -> str:
    """Return what the disk said if it does not read a segment; raises what is another error than damage."""
    if isinstance(error, CorruptionError) and not is_last:
        return ""
    if isinstance(error, OSError) and error.errno in UNREADABLE and not is_last:
        return error.strerror or str(error)
    raise error


def has_segment(fs: FileSystem, directory: Path, start: int) -> bool:
    """Return whether there is a file of the segment that begins at ``start``. OSError."""
    try:
        fs.open(directory / segment.file_name(start), "r").close()
    except FileNotFoundError:
        return False
    return True


class _Scan:
    """The segments that were looked at, in order."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        hint: Checkpoint | None,
        log_id: bytes | None = None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._hint = hint
        self._log_id = hint.log_id if hint else log_id
        self.sealed: list[SegmentSummary] = []

    def missing(self, message: str, expected: int, found: int) -> CorruptionError:
        """Return the error for a segment that is not there, and another in its place."""
        return CorruptionError(
            message,
            path=str(self._directory),
            expected=segment.file_name(expected),
            found=segment.file_name(found),
        )

    def check_adjacent(self, start: int) -> None:
        """Check that the segment that begins at ``start`` follows the one before."""
        if self.sealed and self.sealed[-1].limit != start:
            raise self.missing("a segment is missing", self.sealed[-1].limit, start)

    def read_sealed(self, start: int) -> SegmentSummary:
        """Read header and footer of a segment that another one follows, and check that it belongs there."""
        header, summary = self.read_ends(start)
        self.check_header(header, start)
        assert summary is not None
        return summary

    def read_ends(
        self, start: int, *, is_last: bool = False
    ) -> tuple[SegmentHeader, SegmentSummary | None]:
        """Read header and footer of a segment; only the header of the last one."""
        path = self._directory / segment.file_name(start)
        with contextlib.closing(self._fs.open(path, "r")) as file:
            header = read_header(file, path)
            if is_last:
                return header, None
            footer = read_footer(file, start, path)
        if footer is None:
            raise CorruptionError(
                "segment is not sealed although another one follows", path=str(path)
            )
        return header, footer[0]

    def find_tail(self, last: int, head: int, given_up: list[int], ledger: Ledger) -> ScannedLog:
        """Read the last segment; walk its frames if it is sealed."""
        hint, sealed = self._hint, self.sealed
        path = self._directory / segment.file_name(last)
        with contextlib.closing(self._fs.open(path, "r")) as file:
            header = read_header(file, path)
            footer = read_last_footer(file, last, path)
            self.check_header(header, last)
            if hint is not None and _ends_as_checkpointed(file, header, hint):
                if hint.ledger:
                    ledger.apply(Marks.decode(hint.ledger))
                chain = Chain(
                    hint.next_offset, hint.previous_crc, hint.timestamp_us, hint.epoch, ledger
                )
                index, position = hint.tail_index, hint.tail_position
            else:
                timestamp_us = sealed[-1].max_timestamp_us if sealed else 0
                chain = Chain(last, header.previous_crc, timestamp_us, header.epoch, ledger)
                index, position = SegmentIndex(), segment.HEADER_BYTES
            if footer is not None:
                # For the ledger that the next segment begins with.
                position = walk_file(file, path, chain, header.salt, position)
        if footer is not None:
            summary, index = footer
            _check_end(path, summary, chain, position)
            sealed.append(summary)
            chain.epoch = max(chain.epoch, hint.epoch if hint else 0)
        return ScannedLog(
            header.log_id,
            head,
            sealed,
            chain,
            index,
            position,
            header,
            is_sealed=footer is not None,
            given_up=given_up,
        )

    def check_header(self, header: SegmentHeader, start: int) -> None:
        """Check that a segment matches its name, and continues the one before."""
        path = self._directory / segment.file_name(start)
        if header.start != start:
            raise CorruptionError(
                "segment is not the one its name says",
                path=str(path),
                expected=start,
                found=header.start,
            )
        if self._log_id is not None and self._log_id != header.log_id:
            raise CorruptionError(
                "segment belongs to another log",
                path=str(path),
                expected=self._log_id.hex(),
                found=header.log_id.hex(),
            )
        if self.sealed and self.sealed[-1].last_crc != header.previous_crc:
            raise CorruptionError(
                "segment does not continue the one before",
                path=str(path),
                expected=self.sealed[-1].last_crc,
                found=header.previous_crc,
            )
        self._log_id = header.log_id


def _check_end(path: Path, summary: SegmentSummary, chain: Chain, end: int) -> None:
    """Check that the frames of the last segment end, at byte ``end``, as its footer says."""
    if (end, chain.next_offset, chain.previous_crc) != (
        summary.data_bytes,
        summary.limit,
        summary.last_crc,
    ):
        raise CorruptionError(
            f"a damaged batch at offset {chain.next_offset} of a sealed segment; nothing was changed, "
            "see 'walstore repair'",
            path=str(path),
            position=end,
            expected=summary.data_bytes,
            found=end,
        )


def _ends_as_checkpointed(file: File, last: SegmentHeader, hint: Checkpoint) -> bool:
    """Return whether the checkpoint describes this segment, and the frame that ends there is whole.

    If so, all before it was synced and is not walked again.
    """
    if (hint.tail_start, hint.tail_salt) != (last.start, last.salt):
        return False
    end = hint.tail_position
    if end <= segment.HEADER_BYTES:
        return True
    length = trailer_length(file, end)
    if length is None or length > end - segment.HEADER_BYTES:
        return False
    found = FrameScan(file.pread, end, last.salt).whole_at(end - length)
    return found is not None and found[0].crc == hint.previous_crc
