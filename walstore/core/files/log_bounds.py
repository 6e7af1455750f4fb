"""How far a log directory reaches, and its ledger, seen without the lock. Reads only; blocking.

For processes that read a log next to a live writer, or after the writer is gone. Readers may see:

  * up to the cell's visible limit, which the writer stores after each sync;
  * more than that if a crash of the machine left an old cell: the checkpoint, and the ``synced_limit`` of
    frames behind the cell's position, prove that more was synced. So all but the last write before such a
    crash is visible before a writer opens the log again;
  * without a cell (a copy that lacks it, or one that was cut off within its update) all that recovery
    would keep: the frames up to the first that does not continue the log.

A live writer may do anything between two reads. So the cell is read before the files, and read again if
they disagree with it. :func:`find_missing` reports what had been synced and is gone from the end of a log.

:class:`LedgerView` reads a log's state besides its records by the same rules. Every segment begins with the
whole ledger, so only the active one is read, up to the position that the writer has synced; a second look
continues where the first one ended.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from walstore.core.files.directory import (
    evidence_of,
    list_segments,
    load_checkpoint,
    read_cell,
    read_segment_header,
)
from walstore.core.files.frame_walk import used_limit, walk_file
from walstore.core.files.segment_file import (
    peek_frame,
    read_footer,
    read_header,
    read_last_footer,
    trailer_length,
)
from walstore.core.format import frame, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.ledger import Ledger
from walstore.core.format.recovery import Chain, Evidence, Verdict, judge
from walstore.core.format.segment import SegmentHeader, SegmentIndex
from walstore.core.ports import File, FileSystem
from walstore.errors import CorruptionError, LogNotFoundError, StorageUnavailableError

_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The result of one look. All of it was true at one moment during the look."""

    log_id: bytes
    epoch: int
    """Number of times the log had been opened for writing."""
    head: int
    """First retained offset."""
    limit: int
    """Every offset in ``[head, limit)`` can be read from the files and is visible to readers."""
    written_limit: int
    """End of the whole batches that were seen; those at or above ``limit`` may still be lost."""
    starts: tuple[int, ...]
    """First offsets of the segments, in order; the last one is the active one unless it is sealed."""
    tail_index: SegmentIndex
    """The known part of the last segment's index; may end early."""
    cell: DurableCell | None
    hint: Checkpoint | None


@dataclass(slots=True)
class Testimony(Chain):
    """A chain of frames that records what they prove was synced."""

    synced_limit: int = 0
    synced_position: int = 0
    """In the segment of the frame that said so."""

    def advance(self, header: frame.FrameHeader) -> None:
        """Take a frame into account."""
        Chain.advance(self, header)
        self.synced_limit = max(self.synced_limit, header.synced_limit)
        self.synced_position = max(self.synced_position, header.synced_position)


def read_bounds(fs: FileSystem, directory: Path) -> LogBounds:
    """Return how far the log in a directory reaches.

    Raises LogNotFoundError if there is none, CorruptionError or FormatVersionError if its headers cannot
    be read, StorageUnavailableError if it changes faster than it can be read.
    """
    for _ in range(_ATTEMPTS):
        try:
            cell = read_cell(fs, directory)  # before the listing, so that its segment is listed
        except NotADirectoryError:
            cell = None
        starts = list_segments(fs, directory)
        if not starts:
            raise LogNotFoundError(f"there is no log at {directory}", location=str(directory))
        hint = load_checkpoint(fs, directory)
        is_known = cell is not None and cell.tail_start in starts
        try:
            if cell is not None and is_known:
                found = _measure_by_cell(fs, directory, cell, hint, starts)
            else:
                found = _measure_by_walk(fs, directory, cell, hint, starts)
        except FileNotFoundError:
            continue  # retention was faster
        except CorruptionError:
            if read_cell(fs, directory) == cell:
                raise
            continue  # a segment got its footer meanwhile
        # Between making a segment and storing the cell, the writer has synced nothing of it. A cell that
        # is unchanged after the walk proves that the writer did not get further.
        if is_known or read_cell(fs, directory) == cell:
            return found
    raise StorageUnavailableError(f"the log at {directory} changes too fast to be looked at")


def _measure_by_cell(
    fs: FileSystem,
    directory: Path,
    cell: DurableCell,
    hint: Checkpoint | None,
    starts: list[int],
) -> LogBounds:
    """Trust the cell, and the evidence of the files behind its position."""
    header = read_segment_header(fs, directory, cell.tail_start)
    chain = Testimony(cell.durable_limit, 0, 0, cell.epoch)
    position = cell.tail_position
    for start in starts[starts.index(cell.tail_start) :]:
        if start > chain.next_offset:
            break
        _follow(fs, directory / segment.file_name(start), chain, position)
        position = segment.HEADER_BYTES
    # Records that are visible but not durable count only if they are in the files: a crash of the machine
    # may have kept the cell and lost them.
    limit = max(
        cell.durable_limit,
        hint.next_offset if hint is not None else 0,
        min(max(cell.visible_limit, chain.synced_limit), chain.next_offset),
    )
    return LogBounds(
        log_id=header.log_id,
        epoch=max(cell.epoch, chain.epoch),
        head=_head(cell, hint, starts),
        limit=limit,
        written_limit=max(limit, chain.next_offset),
        starts=tuple(starts),
        tail_index=_tail_index(hint, starts[-1]),
        cell=cell,
        hint=hint,
    )


def _follow(fs: FileSystem, path: Path, chain: Chain, position: int) -> None:
    """Move a chain along the frames of one file; its first frame gives the link to the file before."""
    with contextlib.closing(fs.open(path, "r")) as file:
        salt = read_header(file, path).salt
        first = peek_frame(file, position)
        if first is not None and first.start == chain.next_offset:
            chain.previous_crc = first.previous_crc
            walk_file(file, path, chain, salt, position)


def _measure_by_walk(
    fs: FileSystem,
    directory: Path,
    cell: DurableCell | None,
    hint: Checkpoint | None,
    starts: list[int],
) -> LogBounds:
    """Do as recovery does: the log ends where its frames end."""
    path = directory / segment.file_name(starts[-1])
    with contextlib.closing(fs.open(path, "r")) as file:
        header = read_header(file, path)
        limit, index, epoch = _walk_last(file, path, hint, header)
    return LogBounds(
        log_id=header.log_id,
        epoch=max(epoch, hint.epoch if hint is not None else 0),
        head=_head(None, hint, starts),
        limit=limit,
        written_limit=limit,
        starts=tuple(starts),
        tail_index=index,
        cell=cell,
        hint=hint,
    )


def _walk_last(
    file: File, path: Path, hint: Checkpoint | None, header: SegmentHeader
) -> tuple[int, SegmentIndex, int]:
    """Return where the last segment's records end, its index, and the epoch of its last frame.

    Records that had been synced and are damaged count: a reader that gets there reports the damage.
    """
    footer = read_last_footer(file, header.start, path)
    if footer is not None:
        return footer[0].limit, footer[1], header.epoch
    index = SegmentIndex()
    chain = Chain(header.start, header.previous_crc, 0, header.epoch)
    end = walk_file(file, path, chain, header.salt, index=index)
    evidence = evidence_of(header.start, header.salt, hint, None)
    rest = memoryview(file.pread(used_limit(file, end) - end, end))
    verdict, _ = judge(rest, chain, evidence, position=end, header=header)
    if verdict is not Verdict.CORRUPT:
        return chain.next_offset, index, chain.epoch
    return max(chain.next_offset + 1, evidence.durable_limit), index, chain.epoch


def _head(cell: DurableCell | None, hint: Checkpoint | None, starts: list[int]) -> int:
    return max(
        starts[0], cell.head if cell is not None else 0, hint.head if hint is not None else 0
    )


def _tail_index(hint: Checkpoint | None, start: int) -> SegmentIndex:
    """Return the part of a segment's index that the checkpoint has.

    A segment without records may be replaced by another of the same name, so only the index of one that
    holds records stays valid.
    """
    if hint is not None and hint.tail_start == start and hint.next_offset > start:
        return hint.tail_index
    return SegmentIndex()


def find_missing(fs: FileSystem, directory: Path) -> int | None:
    """Return the first offset that had been durable and is cut off the end of the log, or None.

    If only changes without records are cut off (registers, streams), that is the log's next offset.
    The end of the last file is compared with the checkpoint and the durable cell. Damage that left bytes
    in place is not reported; ``walstore verify`` finds it. May run next to a live writer.
    Raises LogNotFoundError, CorruptionError and FormatVersionError if the last file cannot be read.
    """
    cell, hint = read_cell(fs, directory), load_checkpoint(fs, directory)
    starts = list_segments(fs, directory)
    if not starts:
        return None
    path = directory / segment.file_name(starts[-1])
    try:
        file = fs.open(path, "r")
    except FileNotFoundError:  # retention deleted it, so there are newer ones
        return None
    try:
        return _find_missing(file, path, starts[-1], hint, cell)
    finally:
        file.close()


def _find_missing(
    file: File, path: Path, start: int, hint: Checkpoint | None, cell: DurableCell | None
) -> int | None:
    """Compare the end of the last file with what was synced."""
    header = read_header(file, path)
    evidence = evidence_of(start, header.salt, hint, cell)
    footer = read_last_footer(file, start, path)
    if footer is not None:
        return footer[0].limit if footer[0].limit < evidence.durable_limit else None
    chain, position = Chain(start, header.previous_crc, 0, header.epoch), segment.HEADER_BYTES
    is_noted = hint is not None and (hint.tail_start, hint.tail_salt) == (start, header.salt)
    if hint is not None and is_noted and _has_trailer(file, hint.tail_position):
        chain = Chain(hint.next_offset, hint.previous_crc, 0, header.epoch)
        position = hint.tail_position
    end = walk_file(file, path, chain, header.salt, position)
    has_rest = not header.reuses_blocks and used_limit(file, end) > end
    is_short = evidence.durable_limit > chain.next_offset or evidence.durable_position > end
    return chain.next_offset if is_short and not has_rest else None


def _has_trailer(file: File, position: int) -> bool:
    """Return whether a frame seems to end at a position."""
    least = segment.HEADER_BYTES + frame.TRAILER.size
    return position >= least and trailer_length(file, position) is not None


class LedgerView:
    """The ledger of a log that another process may be writing. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        # How far the active segment was followed.
        self._start = 0
        self._position = 0
        self._chain: Chain | None = None
        self._header: SegmentHeader | None = None

    def look(self) -> Ledger:
        """Return the ledger of what is durable now. The caller must not change it; the next look updates it.

        Raises LogNotFoundError, CorruptionError, FormatVersionError, StorageUnavailableError, OSError.
        """
        for _ in range(_ATTEMPTS):
            cell = read_cell(self._fs, self._directory)
            try:
                if cell is None:
                    found = self._follow(read_bounds(self._fs, self._directory).starts[-1], None)
                elif self._is_last(cell):
                    found = self._follow(cell.tail_start, cell.tail_position)
                else:
                    place = _durable_place(self._fs, self._directory, cell)
                    found = self._follow(*place) if place is not None else None
            except FileNotFoundError:
                read_bounds(self._fs, self._directory)  # raises if the log is gone
                continue
            if found is not None:
                return found
        raise StorageUnavailableError(
            f"the log at {self._directory} changes too fast, or a crash left it between two segments; "
            "then it must be opened for writing first"
        )

    def _is_last(self, cell: DurableCell) -> bool:
        """Return whether nothing follows the place that the cell names."""
        path = self._directory / segment.file_name(cell.tail_start)
        try:
            file = self._fs.open(path, "r")
        except FileNotFoundError:
            return False
        try:
            is_known = self._chain is not None and cell.tail_start == self._start
            header = self._header if is_known else None
            header = header or read_header(file, path)
            behind = file.pread(frame.HEADER_BYTES, cell.tail_position)
            return header.salt == cell.tail_salt and not _goes_on(behind, header, cell)
        finally:
            file.close()

    def _follow(self, start: int, end: int | None) -> Ledger | None:
        """Follow a segment to byte ``end`` (None: to its end); None if its frames do not reach that byte.

        A segment that holds only marks may be replaced by another of the same name.
        """
        path = self._directory / segment.file_name(start)
        with contextlib.closing(self._fs.open(path, "r")) as file:
            if self._chain is None or start != self._start or (end or 0) < self._position:
                header = read_header(file, path)
                self._chain = Chain(start, header.previous_crc, 0, header.epoch, Ledger())
                self._start, self._position = start, segment.HEADER_BYTES
                self._header = header
            assert self._header is not None
            chain, self._chain = self._chain, None  # in case the next line raises
            salt = self._header.salt
            self._position = walk_file(file, path, chain, salt, self._position, end=end)
        if end is not None and self._position != end:
            return None
        self._chain = chain
        return chain.ledger


def _goes_on(behind: bytes, header: SegmentHeader, cell: DurableCell) -> bool:
    """Return whether a segment seems to have more than the cell says, by the bytes that follow."""
    if not header.reuses_blocks:
        return any(behind)
    first = frame.parse_header(memoryview(behind), 0)
    if first is None:
        return behind.startswith(segment.FOOTER_MAGIC)
    return first.start >= cell.durable_limit  # else of an earlier use of the file


def _durable_place(fs: FileSystem, directory: Path, cell: DurableCell) -> tuple[int, int] | None:
    """Return a segment and the byte up to which it is durable; None if that cannot be known now.

    A segment is sealed and synced before the next one gets its name, so only the last one is uncertain.
    """
    starts = list_segments(fs, directory)
    if not starts:
        raise FileNotFoundError(directory)
    hint = load_checkpoint(fs, directory)
    last = starts[-1]
    path = directory / segment.file_name(last)
    with contextlib.closing(fs.open(path, "r")) as file:
        header = read_header(file, path)
        footer = read_last_footer(file, last, path)
        if footer is None:
            evidence = evidence_of(last, header.salt, hint, cell)
            return last, _durable_position(file, path, header, evidence)
        end = footer[0].data_bytes
        is_named = (last, header.salt) == (cell.tail_start, cell.tail_salt)
        if is_named and cell.tail_position >= end:
            return last, end
        if header.salt is None or not _is_transaction(file):
            return last, end
    # Its name may not be durable. It may have replaced the only segment that held the ledger.
    replaced = last in (cell.tail_start, hint.tail_start if hint is not None else 0)
    if replaced or len(starts) == 1:
        return None
    path = directory / segment.file_name(starts[-2])
    with contextlib.closing(fs.open(path, "r")) as file:
        footer = read_footer(file, starts[-2], path)
    return None if footer is None else (starts[-2], footer[0].data_bytes)


def _durable_position(file: File, path: Path, header: SegmentHeader, evidence: Evidence) -> int:
    """Return up to where a segment without a footer is known to be synced."""
    position = max(evidence.durable_position, segment.HEADER_BYTES)
    first = peek_frame(file, position)
    if first is None:
        return position
    chain = Testimony(first.start, first.previous_crc, 0, first.epoch)
    end = walk_file(file, path, chain, header.salt, position)
    known = min(chain.synced_position, end)
    is_ledger = position == segment.HEADER_BYTES and not first.count and not first.synced_position
    if is_ledger and end > position:
        known = max(known, position + first.length)  # synced before the file got its name
    return max(position, known)


def _is_transaction(file: File) -> bool:
    """Return whether a sealed segment is a large transaction, named only once it was whole."""
    first = peek_frame(file, segment.HEADER_BYTES)
    return first is not None and first.count > 0 and not first.synced_position
