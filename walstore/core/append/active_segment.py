"""ActiveSegment: the segment that frames are appended to. Its header, its index, its file, and what comes
next.

Blocking; belongs to the writer's thread. When to sync, and what to report of it, is decided by
:mod:`walstore.core.append.tail`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from walstore.core.batches.framer import Framer, Spot
from walstore.core.files.open_files import ActiveFile
from walstore.core.files.segment_file import Segment
from walstore.core.format import frame, segment
from walstore.core.format.ledger import Ledger
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.core.ports import File, FileSystem

_LEDGER_SHARE: Final = 4
"""A segment is at least this many times the size of its initial ledger, regardless of ``segment_bytes``."""


class ActiveSegment:
    """One at a time, of one open log: made by :meth:`make`, or found at open and taken by :meth:`adopt`."""

    found: Segment
    """What readers need of it."""
    header: SegmentHeader
    """Its header."""
    index: SegmentIndex
    """Its index, up to what was framed."""
    file: ActiveFile
    """Its file."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        *,
        log_id: bytes,
        segment_bytes: int,
        chain: Chain,
        framer: Framer,
    ) -> None:
        """Continue ``chain``, which the framer changes."""
        self._fs = fs
        self._directory = directory
        self._log_id = log_id
        self._segment_bytes = segment_bytes
        self._chain = chain
        self._framer = framer
        self._first_position = segment.HEADER_BYTES
        self._began_us = 0

    def adopt(self, found: Segment, file: File, position: int) -> None:
        """Continue a segment behind ``position``; all before it is durable."""
        assert found.header is not None
        assert found.index is not None
        self.found, self.header, self.index = found, found.header, found.index
        self._began_us = self.header.created_us
        self.file = ActiveFile(self._fs, found.path, file, position, self._segment_bytes)

    def make(
        self, created_us: int, ledger: Ledger, recycled: File | None
    ) -> list[bytes | bytearray]:
        """Make the next segment, durably, and return what it begins with: its header, and the ledger.

        ``recycled`` is the file of a segment that was given up, see :class:`SpareSegment`. If this fails,
        nothing has changed but that file.
        """
        before = self._chain.previous_crc
        try:
            return self._make(created_us, ledger, recycled)
        except BaseException:
            self._chain.previous_crc = before
            raise

    def _make(
        self, created_us: int, ledger: Ledger, recycled: File | None
    ) -> list[bytes | bytearray]:
        chain = self._chain
        header = SegmentHeader(
            self._log_id,
            chain.next_offset,
            chain.epoch,
            created_us,
            chain.previous_crc,
            segment.make_salt(),
            0 if recycled is None else segment.REUSES_BLOCKS,
        )
        pieces: list[bytes | bytearray] = [segment.encode_header(header)]
        index = SegmentIndex(SegmentStreams())
        if not ledger.is_empty:
            at = frame.place(header.salt, segment.HEADER_BYTES)
            pieces.append(self._framer.frame_ledger((at, chain.next_offset, 0)))
            index.add(chain.next_offset, segment.HEADER_BYTES, chain.timestamp_us)
        path = self._directory / segment.file_name(chain.next_offset)
        self.file = ActiveFile.create(self._fs, path, pieces, self._segment_bytes, recycled)
        self._first_position = self.file.position
        self._began_us = created_us
        self.found = Segment(path, chain.next_offset, None, index, header=header)
        self.header, self.index = header, index
        return pieces

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record yet."""
        return self._chain.next_offset == self.found.start

    def age_us(self, now_us: int) -> int:
        """Return how long ago it was made; a very long time if there was none yet."""
        return now_us - self._began_us

    def is_full(self, size_bytes: int, pending_bytes: int) -> bool:
        """Whether so many bytes more belong in the next one, behind those that are still to be written."""
        end = self.file.position + pending_bytes
        most = max(self._segment_bytes, _LEDGER_SHARE * self._first_position)
        return end + size_bytes > most and end > self._first_position

    def spot(self, position: int, durable_limit: int) -> Spot:
        """Return where a frame at ``position`` stands."""
        place = frame.place(self.header.salt, position)
        return place, durable_limit, self.file.durable_position

    def summary(self) -> SegmentSummary:
        """Return what its footer would say now."""
        return SegmentSummary(
            self.found.start,
            self._chain.next_offset,
            self.file.position,
            self._chain.previous_crc,
            self._chain.timestamp_us,
        )

    def seal(self) -> tuple[Segment, int]:
        """Write the footer, durably, and return the sealed segment and the size of its file.

        All frames are synced already, else a crash might keep the footer and lose frames that it covers.
        """
        summary = self.summary()
        footer = segment.encode_footer(summary, self.index)
        self.file.seal(footer)
        sealed = Segment(
            self.found.path, self.found.start, summary, self.found.index, header=self.header
        )
        return sealed, summary.data_bytes + len(footer)
