"""Scanning a log's directory: its segments, checked against each other and the checkpoint. Blocking.

Reads all that opening needs before it changes anything. Files that contradict each other raise
CorruptionError and are not changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from walstore.errors import CorruptionError
from walstore.files.directory import pick_segments
from walstore.files.frame_walk import walk_file
from walstore.files.segment_file import read_footer, read_header, read_last_footer, trailer_length
from walstore.format import frame, segment
from walstore.format.checkpoint import Checkpoint, DurableCell
from walstore.format.ledger import Ledger, Marks
from walstore.format.recovery import Chain
from walstore.format.segment import SegmentHeader, SegmentIndex, SegmentSummary
from walstore.ports import File, FileSystem


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
    given_up: list[int] = field(default_factory=list)
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
    sealed: list[SegmentSummary] = []
    log_id = hint.log_id if hint else None
    for start in starts[:-1]:
        _check_adjacent(directory, sealed, start)
        summary = summaries.get(start)
        if summary is None:
            log_id, summary = _read_sealed(fs, directory, start, sealed, log_id)
        sealed.append(summary)
    last = starts[-1]
    _check_adjacent(directory, sealed, last)
    if starts[0] > known_head > 0:
        raise _missing_beginning(directory, known_head, starts[0], is_noted=hint is not None)
    if hint is not None and last < hint.tail_start:
        raise CorruptionError(
            "segments are missing at the end of the log",
            path=str(directory),
            expected=segment.file_name(hint.tail_start),
            found=segment.file_name(last),
        )
    head = known_head or starts[0]
    found = _find_tail(fs, directory, hint, sealed, last, head, log_id, ledger)
    return replace(found, given_up=given_up)


def _missing_beginning(
    directory: Path, head: int, first: int, *, is_noted: bool
) -> CorruptionError:
    """Return the error for a log that should begin at ``head``, and begins at ``first``.

    ``is_noted``: the checkpoint exists; it is never older than the removal of a segment.
    """
    why = "" if is_noted else " (or the durable cell is older than their removal)"
    return CorruptionError(
        f"segments are missing at the beginning of the log{why}; put them back, or begin it at offset "
        f"{first} with 'walstore repair'",
        path=str(directory),
        expected=segment.file_name(head),
        found=segment.file_name(first),
    )


def _find_tail(
    fs: FileSystem,
    directory: Path,
    hint: Checkpoint | None,
    sealed: list[SegmentSummary],
    last: int,
    head: int,
    log_id: bytes | None,
    ledger: Ledger,
) -> ScannedLog:
    path = directory / segment.file_name(last)
    with contextlib.closing(fs.open(path, "r")) as file:
        header = read_header(file, path)
        footer = read_last_footer(file, last, path)
        _check_header(path, header, last, sealed, log_id)
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
        if footer is None:
            return ScannedLog(
                header.log_id, head, sealed, chain, index, position, header, is_sealed=False
            )
        # For the ledger that the next segment begins with.
        end = walk_file(file, path, chain, SegmentIndex(), position, header.salt)
    summary, index = footer
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
    chain.epoch = max(chain.epoch, hint.epoch if hint else 0)
    return ScannedLog(
        header.log_id, head, [*sealed, summary], chain, index, end, header, is_sealed=True
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
    view = memoryview(file.pread(length, end - length))
    header = frame.parse_header(view, 0)
    return (
        header is not None
        and header.crc == hint.previous_crc
        and frame.is_whole(view, header, frame.place(last.salt, end - length))
    )


def _read_sealed(
    fs: FileSystem,
    directory: Path,
    start: int,
    before: list[SegmentSummary],
    log_id: bytes | None,
) -> tuple[bytes, SegmentSummary]:
    path = directory / segment.file_name(start)
    with contextlib.closing(fs.open(path, "r")) as file:
        header = read_header(file, path)
        footer = read_footer(file, start, path)
    _check_header(path, header, start, before, log_id)
    if footer is None:
        raise CorruptionError("segment is not sealed although another one follows", path=str(path))
    return header.log_id, footer[0]


def _check_header(
    path: Path,
    header: SegmentHeader,
    start: int,
    before: list[SegmentSummary],
    log_id: bytes | None,
) -> None:
    """Check that a segment matches its name and continues the one before."""
    if header.start != start:
        raise CorruptionError(
            "segment is not the one its name says",
            path=str(path),
            expected=start,
            found=header.start,
        )
    if log_id is not None and log_id != header.log_id:
        raise CorruptionError(
            "segment belongs to another log",
            path=str(path),
            expected=log_id.hex(),
            found=header.log_id.hex(),
        )
    if before and before[-1].last_crc != header.previous_crc:
        raise CorruptionError(
            "segment does not continue the one before",
            path=str(path),
            expected=before[-1].last_crc,
            found=header.previous_crc,
        )


def _check_adjacent(directory: Path, sealed: list[SegmentSummary], start: int) -> None:
    if sealed and sealed[-1].limit != start:
        raise CorruptionError(
            "a segment is missing",
            path=str(directory),
            expected=segment.file_name(sealed[-1].limit),
            found=segment.file_name(start),
        )
