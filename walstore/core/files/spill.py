"""Spill: the records of a large transaction, in a file of their own until it commits. Blocking.

The file is a segment in the making: frames back to back, complete but for their headers, because offset,
time and chain are known only at the commit. Then 80 bytes per frame are rewritten, a footer is added, and
the file is renamed to a segment. That rename is the commit: a crash leaves all of the transaction or none,
and on one machine no other append waits for a large one. A replicated log copies it after the rename, and
appends behind it wait for that (docs/replication.md).

One thread at a time; no method may be called after ``discard`` or ``place``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from walstore.core.batches.batch_builder import BatchBuilder, RecordsInFile, marks_column
from walstore.core.files import spare_segment
from walstore.core.files.directory import is_name_taken
from walstore.core.files.segment_file import Segment
from walstore.core.format import frame, segment
from walstore.core.format.frame import Body
from walstore.core.format.ledger import Ledger
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError, Outcome, WalClosedError

logger = logging.getLogger("walstore.log")

PREFIX: Final = "transaction-"
SUFFIX: Final = ".tmp"
_SYNC_BYTES: Final = 32 << 20
"""Synced each time this much was written, since one sync of a gigabyte would delay the writer's."""


class _Frame(NamedTuple):
    position: int
    body: Body
    base_us: int
    last_us: int


class Spill(RecordsInFile):
    """The file of one transaction."""

    def __init__(self, fs: FileSystem, directory: Path, number: int, *, compress: bool) -> None:
        """Create the file; OSError. ``number`` distinguishes it from others of this log."""
        self._fs = fs
        self._salt = segment.make_salt()
        self.path = directory / f"{PREFIX}{number}-{self._salt:08x}{SUFFIX}"
        self._compress = compress
        self._file = fs.open(self.path, "x")
        self._is_discarded = False
        self._frames: list[_Frame] = []
        self._streams = SegmentStreams()
        self._position = segment.HEADER_BYTES
        self._synced_position = 0
        self._timestamp_us = 0
        self.is_placed = False
        """Whether it is a segment; then nothing is left to discard."""
        self.outcome: Outcome = "not_written"
        """What becomes of the transaction if the call of :meth:`place` that is now made fails."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far."""
        return self._position

    def add(self, draft: BatchBuilder, now_us: int) -> None:
        """Write a batch of the transaction; OSError, after which only ``discard`` is allowed.

        WalClosedError if it was discarded, because the log closed.
        """
        self._check()
        base_us, last_us, deltas = draft.times(now_us, self._timestamp_us)
        data, body = frame.encode_body(
            draft.columns(deltas), count=len(draft.values), compress=self._compress
        )
        self._file.pwrite([data], self._position)
        self._frames.append(_Frame(self._position, body, base_us, last_us))
        self._position += len(data)
        self._timestamp_us = last_us
        self._streams.add({name for name in draft.streams or () if name is not None})
        self.count += len(draft.values)
        if self._position - self._synced_position >= _SYNC_BYTES:
            self._file.datasync()
            self._synced_position = self._position

    def finish(self) -> None:
        """Make all of it durable, so that little is left to sync at the commit. Raises as :meth:`add`."""
        self._check()
        self._file.datasync()

    def place(
        self, directory: Path, chain: Chain, ledger: Ledger, *, log_id: bytes, now_us: int
    ) -> Segment:
        """Make the file the sealed segment that continues the log at ``chain``, which moves on.

        ``ledger`` is what the log remembers after the transaction. The segment is durable when this
        returns. OSError at any call; whether it is part of the log is then for recovery to say.
        """
        start, synced_limit = chain.next_offset, chain.next_offset
        header = SegmentHeader(log_id, start, chain.epoch, now_us, chain.previous_crc, self._salt)
        index = SegmentIndex(self._streams)
        for found in self._frames:
            base_us = max(found.base_us, chain.timestamp_us)
            self._give_place(found, chain, base_us, synced_limit)
            index.add(chain.next_offset - found.body.count, found.position, base_us)
        self._add_ledger(ledger, chain, index, synced_limit)
        summary = SegmentSummary(
            start, chain.next_offset, self._position, chain.previous_crc, chain.timestamp_us
        )
        footer = segment.encode_footer(summary, index)
        self._file.pwrite([footer], self._position)
        self._file.truncate(self._position + len(footer))
        self._file.pwrite([segment.encode_header(header)], 0)
        self._file.datasync()
        self._file.close()
        path = directory / segment.file_name(start)
        self.outcome = "unknown"
        self._fs.replace(self.path, path)
        self._fs.sync_directory(directory)
        self.is_placed = True
        self._frames.clear()
        return Segment(path, start, summary, index, header=header)

    def discard(self) -> None:
        """Delete the file; twice is allowed, and one that is gone already is no error."""
        self._is_discarded = True
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(self.path)

    # -- inside ------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._is_discarded:
            raise WalClosedError("the log was closed, and the transaction rolled back")

    def _give_place(self, found: _Frame, chain: Chain, base_us: int, synced_limit: int) -> None:
        """Write the header of a frame and move the chain behind it."""
        last_us = base_us + found.last_us - found.base_us
        header, crc = frame.encode_header(
            found.body,
            start=chain.next_offset,
            base_timestamp_us=base_us,
            max_timestamp_us=last_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=synced_limit,
            at=frame.place(self._salt, found.position),
        )
        self._file.pwrite([header], found.position)
        chain.next_offset += found.body.count
        chain.previous_crc = crc
        chain.timestamp_us = last_us

    def _add_ledger(
        self, ledger: Ledger, chain: Chain, index: SegmentIndex, synced_limit: int
    ) -> None:
        """End with the whole ledger: changed by the transaction, and by marks that only the segment
        it may take the place of has."""
        if ledger.is_empty:
            return
        column = marks_column(ledger.whole())
        data, body = frame.encode_body([column], count=0, compress=False)
        at = chain.timestamp_us
        found = _Frame(self._position, body, at, at)
        self._file.pwrite([data], self._position)
        index.add(chain.next_offset, self._position, at)
        self._position += len(data)
        self._give_place(found, chain, at, synced_limit)


def remove_leftovers(fs: FileSystem, directory: Path, names: Collection[str]) -> None:
    """Delete what a crash left, among the names in a directory: files of transactions, a spare segment.

    CorruptionError if no segment could be made because something else has its name.
    """
    for name in names:
        if (name.startswith(PREFIX) and name.endswith(SUFFIX)) or name == spare_segment.NAME:
            try:
                fs.remove(directory / name)
            except FileNotFoundError:
                continue
            except OSError as error:
                if is_name_taken(fs, directory, names):
                    raise CorruptionError(
                        f"a directory is named like the next segment, {name}; move it away",
                        path=str(directory / name),
                    ) from error
                logger.warning("%s in %s is deleted later: %s", name, directory, error)
