"""Tail: the blocking half of the writer. Owns the active segment and what the next frame continues.

Every method runs on the log's one writer thread, one at a time. A commit frames all drafts, writes them
with one call, syncs once, and only then reports them; between two commits the files on disk are always
ones that recovery accepts.

Invariants (tests/walstore/test_tail.py, tests/scenarios)
  T1  ``durable_limit`` moves only after the sync that covers it returned.
  T2  After an OSError nothing is written any more; a sync is never called again on the same data.
  T3  A segment is sealed and synced before the next one gets its name.
  T4  The head is durable in a checkpoint before a file below it is removed.
  T5  Every segment begins with the whole ledger, or the ledger was empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from walstore import checkpoint, segment
from walstore.active import ActiveCell, ActiveFile
from walstore.batch import FrameBatch
from walstore.checkpoint import Checkpoint, DurableCell
from walstore.commit import Commit, CommitError
from walstore.draft import Draft
from walstore.durable_file import write_durably
from walstore.errors import Outcome
from walstore.framer import Framer
from walstore.ledger import Marks
from walstore.ports import Clock, File, FileSystem, Lock
from walstore.recovery import Chain
from walstore.segment import SegmentHeader, SegmentIndex, SegmentSummary
from walstore.segment_file import Segment
from walstore.segment_streams import SegmentStreams
from walstore.settings import Settings


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
        cell: ActiveCell,
        uploaded_limit: int,
        tier_url: str | None,
        is_as_checkpointed: bool = False,
    ) -> None:
        """Go on with a log that was recovered.

        ``is_as_checkpointed`` says that checkpoint and cell describe it but for the new epoch, which is
        then made durable by the first call that needs it.
        """
        assert chain.ledger is not None
        # Set once at open.
        self._fs = fs
        self._clock = clock
        self._settings = settings
        self._directory = directory
        self._log_id = log_id
        self._cell = cell
        self._shows_written = settings.sync == "os"
        self.lock: Lock | None = None
        """Held for as long as this can write, also if nobody closes it."""
        # Owned by the writer thread.
        self._chain = chain
        self._framer = Framer(chain, compress=settings.compression is not None)
        self.ledger = chain.ledger
        self._sealed = list(sealed)
        self._since_checkpoint_bytes = 0
        self._checkpointed: tuple[int, ...] = ()
        self.head = max(head, self.ledger.head)
        self.uploaded_limit = uploaded_limit
        self.tier_url = tier_url
        self.durable_limit = chain.next_offset
        self.attempted_limit = chain.next_offset
        """Limit of the last commit begun; above it nothing was ever handed to the disk."""
        self.attempted_serial = 0
        self.unsynced_limit = chain.next_offset
        """Limit of what earlier commits wrote; above the durable limit nobody knows what became of it."""
        self.unsynced_serial = 0
        self._outcome: Outcome | None = None
        if active is None:
            self._begin_segment()
        else:
            self.active, file, position = active
            path = self.active.path
            self._first_position = segment.HEADER_BYTES
            self._file = ActiveFile(fs, path, file, position, settings.segment_bytes)
        self._is_announced = False
        if is_as_checkpointed:
            self._checkpointed = self._place_of_checkpoint()
            return
        try:
            self._announce()
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
        return self._chain.next_offset == self.active.start

    @property
    def written_limit(self) -> int:
        """Every offset below it was handed to the system."""
        return self._chain.next_offset

    @property
    def has_unsynced(self) -> bool:
        """Whether something was written since the last sync."""
        return self._file.has_unsynced

    @property
    def wants_checkpoint(self) -> bool:
        """Whether enough was written since the last checkpoint."""
        return self._since_checkpoint_bytes >= self._settings.checkpoint_bytes

    def commit(self, drafts: Sequence[Draft], *, sync: bool = True) -> Commit:
        """Write the drafts and, with ``sync``, make them durable.

        A draft with a spill comes alone and is always durable. CommitError if a call failed, after
        which only close is allowed.
        """
        self._outcome = None
        self._file.outcome = "not_written"
        self.unsynced_limit = self._chain.next_offset
        self.unsynced_serial = self.attempted_serial
        self.attempted_limit = drafts[-1].limit
        self.attempted_serial = max([self.attempted_serial, *(d.serial for d in drafts)])
        try:
            self._announce()
            if drafts[0].spill is not None:
                return self._place(drafts[0])
            return self._append(drafts, sync=sync)
        except OSError as error:
            raise CommitError(error, self.durable_limit, self._current_outcome()) from error

    def sync(self) -> float:
        """Make all that was written durable and return the seconds it took; CommitError if it failed."""
        self._outcome = None
        try:
            return self._sync()
        except OSError as error:
            raise CommitError(error, self.durable_limit, self._file.outcome) from error

    def rotate(self) -> Segment:
        """Seal the active segment, begin the next, and return the sealed one.

        Unsynced frames become durable on the way. OSError if a call failed; then the log is failed.
        """
        self._announce()
        finished = self._seal()
        self._begin_segment()
        self._store_cell()
        return finished

    def checkpoint(self) -> None:
        """Write the checkpoint durably: temporary file, sync, rename, sync of the directory."""
        if self._file.has_unsynced:
            self._sync()
        assert self.active.index is not None
        data = checkpoint.encode_checkpoint(
            Checkpoint(
                log_id=self._log_id,
                epoch=self._chain.epoch,
                head=self.head,
                sealed=tuple(self._sealed),
                tail_start=self.active.start,
                tail_position=self._file.position,
                tail_index=self.active.index,
                next_offset=self.durable_limit,
                previous_crc=self._chain.previous_crc,
                timestamp_us=self._chain.timestamp_us,
                uploaded_limit=self.uploaded_limit,
                tier_url=self.tier_url,
                ledger=b"" if self.ledger.is_empty else self.ledger.whole().encode(),
            )
        )
        write_durably(self._fs, self._directory / checkpoint.FILE_NAME, data)
        self._since_checkpoint_bytes = 0
        self._checkpointed = self._place_of_checkpoint()
        self._is_announced = True

    def advance_head(self, limit: int) -> list[int]:
        """Make ``limit`` the head, durably, and give up the sealed segments wholly below it.

        Returns their first offsets, for :meth:`remove` once nobody looks for them any more. A head
        inside a segment is written to the log itself, since no file name says it. The head never
        goes back, and a limit above the durable one is the caller's mistake.
        """
        assert limit <= self.durable_limit
        dropped = [summary for summary in self._sealed if summary.limit <= limit]
        kept = self._sealed[len(dropped) :]
        if limit > self.head:
            self._announce()
            if limit > (kept[0].start if kept else self.active.start):
                self._write_marks(Marks(head=limit))
                self._sync()
            self.head = limit
        elif not dropped:
            return []
        self._sealed = kept
        self.checkpoint()
        self._store_cell()
        return [summary.start for summary in dropped]

    def summaries(self) -> list[SegmentSummary]:
        """Return the sealed segments, oldest first, and behind them the active one as sealing it now
        would record it."""
        return [*self._sealed, self._summary()]

    def remove(self, starts: Sequence[int]) -> None:
        """Delete segments that :meth:`advance_head` gave up."""
        for start in starts:
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(self._directory / segment.file_name(start))
        self._fs.sync_directory(self._directory)

    def park(self) -> None:
        """Close the files until the next call that needs them; never raises.

        In a store, another log's thread may call it, between two calls of this one.
        """
        self._file.park()
        self._cell.park()

    def close(self, *, clean: bool) -> None:
        """Release the file; a clean close also cuts the reserved space off and checkpoints."""
        try:
            if clean:
                if self._file.has_unsynced:
                    self._sync()
                self._file.trim()
                if self._checkpointed != self._place_of_checkpoint():
                    self.checkpoint()
        finally:
            try:
                self._file.close()
            finally:
                self._cell.close()

    # -- inside ------------------------------------------------------------------------------

    def _current_outcome(self) -> Outcome:
        """Return what became of the commit whose last call failed."""
        return self._file.outcome if self._outcome is None else self._outcome

    def _append(self, drafts: Sequence[Draft], *, sync: bool) -> Commit:
        frames: list[bytearray] = []
        batches: list[FrameBatch] = []
        sealed: list[Segment] = []
        now_us = self._clock.now_us()
        written = pending = 0
        has_new_registers = False
        for draft in drafts:
            if self._is_full(draft, pending):
                if self.is_empty:
                    self._renew_segment()
                else:
                    written += self._write(frames)
                    sealed.append(self.rotate())
                frames, pending = [], 0
            batch = self._frame(draft, now_us, self._file.position + pending, frames)
            pending += len(frames[-1])
            if batch is not None:
                batches.append(batch)
            if draft.marks is not None and draft.marks.registers:
                has_new_registers = True
        written += self._write(frames)
        seconds = None
        if sync:
            seconds = self._sync()
        elif self._shows_written:
            self._store_cell()
        return self._commit(drafts, batches, sealed, written, has_new_registers, seconds)

    def _place(self, draft: Draft) -> Commit:
        """Commit a large transaction: its file becomes the next sealed segment."""
        spill = draft.spill
        assert spill is not None
        if self._file.has_unsynced:
            self._sync()
        if draft.marks is not None:
            self.ledger.apply(draft.marks)
            self.head = max(self.head, self.ledger.head)
        sealed = []
        if self.is_empty:
            # Its file has the name that the transaction's gets; the ledger in it goes along.
            self._chain.previous_crc = self._file.previous_crc
            self._file.close()
        else:
            sealed.append(self._seal())
        try:
            placed = spill.place(
                self._directory,
                self._chain,
                self.ledger,
                log_id=self._log_id,
                now_us=self._clock.now_us(),
            )
        except OSError:
            self._outcome = spill.outcome
            raise
        assert placed.summary is not None
        sealed.append(placed)
        self._sealed.append(placed.summary)
        self.durable_limit = self._chain.next_offset
        self._begin_segment()
        self._store_cell()
        has_new_registers = draft.marks is not None and bool(draft.marks.registers)
        return self._commit([draft], [], sealed, spill.size_bytes, has_new_registers, None)

    def _commit(
        self,
        drafts: Sequence[Draft],
        batches: list[FrameBatch],
        sealed: list[Segment],
        size_bytes: int,
        has_new_registers: bool,  # noqa: FBT001
        sync_seconds: float | None,
    ) -> Commit:
        return Commit(
            batches=batches,
            limit=self._chain.next_offset,
            durable_limit=self.durable_limit,
            is_synced=not self._file.has_unsynced,
            serial=max(draft.serial for draft in drafts),
            sealed=sealed,
            active=self.active,
            size_bytes=size_bytes,
            sync_seconds=sync_seconds,
            head=self.head,
            registers=dict(self.ledger.registers) if has_new_registers else None,
        )

    def _announce(self) -> None:
        """Make the new epoch durable before any frame carries it."""
        if not self._is_announced:
            self.checkpoint()
            self._store_cell()

    def _place_of_checkpoint(self) -> tuple[int, ...]:
        """Return what tells one checkpoint of this opening from the next."""
        chain, file = self._chain, self._file
        return (
            self.head,
            self.active.start,
            file.position,
            chain.previous_crc,
            self.uploaded_limit,
        )

    def _is_full(self, draft: Draft, pending_bytes: int) -> bool:
        end = self._file.position + pending_bytes
        too_large = end + draft.size_bytes > self._settings.segment_bytes
        return too_large and end > self._first_position

    def _frame(
        self, draft: Draft, now_us: int, position: int, frames: list[bytearray]
    ) -> FrameBatch | None:
        """Frame a draft that comes to lie at ``position``; None if it holds only marks."""
        assert self.active.index is not None
        data, base_us, batch = self._framer.frame(draft, now_us, self.durable_limit)
        self.active.index.add(draft.start, position, base_us)
        frames.append(data)
        if draft.marks is not None:
            self.head = max(self.head, self.ledger.head)
        if batch is not None and draft.streams is not None:
            self.active.index.streams.add(batch.stream_names)
        return batch

    def _write_marks(self, marks: Marks) -> None:
        """Write a frame that holds nothing but marks."""
        draft = Draft(self._chain.next_offset, marks=marks)
        frames: list[bytearray] = []
        self._frame(draft, 0, self._file.position, frames)
        self._write(frames)

    def _write(self, frames: Sequence[bytearray]) -> int:
        size = self._file.write(frames)
        self._since_checkpoint_bytes += size
        return size

    def _sync(self) -> float:
        """Sync the active segment; return how long that took, in seconds."""
        began = self._clock.monotonic()
        self._file.sync()
        seconds = self._clock.monotonic() - began
        self.durable_limit = self._chain.next_offset
        self._store_cell()
        return seconds

    def _seal(self) -> Segment:
        """Seal the active segment, which holds records."""
        if self._file.has_unsynced:
            self._sync()  # else a crash might keep the footer and lose frames that it vouches for
        assert self.active.index is not None
        summary = self._summary()
        self._file.seal(segment.encode_footer(summary, self.active.index))
        self._sealed.append(summary)
        return Segment(self.active.path, self.active.start, summary, self.active.index)

    def _summary(self) -> SegmentSummary:
        return SegmentSummary(
            self.active.start,
            self._chain.next_offset,
            self._file.position,
            self._chain.previous_crc,
            self._chain.timestamp_us,
        )

    def _begin_segment(self) -> None:
        """Make the next segment; it begins with what the log remembers."""
        chain = self._chain
        header = SegmentHeader(
            self._log_id,
            chain.next_offset,
            chain.epoch,
            self._clock.now_us(),
            chain.previous_crc,
        )
        pieces: list[bytes | bytearray] = [segment.encode_header(header)]
        index = SegmentIndex(SegmentStreams())
        if not self.ledger.is_empty:
            pieces.append(self._framer.frame_ledger(self.durable_limit))
            index.add(chain.next_offset, segment.HEADER_BYTES, chain.timestamp_us)
        path = self._directory / segment.file_name(chain.next_offset)
        self._first_position = sum(map(len, pieces))
        self._file = ActiveFile.create(self._fs, path, pieces, self._settings.segment_bytes)
        self.active = Segment(path, chain.next_offset, None, index)

    def _renew_segment(self) -> None:
        """Begin a segment anew that holds nothing but marks; the ledger says the same in less."""
        outdated = self._file
        self._chain.previous_crc = outdated.previous_crc
        self._begin_segment()
        outdated.close()
        self._store_cell()

    def _store_cell(self) -> None:
        written = self._chain.next_offset if self._shows_written else self.durable_limit
        self._cell.store(
            checkpoint.encode_cell(
                DurableCell(
                    self.head,
                    self.durable_limit,
                    self._chain.epoch,
                    self.active.start,
                    self._file.durable_position,
                    written,
                )
            )
        )
