"""LedgerView: a log's state besides its records, read from its files. Reads only; blocking.

Every segment begins with the whole ledger, so only the active one is read, up to the position that the
writer has synced; a second look continues where the first one ended. The cell gives that position, unless
something follows it: a crash of the machine may leave an older cell. Then the files decide, as in
:mod:`walstore.files.log_bounds`, so that all but the last change before such a crash is visible.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from walstore.errors import StorageUnavailableError
from walstore.files.directory import evidence_of, list_segments, load_checkpoint, read_cell
from walstore.files.frame_walk import walk_file
from walstore.files.log_bounds import Testimony, read_bounds
from walstore.files.segment_file import peek_frame, read_footer, read_header, read_last_footer
from walstore.format import frame, segment
from walstore.format.checkpoint import DurableCell
from walstore.format.ledger import Ledger
from walstore.format.recovery import Chain, Evidence
from walstore.format.segment import SegmentHeader, SegmentIndex
from walstore.ports import File, FileSystem

_ATTEMPTS: Final = 100


class LedgerView:
    """The ledger of a log that another process may be writing. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        # How far the active segment was followed.
        self._start = 0
        self._position = 0
        self._chain: Chain | None = None
        self._salt: int | None = None

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
            salt = self._salt if is_known else read_header(file, path).salt
            behind = file.pread(frame.HEADER_BYTES, cell.tail_position)
            return salt == cell.tail_salt and not any(behind)
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
                self._salt = header.salt
            chain, self._chain = self._chain, None  # in case the next line raises
            self._position = walk_file(
                file, path, chain, SegmentIndex(), self._position, self._salt, end
            )
        if end is not None and self._position != end:
            return None
        self._chain = chain
        return chain.ledger


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
    end = walk_file(file, path, chain, SegmentIndex(), position, header.salt)
    known = min(chain.synced_position, end)
    is_ledger = position == segment.HEADER_BYTES and not first.count and not first.synced_position
    if is_ledger and end > position:
        known = max(known, position + first.length)  # synced before the file got its name
    return max(position, known)


def _is_transaction(file: File) -> bool:
    """Return whether a sealed segment is a large transaction, named only once it was whole."""
    first = peek_frame(file, segment.HEADER_BYTES)
    return first is not None and first.count > 0 and not first.synced_position
