"""LedgerView: what a log remembers beside its records, as its files tell. Reads only; blocking.

Every segment begins with the whole ledger, so only the active one is read, up to where the writer has
synced it; a second look goes on where the first one ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from walstore import segment
from walstore.directory import read_cell, walk_file
from walstore.errors import StorageUnavailableError
from walstore.extent import measure
from walstore.ledger import Ledger
from walstore.log_files import cut_at
from walstore.ports import FileSystem
from walstore.recovery import Chain
from walstore.segment import SegmentIndex
from walstore.segment_file import read_header

_ATTEMPTS: Final = 100


class LedgerView:
    """The ledger of a log that somebody else may be writing. One thread at a time."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        # How far the active segment was followed.
        self._start = 0
        self._position = 0
        self._chain: Chain | None = None
        self._salt: int | None = None

    def look(self) -> Ledger:
        """Return the ledger as of what is durable now. Not to be changed; the next look updates it.

        Raises LogNotFoundError, CorruptionError, FormatVersionError, StorageUnavailableError, OSError.
        """
        for _ in range(_ATTEMPTS):
            cell = read_cell(self._fs, self._directory)
            try:
                if cell is not None:
                    found = self._follow(cell.tail_start, cell.tail_position)
                else:
                    found = self._follow(measure(self._fs, self._directory).starts[-1], None)
            except FileNotFoundError:
                measure(self._fs, self._directory)  # says so if the log is gone
                continue
            if found is not None:
                return found
        raise StorageUnavailableError(f"the log at {self._directory} changes too fast")

    def _follow(self, start: int, end: int | None) -> Ledger | None:
        """Follow a segment to byte ``end`` (None: as far as it goes); None if it does not lead there.

        A segment that holds only marks may be replaced by another one of its name.
        """
        path = self._directory / segment.file_name(start)
        file = self._fs.open(path, "r")
        try:
            if self._chain is None or start != self._start or (end or 0) < self._position:
                header = read_header(file, path)
                self._chain = Chain(start, header.previous_crc, 0, header.epoch, Ledger())
                self._start, self._position = start, segment.HEADER_BYTES
                self._salt = header.salt
            source = file if end is None else cut_at(file, end)
            chain, self._chain = self._chain, None  # in case that the next line does not return
            self._position = walk_file(
                source, path, chain, SegmentIndex(), self._position, self._salt
            )
        finally:
            file.close()
        if end is not None and self._position != end:
            return None
        self._chain = chain
        return chain.ledger
