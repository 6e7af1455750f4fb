"""Tail: the blocking half of the writer. Owns the active segment and the state that the next frame
continues.

Every method runs on the log's one writer thread, one at a time. A commit frames all builders, writes
them with one call, syncs once, and only then reports them; between two commits recovery always accepts
the files on disk.

Invariants (tests/walstore/core/append/test_tail.py, tests/scenarios)
  T1  ``durable_limit`` moves only after the sync that covers it returned.
  T2  After a failed write or sync nothing more is written; a sync is never called again on the same data.
  T3  A segment is sealed and synced before the next one gets its name.
  T4  The head is durable, in a checkpoint and in the cell, before a file below it is removed.
  T5  Every segment begins with the whole ledger, or the ledger was empty.
  T6  Any other error of a method than WalError is a TailError, which contains the limits reached by the
      log.
  T7  Work that the data does not depend on (checkpoints, the cell, removing files) may fail without
      failing the log, and is retried.
  T8  The file of a removed segment is written to, or freed in parts, only after its old name is gone
      durably, and if nobody else has it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from walstore.core.append.active_segment import ActiveSegment
from walstore.core.append.log_state import Commit, Reached, TailError
from walstore.core.append.upkeep import Upkeep
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.batches.framer import Framed, Framer, Spot
from walstore.core.files.open_files import ActiveCell
from walstore.core.files.segment_file import Segment
from walstore.core.files.spill import Spill
from walstore.core.files.torn_copies import TornCopies
from walstore.core.files.unlinked_file import UnlinkedFile
from walstore.core.format import segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.ledger import Marks
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentSummary
from walstore.core.ports import Buffer, Clock, File, FileSystem, Lock
from walstore.core.replication_port import SegmentTee
from walstore.core.runtime.error_mapping import describe_upkeep, is_full
from walstore.core.settings import Settings
from walstore.errors import WalError

logger = logging.getLogger("walstore.log")

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _failing(call: Callable[Concatenate[Tail, _P], _T]) -> Callable[Concatenate[Tail, _P], _T]:
    """Convert any other error of a method than WalError to a TailError with the limits reached; then the tail
    has failed, and the method raises that error at once."""

    @wraps(call)
    def checked(self: Tail, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._failure is not None:
            raise self._failure
        try:
            return call(self, *args, **kwargs)
        except WalError:
            raise
        except Exception as error:
            raise self._fail(error) from error

    return checked


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
        own_epoch: int = 0,
        given_up: Sequence[int] = (),
        copies: TornCopies | None = None,
        is_as_checkpointed: bool = False,
    ) -> None:
        """Continue a recovered log.

        ``given_up`` are the first offsets of segments below the head, to be removed with their ``copies``.
        ``is_as_checkpointed`` says that checkpoint and cell describe the log except for the new epoch;
        then the first call that needs the epoch makes it durable.
        """
        assert chain.ledger is not None
        # Set once at open.
        self._clock = clock
        self._directory = directory
        self._log_id = log_id
        self._upkeep = Upkeep(fs, directory, settings, cell, given_up, copies)
        self._own_epoch = own_epoch
        self._shows_written = settings.sync == "os"
        self.tee: SegmentTee | None = None
        """Is told what is written, if the log is replicated."""
        self.lock: Lock | None = None
        """Held for as long as this can write, even if it is never closed."""
        # Owned by the writer thread.
        self._chain = chain
        self._framer = Framer(chain, compress=settings.compression is not None)
        self.ledger = chain.ledger
        self._sealed = list(sealed)
        self.head = max(head, self.ledger.head)
        self.uploaded_limit = uploaded_limit
        self.tier_url = tier_url
        limit = chain.next_offset
        self._reached = Reached(limit, limit, limit, 0, 0, 0)
        self._is_announced = self._is_epoch_written = False
        self._failure: TailError | None = None
        self._segment = ActiveSegment(
            fs,
            directory,
            log_id=log_id,
            segment_bytes=settings.segment_bytes,
            chain=chain,
            framer=self._framer,
        )
        if active is None:
            self._begin_segment()
        else:
            self._segment.adopt(*active)
        if is_as_checkpointed:
            self._upkeep.note_checkpoint(self._state(), is_closed=True)
            return
        try:
            self._begin()
        except BaseException:
            self._segment.file.close()
            raise

    @property
    def epoch(self) -> int:
        """Epoch of this opening of the log; in every frame it writes."""
        return self._chain.epoch

    @property
    def newest_us(self) -> int:
        """Timestamp of the last record; 0 before the first one."""
        return self._chain.timestamp_us

    @property
    def active(self) -> Segment:
        """The active segment, as readers see it."""
        return self._segment.found

    @property
    def is_empty(self) -> bool:
        """Whether the active segment holds no record yet."""
        return self._segment.is_empty

    @property
    def reached(self) -> Reached:
        """What is durable, and what may be on disk; a copy."""
        return replace(self._reached)

    @property
    def durable_limit(self) -> int:
        """Every offset below it is synced."""
        return self._reached.durable_limit

    @property
    def written_limit(self) -> int:
        """Every offset below it was passed to the system."""
        return self._chain.next_offset

    @property
    def written_position(self) -> int:
        """Where the frames in the active segment's file end."""
        return self._segment.file.position

    @property
    def has_unsynced(self) -> bool:
        """Whether there are writes since the last sync."""
        return self._segment.file.has_unsynced

    @property
    def wants_checkpoint(self) -> bool:
        """Whether enough was written since the last checkpoint."""
        return self._upkeep.is_checkpoint_due

    @_failing
    def commit(self, builders: Sequence[BatchBuilder], *, sync: bool = True) -> Commit:
        """Write the builders and, with ``sync``, make them durable.

        A builder with a spill comes alone and is always durable. TailError on any failure, after which
        only close is allowed.
        """
        last_serial = builders[0].serial
        for builder in builders:
            last_serial = max(last_serial, builder.serial)
        reached = self._reached
        reached.attempted_limit = builders[-1].limit
        reached.attempted_serial = max(reached.attempted_serial, last_serial)
        if not self._is_announced:
            self._announce()
        if builders[0].spill is not None:
            return self._place(builders[0])
        frames: list[bytearray] = []
        with_records: list[Framed] = []
        sealed: list[Segment] = []
        now_us = self._clock.now_us()
        written = pending = serial = 0
        has_new_registers = False
        for builder in builders:
            if self._segment.is_full(builder.size_bytes, pending):
                written += self._write(frames, serial)
                if self.is_empty:
                    self._renew_segment()
                else:
                    sealed.append(self._rotate())
                frames, pending = [], 0
            framed = self._frame(builder, now_us, self._segment.file.position + pending)
            frames.append(framed.data)
            pending += len(framed.data)
            serial = max(serial, builder.serial)
            if framed.limit > framed.start:
                with_records.append(framed)
            if builder.marks is not None and builder.marks.registers:
                has_new_registers = True
        written += self._write(frames, serial)
        seconds = None
        if sync:
            seconds = self._sync()
        elif self._shows_written:
            self._store_cell()
        return self._commit(last_serial, with_records, sealed, written, has_new_registers, seconds)

    @_failing
    def sync(self) -> float:
        """Make everything written durable and return the seconds it took; TailError if it failed."""
        return self._sync()

    @_failing
    def mark(self) -> None:
        """Write a frame of this epoch that changes nothing, durably. TailError on any failure."""
        self._announce()
        if not self._write_head(self.head):
            raise OSError(errno.ENOSPC, "no space for the first frame of the epoch")

    @_failing
    def rotate(self) -> Segment:
        """Seal the active segment, begin the next, and return the sealed one.

        This makes unsynced frames durable. TailError if a call failed.
        """
        self._announce()
        return self._rotate()

    @_failing
    def checkpoint(self) -> None:
        """Sync, then write a checkpoint. TailError if the sync failed.

        A checkpoint that cannot be written does not fail the log: that is logged and retried soon.
        """
        if self._segment.file.has_unsynced:
            self._sync()
        try:
            self._checkpoint()
        except OSError as error:
            self._put_off_checkpoint(error)

    @_failing
    def advance_head(self, limit: int) -> list[int]:
        """Make ``limit`` the head, durably, and give up the sealed segments wholly below it.

        Returns their first offsets, for :meth:`remove` once they are no longer looked up. A head inside
        a segment is written to the log itself, since no file name contains it; if the disk is too full
        for that, the head becomes the beginning of that segment. The head never goes back, and a limit
        above the durable one is the caller's mistake.

        DiskFullError or StorageUnavailableError if the head cannot be made durable now: then no segment
        was given up, and the log continues. TailError if the log failed.
        """
        assert limit <= self.durable_limit
        return self._advance_head(limit)

    @_failing
    def show_head(self, limit: int) -> bool:
        """Show ``limit`` to other processes as the head before it is; return whether they see it.

        For processes that read the head before they rely on a record. Unless :meth:`advance_head`
        follows, which shows it again, call this again with the present head.
        """
        return self._upkeep.store_cell(self._cell(limit))

    def summaries(self) -> list[SegmentSummary]:
        """Return the sealed segments, oldest first, then the active one as sealing would now record it."""
        return [*self._sealed, self._segment.summary()]

    def give_up(self, starts: Sequence[int]) -> None:
        """Let the next :meth:`remove` delete segments that :meth:`advance_head` gave up."""
        self._upkeep.give_up(starts)

    def remove(self, starts: Sequence[int], *, in_parts: bool = True) -> list[UnlinkedFile]:
        """Delete segments that :meth:`advance_head` gave up; as :meth:`Upkeep.remove`."""
        self._upkeep.give_up(starts)
        return self._upkeep.remove(self._cell(), self.tee, in_parts=in_parts)

    def remove_left(self) -> None:
        """Delete all segments that were given up, at once; never raises."""
        self._upkeep.remove_left(self._cell(), self.tee)

    @property
    def is_removing(self) -> bool:
        """Whether :meth:`remove` has more to delete."""
        return self._upkeep.is_removing

    def park(self) -> None:
        """Close the files until the next call that needs them; never raises.

        In a store, another log's thread may call it between two calls of this one.
        """
        self._segment.file.park()
        self._upkeep.park()

    def close(self, *, clean: bool) -> None:
        """Release the file; OSError. A clean close also truncates the reserved space and checkpoints,
        unless the tail has failed."""
        try:
            if clean and self._failure is None:
                if self._segment.file.has_unsynced:
                    self._sync()
                self._segment.file.trim()
                self._upkeep.drop_spare()
                if not self._upkeep.is_noted_closed(self._state()):
                    try:
                        self._checkpoint(is_closed=True)
                    except OSError as error:
                        self._put_off_checkpoint(error)
        finally:
            try:
                self._segment.file.close()
            finally:
                self._upkeep.close()

    # -- committing --------------------------------------------------------------------------

    def _place(self, builder: BatchBuilder) -> Commit:
        """Commit a large transaction: its file becomes the next sealed segment."""
        spill = cast(Spill, builder.spill)
        if self._segment.file.has_unsynced:
            self._sync()
        if builder.marks is not None:
            self.ledger.apply(builder.marks)
            self.head = max(self.head, self.ledger.head)
        sealed = []
        if self.is_empty:
            # Its file has the name that the transaction's file gets; its ledger is replaced, too.
            self._chain.previous_crc = self._segment.header.previous_crc
            self._segment.file.close()
        else:
            sealed.append(self._seal())
        try:
            placed = spill.place(
                self._directory,
                self._chain,
                self.ledger,
                log_id=self._log_id,
                now_us=self._created_us(),
            )
        except OSError:
            if spill.outcome == "unknown":
                self._note_written(builder.serial)
            raise
        assert placed.summary is not None
        sealed.append(placed)
        self._sealed.append(placed.summary)
        self._note_written(builder.serial)
        self._note_synced()
        if self.tee is not None:
            assert placed.header is not None
            assert placed.index is not None
            footer = segment.encode_footer(placed.summary, placed.index)
            self._tell_sealed(placed.header, placed.summary.data_bytes + len(footer))
        # Before the next segment, which may fail: other processes see what is reported to the caller.
        self._upkeep.store_cell(self._cell_of(placed.summary, placed.header))
        self._begin_segment()
        self._store_cell()
        has_new_registers = builder.marks is not None and bool(builder.marks.registers)
        return self._commit(builder.serial, [], sealed, spill.size_bytes, has_new_registers, None)

    def _commit(
        self,
        serial: int,
        frames: list[Framed],
        sealed: list[Segment],
        size_bytes: int,
        has_new_registers: bool,  # noqa: FBT001
        sync_seconds: float | None,
    ) -> Commit:
        file = self._segment.file
        return Commit(
            frames=frames,
            limit=self._chain.next_offset,
            durable_limit=self._reached.durable_limit,
            is_synced=file.position <= file.durable_position,
            serial=serial,
            sealed=sealed,
            active=self._segment.found,
            size_bytes=size_bytes,
            sync_seconds=sync_seconds,
            wants_checkpoint=bool(sealed) or self._upkeep.is_checkpoint_due,
            head=self.head,
            registers=dict(self.ledger.registers) if has_new_registers else None,
        )

    def _frame(self, builder: BatchBuilder, now_us: int, position: int) -> Framed:
        """Frame a builder at ``position``."""
        index = self._segment.index
        spot = self._segment.spot(position, self._reached.durable_limit)
        framed = self._framer.frame(builder, now_us, spot)
        index.add(builder.start, position, framed.base_timestamp_us)
        if builder.marks is not None:
            self.head = max(self.head, self.ledger.head)
        if builder.streams is not None:
            index.streams.add({name for name in builder.streams if name is not None})
        return framed

    def _spot(self, position: int) -> Spot:
        return self._segment.spot(position, self._reached.durable_limit)

    def _write(self, frames: Sequence[bytearray], serial: int) -> int:
        """Write frames up to :attr:`written_limit`, which contain the changes up to ``serial``."""
        try:
            size = self._segment.file.write(frames)
        except OSError:
            self._upkeep.drop_spare()  # the disk may be full
            if self._segment.file.is_dirty:
                self._note_written(serial)
            raise
        self._reached.note_written(self._chain.next_offset, serial)
        self._upkeep.note_write(size, is_replicated=self.tee is not None)
        if size:
            self._is_epoch_written = True
            if self.tee is not None:
                self._tell_written(self._segment.file.position - size, frames)
        return size

    def _tell_written(self, position: int, pieces: Sequence[Buffer]) -> None:
        if self.tee is not None:
            header = self._segment.header
            limit = self._chain.next_offset
            self.tee.wrote(header.start, header.created_us, position, pieces, limit)

    def _tell_sealed(self, header: SegmentHeader, size: int) -> None:
        if self.tee is not None:
            limit = self._chain.next_offset
            self.tee.sealed(header.start, header.created_us, size, limit)
            self.tee.synced()

    def _sync(self) -> float:
        """Sync the active segment; return the seconds it took."""
        began = self._clock.monotonic()
        self._segment.file.sync()
        seconds = self._clock.monotonic() - began
        self._reached.note_synced()
        self._upkeep.store_cell(self._cell())
        if self.tee is not None:
            self.tee.synced()
        return seconds

    def _note_written(self, serial: int) -> None:
        """Record that everything framed may be on disk."""
        self._reached.note_written(self._chain.next_offset, serial)

    def _note_synced(self) -> None:
        """Record that everything written is on disk."""
        self._reached.note_synced()

    # -- segments ----------------------------------------------------------------------------

    def _rotate(self) -> Segment:
        finished = self._seal()
        self._begin_segment()
        self._store_cell()
        return finished

    def _seal(self) -> Segment:
        """Seal the active segment, which contains records."""
        if self._segment.file.has_unsynced:
            self._sync()  # else a crash might keep the footer and lose frames that it covers
        finished, size = self._segment.seal()
        assert finished.summary is not None
        self._tell_sealed(self._segment.header, size)
        self._sealed.append(finished.summary)
        return finished

    def _begin_segment(self) -> None:
        """Make the next segment, which begins with the ledger. If that fails, nothing has changed."""
        created_us, recycled = self._created_us(), self._upkeep.take_spare()
        filled_us = self._segment.age_us(created_us)
        pieces = self._segment.make(created_us, self.ledger, recycled)
        self._upkeep.filled_us = filled_us
        self._tell_written(0, pieces)
        if self.tee is not None:
            self.tee.synced()

    def _created_us(self) -> int:
        """Return the time of making of the next segment: copies tell two of the same name apart by it."""
        now_us = self._clock.now_us()
        if self.tee is None or self._chain.next_offset != self.active.start:
            return now_us
        return max(now_us, self._segment.header.created_us + 1)

    def _renew_segment(self) -> None:
        """Replace a segment that contains only marks by one with the ledger, which is smaller."""
        if self._segment.file.has_unsynced:
            self._sync()
        outdated = self._segment.file
        self._chain.previous_crc = self._segment.header.previous_crc
        self._begin_segment()
        outdated.close()
        self._note_synced()  # its file is synced with the whole ledger before it gets its name
        self._store_cell()

    # -- head, checkpoint, cell --------------------------------------------------------------

    def _advance_head(self, limit: int) -> list[int]:
        if self._segment.file.has_unsynced:
            self._sync()
        dropped = [summary for summary in self._sealed if summary.limit <= limit]
        kept = self._sealed[len(dropped) :]
        before = self.head, self._sealed
        if limit > self.head:
            begin = kept[0].start if kept else self.active.start
            try:
                self._announce()
            except OSError as error:
                raise describe_upkeep(error, "the head cannot be moved") from error
            if limit > begin and not self._write_head(limit):
                limit = max(begin, self.head)
            self.head = limit
        elif not dropped:
            return []
        self._sealed = kept
        try:
            self._checkpoint()
        except OSError as error:
            self.head, self._sealed = max(before[0], self.ledger.head), before[1]
            raise describe_upkeep(error, "the head cannot be made durable") from error
        self._store_cell()
        return [summary.start for summary in dropped]

    def _write_head(self, limit: int) -> bool:
        """Write a frame that contains only the head, and sync it; False if there is no room for it."""
        chain, ledger_head = self._chain, self.ledger.head
        before = chain.next_offset, chain.previous_crc, chain.timestamp_us
        builder = BatchBuilder(chain.next_offset, marks=Marks(head=limit))
        framed = self._framer.frame(builder, 0, self._spot(self._segment.file.position))
        try:
            self._write([framed.data], 0)
        except OSError as error:
            if self._segment.file.is_dirty or not is_full(error):
                raise
            chain.next_offset, chain.previous_crc, chain.timestamp_us = before
            self.ledger.head = ledger_head
            logger.warning("the head becomes the beginning of a segment: %s", error)
            return False
        self._sync()
        return True

    def _begin(self) -> None:
        """Make the new epoch durable; on a full disk, which can still be trimmed, the first write does
        that.

        A log of version 1 continues in a new segment.
        """
        try:
            self._announce()
        except OSError as error:
            if not is_full(error) or self._segment.header.salt is None:
                raise
            self._put_off_checkpoint(error)
        if self._segment.header.salt is None:
            if self.is_empty:
                self._renew_segment()
            else:
                self._rotate()
            self._checkpoint()

    def _announce(self) -> None:
        """Make the new epoch durable before any frame contains it."""
        if not self._is_announced:
            self._checkpoint()
            self._store_cell()
            self._is_announced = True

    def _checkpoint(self, *, is_closed: bool = False) -> None:
        """Write the checkpoint durably; everything written is synced already. OSError."""
        found = Checkpoint(
            log_id=self._log_id,
            epoch=self._chain.epoch,
            head=self.head,
            sealed=tuple(self._sealed),
            tail_start=self.active.start,
            tail_position=self._segment.file.durable_position,
            tail_index=self._segment.index,
            next_offset=self.durable_limit,
            previous_crc=self._chain.previous_crc,
            timestamp_us=self._chain.timestamp_us,
            uploaded_limit=self.uploaded_limit,
            tier_url=self.tier_url,
            ledger=b"" if self.ledger.is_empty else self.ledger.whole().encode(),
            tail_salt=self._segment.header.salt,
            own_epoch=self._own_epoch,
            is_closed=is_closed,
            is_epoch_written=self.tee is not None and self._is_epoch_written,
        )
        data = self._upkeep.write_checkpoint(found, self._state())
        if self.tee is not None:
            position = self._segment.file.durable_position
            self.tee.checkpointed(
                self._segment.header.start, self._segment.header.created_us, position, data
            )
        if is_closed or not self.is_removing:
            self._upkeep.remove_left(self._cell(), self.tee)

    def _put_off_checkpoint(self, error: OSError) -> None:
        self._upkeep.put_off_checkpoint(error, is_replicated=self.tee is not None)

    def _state(self) -> tuple[int, ...]:
        """Return the values that distinguish one checkpoint of this opening from the next."""
        chain, file = self._chain, self._segment.file
        return (
            self.head,
            self.active.start,
            file.position,
            chain.previous_crc,
            self.uploaded_limit,
        )

    def _store_cell(self) -> None:
        """Show other processes what is durable."""
        self._upkeep.store_cell(self._cell())

    def _cell(self, head: int | None = None) -> DurableCell:
        """Return what the durable cell says, now or with another head."""
        durable = self._reached.durable_limit
        written = self._chain.next_offset if self._shows_written else durable
        return DurableCell(
            self.head if head is None else head,
            durable,
            self._chain.epoch,
            self._segment.found.start,
            self._segment.file.durable_position,
            written,
            self._segment.header.salt,
        )

    def _cell_of(self, sealed: SegmentSummary, header: SegmentHeader | None) -> DurableCell:
        """Return what the durable cell says of a log that ends in a sealed segment."""
        assert header is not None
        return DurableCell(
            self.head,
            sealed.limit,
            self._chain.epoch,
            sealed.start,
            sealed.data_bytes,
            sealed.limit,
            header.salt,
        )

    def _fail(self, error: Exception) -> TailError:
        """Record that the tail has failed, and the limits reached."""
        # For anything but an OSError the place is unknown: a defect, or out of memory.
        is_known = isinstance(error, OSError)
        reached = self.reached
        if is_known and reached.durable_serial == reached.attempted_serial:
            reached.registers = dict(self.ledger.registers)
        self._failure = TailError(error, reached if is_known else reached.in_doubt())
        return self._failure
