"""SegmentWriter: one segment of a log being built, with a temporary name until it is whole. Blocking.

Owns its file. Frames, chain and footer are those of a log's own writer; but as no append waits, a
segment is synced only once, at its end.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from walstore.batches.batch_builder import marks_column
from walstore.batches.conditions import MAX_STREAMS
from walstore.batches.framer import Framer, Spot
from walstore.building.framing import FramedRecords
from walstore.format import frame, segment
from walstore.format.ledger import Ledger, Marks, StreamInfo
from walstore.format.recovery import Chain
from walstore.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.ports import FileSystem

SPARE_NAME: Final = "restore.tmp"
_WRITE_BYTES: Final = 4 << 20
"""Frames are written once they have this many bytes together."""


class EncodedFrame(NamedTuple):
    """A frame without a position in the log yet: its header is blank."""

    data: bytearray
    body: frame.Body
    framed: FramedRecords
    marks: Marks


def encode_frame(
    framed: FramedRecords, start: int, ledger: Ledger, *, compress: bool
) -> EncodedFrame:
    """Return the frame of some records, the first of which has the offset ``start``.

    Streams that they open are marked as if appending had opened them. Streams above the limit of a log
    are left out, and appends to them will be refused.
    """
    room = MAX_STREAMS - len(ledger.streams)
    opened = {
        name: StreamInfo(is_open=True, metadata={}, opened_at=start + row)
        for name, row in islice(framed.opened.items(), room)
    }
    marks = Marks(streams=opened)
    columns = [marks_column(marks), *framed.columns] if opened else framed.columns
    data, body = frame.encode_body(columns, count=framed.count, compress=compress)
    return EncodedFrame(data, body, framed, marks)


class SegmentWriter:
    """A segment that continues the log at a chain, which advances with each frame."""

    def __init__(
        self, fs: FileSystem, directory: Path, chain: Chain, *, log_id: bytes, now_us: int
    ) -> None:
        """Create the file, replacing one of an interrupted writer; OSError."""
        assert chain.ledger is not None
        self._fs = fs
        self._directory = directory
        self._chain = chain
        self._ledger: Ledger = chain.ledger
        self._start = chain.next_offset
        self.index = SegmentIndex(SegmentStreams())
        """Of the frames so far."""
        self.size_bytes = segment.HEADER_BYTES
        """Length of header and frames so far."""
        spare = directory / SPARE_NAME
        with contextlib.suppress(FileNotFoundError):
            fs.remove(spare)
        self._file = fs.open(spare, "x")
        self.salt = segment.make_salt()
        """The segment's salt."""
        header = SegmentHeader(
            log_id, self._start, chain.epoch, now_us, chain.previous_crc, self.salt
        )
        self._waiting: list[bytes | bytearray] = [segment.encode_header(header)]
        self._waiting_bytes = self._written_bytes = 0
        if not self._ledger.is_empty:
            self.index.add(self._start, self.size_bytes, chain.timestamp_us)
            spot = Spot(frame.place(self.salt, self.size_bytes), self._start, 0)
            self._take(Framer(chain, compress=False).frame_ledger(spot))

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record yet."""
        return self._chain.next_offset == self._start

    def add(self, encoded: EncodedFrame) -> None:
        """Add a frame; OSError."""
        chain, framed, data = self._chain, encoded.framed, encoded.data
        header, crc = frame.encode_header(
            encoded.body,
            start=chain.next_offset,
            base_timestamp_us=framed.base_timestamp_us,
            max_timestamp_us=framed.last_timestamp_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=self._start,
            at=frame.place(self.salt, self.size_bytes),
        )
        data[: frame.HEADER_BYTES] = header
        self.index.add(chain.next_offset, self.size_bytes, framed.base_timestamp_us)
        self.index.streams.add(framed.streams)
        self._ledger.apply(encoded.marks)
        chain.next_offset += framed.count
        chain.previous_crc = crc
        chain.timestamp_us = framed.last_timestamp_us
        self._take(data)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def seal(self) -> SegmentSummary:
        """Write the footer, make the segment durable, and give it its name; OSError."""
        chain = self._chain
        summary = SegmentSummary(
            self._start,
            chain.next_offset,
            self.size_bytes,
            chain.previous_crc,
            chain.timestamp_us,
        )
        self._waiting.append(segment.encode_footer(summary, self.index))
        self._place()
        return summary

    def leave_open(self) -> None:
        """As :meth:`seal`, without the footer: the active segment of a log without records. OSError."""
        self._place()

    def close(self) -> None:
        """Release the file; twice is allowed. The next writer deletes a file without its final name."""
        self._file.close()

    # -- inside ------------------------------------------------------------------------------

    def _take(self, data: bytearray) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.size_bytes += len(data)

    def _write(self) -> None:
        self._file.pwrite(self._waiting, self._written_bytes)
        self._written_bytes += sum(map(len, self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _place(self) -> None:
        self._write()
        self._file.datasync()
        self._file.close()
        path = self._directory / segment.file_name(self._start)
        self._fs.replace(self._directory / SPARE_NAME, path)
        self._fs.sync_directory(self._directory)
