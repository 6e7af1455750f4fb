"""Tail: the blocking half of the writer. Owns the active segment's file.

Every method runs on the log's one writer thread, one at a time. A commit frames all drafts, writes them
with one call, syncs once, and only then reports them; between two commits the files on disk are always
ones that recovery accepts.

Invariants (tests/walstore/test_tail.py, tests/scenarios)
  T1  ``durable_limit`` moves only after the sync that covers it returned.
  T2  After an OSError nothing is written any more; a sync is never called again on the same data.
  T3  A segment is sealed and synced before the next one gets its name.
  T4  The head is durable in a checkpoint before a file below it is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from walstore import checkpoint, frame, segment
from walstore.batch import FrameBatch
from walstore.checkpoint import Checkpoint, DurableCell
from walstore.draft import Draft
from walstore.errors import Outcome
from walstore.ports import Cell, Clock, File, FileSystem
from walstore.recovery import Chain
from walstore.segment import SegmentHeader, SegmentIndex, SegmentSummary
from walstore.segment_file import Segment
from walstore.settings import Settings

SPARE_NAME: Final = "next.tmp"
_LEAST_STEP_BYTES: Final = 1 << 20
_MOST_STEP_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit did; everything in it is durable."""

    batches: list[FrameBatch]
    sealed: list[Segment]
    """Segments that were sealed on the way, oldest first."""
    active: Segment


class CommitError(Exception):
    """A commit failed: below ``durable_limit`` all is safe; ``outcome`` holds for the rest."""

    def __init__(self, cause: OSError, durable_limit: int, outcome: Outcome) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.durable_limit = durable_limit
        self.outcome = outcome


class Tail:
    """The active segment and the state that the next frame continues."""

    def __init__(
        self,
        *,
        fs: FileSystem,
        clock: Clock,
        settings: Settings,
        directory: Path,
        log_id: bytes,
        chain: Chain,
        head: int,
        sealed: Sequence[SegmentSummary],
        active: tuple[Segment, File, int] | None,
        cell: Cell,
        uploaded_limit: int,
        tier_url: str | None,
    ) -> None:
        # Set once at open.
        self._fs = fs
        self._clock = clock
        self._settings = settings
        self._directory = directory
        self._log_id = log_id
        self._cell = cell
        # Owned by the writer thread.
        self._chain = chain
        self._sealed = list(sealed)
        self._since_checkpoint_bytes = 0
        self._outcome: Outcome = "not_written"
        self.head = head
        self.uploaded_limit = uploaded_limit
        self.tier_url = tier_url
        self.durable_limit = chain.next_offset
        self._durable_position = 0
        self.attempted_limit = chain.next_offset
        """Limit of the last commit begun; above it nothing was ever handed to the disk."""
        if active is None:
            self._create_segment()
        else:
            self.active, self._file, self._position = active
            self._reserved = self._durable_position = self._position
        try:
            self.checkpoint()  # makes the new epoch durable before any frame carries it
            self._store_cell()
        except BaseException:
            self._file.close()
            raise

    @property
    def epoch(self) -> int:
        """Epoch of this opening of the log; in every frame it writes."""
        return self._chain.epoch

    @property
    def is_empty(self) -> bool:
        """Whether the active segment holds no record yet."""
        return self._position == segment.HEADER_BYTES

    @property
    def wants_checkpoint(self) -> bool:
        """Whether enough was written since the last checkpoint."""
        return self._since_checkpoint_bytes >= self._settings.checkpoint_bytes

    def commit(self, drafts: Sequence[Draft]) -> Commit:
        """Write and sync the drafts; CommitError if that failed, after which only close is allowed."""
        frames: list[bytearray] = []
        batches: list[FrameBatch] = []
        sealed: list[Segment] = []
        self._outcome = "not_written"
        self.attempted_limit = drafts[-1].limit
        try:
            now_us = self._clock.now_us()
            for draft in drafts:
                if self._is_full(draft, frames):
                    self._write(frames)
                    sealed.append(self.rotate())
                    frames = []
                batches.append(self._frame(draft, now_us, frames))
            self._write(frames)
            self._sync()
        except OSError as error:
            raise CommitError(error, self.durable_limit, self._outcome) from error
        return Commit(batches, sealed, self.active)

    def rotate(self) -> Segment:
        """Seal the active segment, begin the next, and return the sealed one.

        Unsynced frames become durable on the way. OSError if a call failed; then the log is failed.
        """
        if self._chain.next_offset > self.durable_limit:
            self._sync()  # else a crash might keep the footer and lose frames that it vouches for
        assert self.active.index is not None
        summary = SegmentSummary(
            self.active.start,
            self._chain.next_offset,
            self._position,
            self._chain.previous_crc,
            self._chain.timestamp_us,
        )
        footer = segment.encode_footer(summary, self.active.index)
        self._file.pwrite([footer], self._position)
        self._file.truncate(self._position + len(footer))
        self._file.datasync()
        self._file.close()
        finished = Segment(self.active.path, self.active.start, summary, self.active.index)
        self._sealed.append(summary)
        self._create_segment()
        self._store_cell()
        return finished

    def checkpoint(self) -> None:
        """Write the checkpoint durably: temporary file, sync, rename, sync of the directory."""
        assert self.active.index is not None
        data = checkpoint.encode_checkpoint(
            Checkpoint(
                log_id=self._log_id,
                epoch=self._chain.epoch,
                head=self.head,
                sealed=tuple(self._sealed),
                tail_start=self.active.start,
                tail_position=self._position,
                tail_index=self.active.index,
                next_offset=self.durable_limit,
                previous_crc=self._chain.previous_crc,
                timestamp_us=self._chain.timestamp_us,
                uploaded_limit=self.uploaded_limit,
                tier_url=self.tier_url,
            )
        )
        write_durably(self._fs, self._directory / checkpoint.FILE_NAME, data)
        self._since_checkpoint_bytes = 0

    def advance_head(self, limit: int) -> list[int]:
        """Make the head durable behind the sealed segments that lie wholly below ``limit``.

        Returns their first offsets, for :meth:`remove` once nobody looks for them any more.
        """
        dropped = [summary for summary in self._sealed if summary.limit <= limit]
        if not dropped:
            return []
        self._sealed = self._sealed[len(dropped) :]
        self.head = max(self.head, dropped[-1].limit)
        self.checkpoint()
        self._store_cell()
        return [summary.start for summary in dropped]

    def remove(self, starts: Sequence[int]) -> None:
        """Delete segments that :meth:`advance_head` gave up."""
        for start in starts:
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(self._directory / segment.file_name(start))
        self._fs.sync_directory(self._directory)

    def close(self, *, clean: bool) -> None:
        """Release the file; a clean close also cuts the reserved space off and checkpoints."""
        try:
            if clean:
                self._file.truncate(self._position)
                self._file.datasync()
                self.checkpoint()
        finally:
            try:
                self._file.close()
            finally:
                self._cell.close()

    # -- inside ------------------------------------------------------------------------------

    def _is_full(self, draft: Draft, frames: Sequence[bytearray]) -> bool:
        end = self._position + sum(map(len, frames))
        too_large = end + draft.size_bytes > self._settings.segment_bytes
        return too_large and end > segment.HEADER_BYTES

    def _frame(self, draft: Draft, now_us: int, frames: list[bytearray]) -> FrameBatch:
        chain = self._chain
        base_us, last_us, deltas = draft.times(now_us, chain.timestamp_us)
        data, crc = frame.encode(
            draft.columns(deltas),
            start=draft.start,
            count=len(draft.values),
            base_timestamp_us=base_us,
            max_timestamp_us=last_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=self.durable_limit,
        )
        assert self.active.index is not None
        position = self._position + sum(map(len, frames))
        self.active.index.add(draft.start, position, base_us)
        chain.next_offset = draft.limit
        chain.previous_crc = crc
        chain.timestamp_us = last_us
        frames.append(data)
        view = memoryview(data).toreadonly()
        header = frame.parse_header(view, 0)
        assert header is not None
        return FrameBatch(view, header)

    def _write(self, frames: Sequence[bytearray]) -> None:
        """Write frames at the end. A write that fails is taken back, so that none of it survives."""
        size = sum(map(len, frames))
        if self._position + size > self._reserved:
            self._reserve(self._position + size)
        try:
            self._file.pwrite(frames, self._position)
        except OSError:
            self._outcome = "unknown"
            self._file.truncate(self._position)
            self._file.datasync()
            self._outcome = "not_written"
            raise
        self._position += size
        self._since_checkpoint_bytes += size

    def _create_segment(self) -> None:
        """Make the next segment under a temporary name, sync it, and give it its own name."""
        chain = self._chain
        path = self._directory / segment.file_name(chain.next_offset)
        spare = self._directory / SPARE_NAME
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(spare)
        header = SegmentHeader(
            self._log_id,
            chain.next_offset,
            chain.epoch,
            self._clock.now_us(),
            chain.previous_crc,
        )
        file = self._fs.open(spare, "x")
        try:
            file.pwrite([segment.encode_header(header)], 0)
            file.datasync()
            self._fs.replace(spare, path)
            self._fs.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        self._file = file
        self._position = self._reserved = self._durable_position = segment.HEADER_BYTES
        self.active = Segment(path, chain.next_offset, None, SegmentIndex())

    def _reserve(self, needed_bytes: int) -> None:
        """Reserve blocks ahead in growing steps, so that syncs need not write the file's size.

        Idle logs reserve nothing. A full disk is met by the write itself, when it is really full.
        """
        step = min(max(self._reserved, _LEAST_STEP_BYTES), _MOST_STEP_BYTES)
        goal = max(needed_bytes, min(self._reserved + step, self._settings.segment_bytes))
        try:
            self._file.allocate(goal)
            self._reserved = goal
        except OSError:
            self._file.truncate(self._position)
            self._reserved = 1 << 62  # do not try again in this segment

    def _sync(self) -> None:
        """Make the frames written so far durable.

        If that fails they are cut off as well as can be: the system may keep them in memory only, and
        the next opening would take them for durable.
        """
        self._outcome = "unknown"
        try:
            self._file.datasync()
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._durable_position)
            raise
        self._outcome = "not_written"
        self.durable_limit = self._chain.next_offset
        self._durable_position = self._position
        self._store_cell()

    def _store_cell(self) -> None:
        self._cell.store(
            checkpoint.encode_cell(
                DurableCell(
                    self.head,
                    self.durable_limit,
                    self._chain.epoch,
                    self.active.start,
                    self._position,
                )
            )
        )


def write_durably(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old or the new content."""
    spare = path.with_name(path.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        fs.remove(spare)
    file = fs.open(spare, "x")
    try:
        file.pwrite([data], 0)
        file.datasync()
    finally:
        file.close()
    fs.replace(spare, path)
    fs.sync_directory(path.parent)
