"""LogBuilder: builds a log directory from records in offset order. Blocking; one thread.

It writes segments one after the other (``segment_writer.py``), then checkpoint and durable cell, and
removes the marker last (:class:`RestoreMarker`). Until then the directory does not open as a log. A
builder that finds the marker of an interrupted build of the same log continues after its last whole
segment.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from walstore.care.building.segment_writer import (
    SPARE_NAME,
    FramedRecords,
    SegmentWriter,
    encode_frame,
    frame_records,
)
from walstore.core.batches.cost import BATCH_RECORDS
from walstore.core.files.directory import LOCK_NAME, RESTORE_NAME, write_durably, write_hints
from walstore.core.files.frame_walk import walk_file
from walstore.core.files.locks import lock_log
from walstore.core.files.segment_file import read_footer, read_header
from walstore.core.format import checkpoint, segment
from walstore.core.format import claims as claims_file
from walstore.core.format.checkpoint import Checkpoint
from walstore.core.format.claims import Claims
from walstore.core.format.ledger import Ledger, Marks, StreamInfo
from walstore.core.format.packed import MOST_START, MOST_TIMESTAMP_US
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentIndex, SegmentSummary
from walstore.core.ports import Clock, FileSystem
from walstore.core.settings import Settings
from walstore.errors import CorruptionError, InvalidSettingsError, WalError

logger = logging.getLogger("walstore.repair")

_EPOCH: Final = 1
_HARMLESS: Final = frozenset(
    (LOCK_NAME, f"{RESTORE_NAME}.tmp", claims_file.FILE_NAME, f"{claims_file.FILE_NAME}.tmp")
)
"""Files left by a restore that failed or was interrupted before it began, or by such an opening."""
_MARKER_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RestoreMarker:
    """The file that marks a directory with a restore in progress, which the same values continue.

    It has a segment's name but is no segment, so that the directory does not open as a log.
    """

    url: str
    """The source, without credentials."""
    log_id: str
    """Identity of the log to restore, in hex."""
    head: int
    """Its first offset."""
    stop: int | None
    """Its last offset plus one, if the caller gave one."""

    def encode(self) -> bytes:
        """Return the content of the file: a line of JSON and its CRC."""
        line = json.dumps({"version": _MARKER_VERSION, **asdict(self)}).encode()
        return line + b"\n%08x\n" % crc32c(line)

    @classmethod
    def decode(cls, data: bytes) -> RestoreMarker | None:
        """Read :meth:`encode`; None if it is damaged, forged or of another version."""
        line, _, crc = data.partition(b"\n")
        if crc != b"%08x\n" % crc32c(line):
            return None
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or fields.pop("version", None) != _MARKER_VERSION:
            return None
        stop = fields.get("stop")
        is_right = (
            set(fields) == {"url", "log_id", "head", "stop"}
            and isinstance(fields["url"], str)
            and isinstance(fields["log_id"], str)
            and all(
                type(at) is int and at >= 0 for at in (fields["head"], 0 if stop is None else stop)
            )
        )
        return cls(**fields) if is_right else None


class LogBuilder:
    """A log being built. After an error only :meth:`discard` and :meth:`close` are allowed."""

    def __init__(
        self, fs: FileSystem, clock: Clock, directory: Path, settings: Settings, owner: str
    ) -> None:
        """Take the directory, creating it if needed, and lock it.

        WalLockedError if it is open elsewhere; InvalidSettingsError if it contains files that no
        restore made; OSError.
        """
        self._clock = clock
        self._directory = directory
        self._settings = settings
        self._log_id = b""
        self._ledger = Ledger()
        self._chain = Chain(0, 0, 0, _EPOCH, self._ledger)
        self._sealed: list[SegmentSummary] = []
        self._tail_index = SegmentIndex()
        self._tail_salt: int | None = None
        self._tail_position = segment.HEADER_BYTES
        self._writer: SegmentWriter | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = self._gathered_bytes = 0
        self._head = 0
        fs.make_directory(directory)
        # From here on it is this directory, even if its path leads elsewhere.
        self._fs = fs.anchor(directory)
        try:
            self._check_vacant()  # before the lock, which would add a file to a foreign directory
            self._lock = lock_log(self._fs, directory, owner)
            try:
                self._check_vacant()
            except BaseException:
                self._lock.release()
                raise
        except BaseException:
            self._fs.close()
            raise

    @property
    def head(self) -> int:
        """Offset of the first record."""
        return self._head

    @property
    def position(self) -> int:
        """Offset of the next record to add."""
        return self._chain.next_offset + self._gathered_rows

    @property
    def streams(self) -> int:
        """Streams that were found so far."""
        return len(self._ledger.streams)

    @property
    def segments(self) -> int:
        """Whole segments with records."""
        return len(self._sealed)

    @property
    def size_bytes(self) -> int:
        """Bytes of those segments, without their footers."""
        return sum(summary.data_bytes for summary in self._sealed)

    def interrupted(self) -> RestoreMarker | None:
        """Return the marker of an interrupted restore, if there is one; OSError."""
        try:
            return RestoreMarker.decode(self._fs.read(self._directory / RESTORE_NAME))
        except FileNotFoundError:
            return None

    def begin(self, marker: RestoreMarker, streams: Mapping[str, StreamInfo] | None = None) -> None:
        """Begin a log, or continue an interrupted one at :attr:`position`. OSError.

        ``streams`` are those of the log in addition to those of its records.
        """
        self._log_id = bytes.fromhex(marker.log_id)
        self._forget(marker.head)
        if self.interrupted() != marker or not self._could_resume():
            self._forget(marker.head)
            self._remove_files()
            write_durably(self._fs, self._directory / RESTORE_NAME, marker.encode())
        self._ledger.apply(Marks(streams=dict(streams or {})))

    def add(self, records: Iterable[pa.RecordBatch]) -> None:
        """Append records, in the columns of ``walstore.core.batches.arrow.SCHEMA``; OSError.

        A small number of records waits for more, so that small fragments do not make small batches.
        """
        for batch in records:
            self._gathered.append(batch)
            self._gathered_rows += batch.num_rows
            self._gathered_bytes += batch.nbytes
            is_full = self._gathered_bytes >= self._settings.batch_bytes
            if is_full or self._gathered_rows >= BATCH_RECORDS:
                self._frame_gathered()

    def finish(
        self, *, uploaded_limit: int, tier_url: str | None, succeeds: str | None = None
    ) -> None:
        """Make it a log that opens; ``uploaded_limit`` is 0 if it is shipped nowhere. OSError.

        ``succeeds`` is the claim of the directory that it replaces, or None.
        """
        self._frame_gathered()
        if not self._sealed and self._writer is None:
            writer = self._begin_segment()
            writer.leave_open()
            self._tail_salt = writer.salt
            self._tail_index = writer.index
            self._tail_position = writer.size_bytes  # it begins with the streams, if there are any
        elif self._writer is not None:
            self._seal(self._writer)
        self._writer = None
        self._write_hints(uploaded_limit, tier_url)
        path, claims = self._directory / claims_file.FILE_NAME, Claims(succeeds=succeeds)
        write_durably(self._fs, path, claims.encode())
        self._fs.remove(self._directory / RESTORE_NAME)
        self._fs.sync_directory(self._directory)

    def discard(self) -> None:
        """Remove the files, the marker last; OSError. Without a marker the log is whole, and stays."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if RESTORE_NAME in self._fs.list(self._directory):
            self._remove_files()
            self._fs.remove(self._directory / RESTORE_NAME)
            self._fs.sync_directory(self._directory)

    def close(self) -> None:
        """Release the lock; twice is allowed. An unfinished build can be continued."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            self._lock.release()
            self._fs.close()

    # -- inside ------------------------------------------------------------------------------

    def _forget(self, head: int) -> None:
        self._ledger = Ledger()
        self._chain = Chain(head, 0, 0, _EPOCH, self._ledger)
        self._head = head
        self._sealed.clear()
        self._gathered.clear()
        self._gathered_rows = self._gathered_bytes = 0

    def _check_vacant(self) -> None:
        names = set(self._fs.list(self._directory)) - _HARMLESS
        if names and RESTORE_NAME not in names:
            raise InvalidSettingsError(
                f"{self._directory} is not empty; restore into a directory of its own"
            )

    def _frame_gathered(self) -> None:
        batches, self._gathered = self._gathered, []
        self._gathered_rows = self._gathered_bytes = 0
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in batches:
            found = frame_records(
                batch,
                floor_us=self._chain.timestamp_us,
                batch_bytes=self._settings.batch_bytes,
                known_streams=self._ledger.streams,
            )
            for framed in found:
                self._add(framed)

    def _add(self, framed: FramedRecords) -> None:
        if framed.last_timestamp_us > MOST_TIMESTAMP_US or self._chain.next_offset > MOST_START:
            raise CorruptionError(
                f"no log on disk can have the records from offset {self._chain.next_offset} on, up to the "
                f"time {framed.last_timestamp_us} µs",
                path=str(self._directory),
            )
        compress = self._settings.compression is not None
        encoded = encode_frame(framed, self._chain.next_offset, self._ledger, compress=compress)
        writer = self._writer
        if (
            writer is not None
            and not writer.is_empty
            and writer.size_bytes + len(encoded.data) > self._settings.segment_bytes
        ):
            self._seal(writer)
            writer = None
        if writer is None:
            writer = self._begin_segment()
        writer.add(encoded)

    def _begin_segment(self) -> SegmentWriter:
        self._writer = SegmentWriter(
            self._fs,
            self._directory,
            self._chain,
            log_id=self._log_id,
            now_us=self._clock.now_us(),
        )
        return self._writer

    def _seal(self, writer: SegmentWriter) -> None:
        self._sealed.append(writer.seal())
        self._tail_index, self._tail_salt = writer.index, writer.salt
        self._writer = None

    def _resume(self) -> None:
        """Take over the segments of an interrupted restore; WalError if they do not fit together."""
        names = self._fs.list(self._directory)
        starts = sorted(start for name in names if (start := segment.parse_file_name(name)))
        for start in starts:
            path = self._directory / segment.file_name(start)
            file = self._fs.open(path, "r")
            try:
                header, footer = read_header(file, path), read_footer(file, start, path)
                expected = (self._log_id, self.position, self._chain.previous_crc)
                found = (header.log_id, header.start, header.previous_crc)
                if footer is None or found != expected:
                    raise CorruptionError("a segment does not continue the log", path=str(path))
                summary, self._tail_index = footer
                self._tail_salt = header.salt
                if start == starts[-1]:
                    chain = Chain(start, header.previous_crc, 0, _EPOCH, self._ledger)
                    walk_file(file, path, chain, header.salt)
            finally:
                file.close()
            self._sealed.append(summary)
            self._chain.next_offset = summary.limit
            self._chain.previous_crc = summary.last_crc
            self._chain.timestamp_us = summary.max_timestamp_us

    def _could_resume(self) -> bool:
        try:
            self._resume()
        except WalError as error:
            logger.warning("an interrupted restore is started again: %s", error)
            return False
        return True

    def _remove_files(self) -> None:
        made = (
            SPARE_NAME,
            checkpoint.FILE_NAME,
            checkpoint.CELL_FILE_NAME,
            claims_file.FILE_NAME,
        )
        spare = {f"{name}.tmp" for name in (*made, RESTORE_NAME)}
        for name in self._fs.list(self._directory):
            if name in made or name in spare or segment.parse_file_name(name) is not None:
                self._fs.remove(self._directory / name)
        self._fs.sync_directory(self._directory)

    def _write_hints(self, uploaded_limit: int, tier_url: str | None) -> None:
        """Write the checkpoint and the cell. Until something is appended, the log ends in its last segment,
        although that is sealed."""
        last = self._sealed[-1] if self._sealed else None
        hint = Checkpoint(
            log_id=self._log_id,
            epoch=_EPOCH,
            head=self._head,
            sealed=tuple(self._sealed[:-1]),
            tail_start=last.start if last else self._head,
            tail_position=last.data_bytes if last else self._tail_position,
            tail_index=self._tail_index,
            next_offset=self.position,
            previous_crc=self._chain.previous_crc,
            timestamp_us=self._chain.timestamp_us,
            uploaded_limit=uploaded_limit,
            tier_url=tier_url,
            ledger=b"" if self._ledger.is_empty else self._ledger.whole().encode(),
            tail_salt=self._tail_salt,
        )
        write_hints(self._fs, self._directory, hint)
