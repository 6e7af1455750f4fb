"""Opening a log for writing: lock, recover, repair the torn tail. Blocking; runs on the writer thread.

The order is fixed, and a crash may follow any step:

  1. take the lock (then, with a tier, the tier is claimed; see ``claims.py``);
  2. read the checkpoint, or do without it;
  3. list the segments and compare them with each other and with the checkpoint;
  4. walk the active segment from the checkpointed position to its end;
  5. keep a copy of a torn tail as ``<segment>.broken`` and cut it off;
  6. write again and sync what was found and is not known to be synced: the previous process may have
     died, or its sync may have failed, so that it may be only in memory;
  7. raise the epoch and make that durable in a new checkpoint.

Only step 5 removes bytes, and only bytes that were never acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from walstore.core.append.disk_watch import look
from walstore.core.append.tail import Tail
from walstore.core.files.directory import (
    LOCK_NAME,
    REMAKE,
    evidence_of,
    evidence_of_copy,
    load_checkpoint,
    load_claims,
    peek_log_id,
    pick_segments,
    read_cell,
    sync_entry,
    write_hint,
)
from walstore.core.files.directory_scan import ScannedLog, find_damaged, find_log
from walstore.core.files.floor import load_note
from walstore.core.files.frame_walk import unfinished_bytes, used_limit, walk_file
from walstore.core.files.locks import lock_log
from walstore.core.files.open_files import ActiveCell
from walstore.core.files.segment_file import Segment
from walstore.core.files.spill import remove_leftovers
from walstore.core.files.torn_copies import TornCopies
from walstore.core.format import checkpoint, recovery, segment
from walstore.core.format import claims as claims_file
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.claims import Claims
from walstore.core.format.ledger import Ledger
from walstore.core.format.recovery import Chain, Evidence, Verdict
from walstore.core.format.segment import SegmentHeader, SegmentSummary
from walstore.core.ports import Clock, File, FileSystem, Lock
from walstore.core.runtime.error_mapping import is_full
from walstore.core.settings import Settings
from walstore.errors import ContentionError, CorruptionError
from walstore.positions.cursors.directory import list_cursors, lowest_pin
from walstore.positions.cursors.kept import Found, cursors_of_files, keeps_cursors, restore_files
from walstore.positions.groups.journal import remove_journals
from walstore.positions.groups.kept_journal import restore_journals

logger = logging.getLogger("walstore")

"""How many copies of torn tails are kept in a directory."""
_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening a log found and changed."""

    created: bool = False
    """Whether there was no log, so that one was created."""
    scanned_bytes: int = 0
    """Bytes of the active segment that were walked."""
    truncated_bytes: int = 0
    """Bytes of an unfinished batch, or seal, that were cut off; a copy is kept next to the segment."""
    broken_copy: str | None = None
    """Path of that copy."""
    missing_from: int | None = None
    """First offset that had been durable and is lost, if the file ends before it; normally None. If only
    changes without records are lost (registers, streams), the log's next offset."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A log ready for its writer."""

    fs: FileSystem
    """Anchored to the log's directory."""
    tail: Tail
    lock: Lock
    log_id: bytes
    sealed: list[Segment]
    recovery: Recovery
    free_bytes: int | None
    """Free space on the file system, if it is known."""
    adopted: Mapping[str, Found] | None = None
    """Cursors of files, of a log that is replicated and does not keep its cursors in itself yet."""

    def release(self) -> None:
        """Release the lock and the directory; twice is allowed."""
        try:
            self.lock.release()
        finally:
            self.fs.close()


@dataclass(frozen=True, slots=True)
class Entered:
    """The directory of a log, locked. Its methods block."""

    directory: Path
    fs: FileSystem
    """Anchored to the directory."""
    lock: Lock
    names: Sequence[str]
    """Its files. Only the holder of the lock makes or removes segments and files of transactions."""

    def peek(self) -> tuple[bytes | None, Claims]:
        """Return the identity of the log, None if there is none yet, and its claims."""
        return peek_log_id(self.fs, self.directory), load_claims(self.fs, self.directory)

    def look_again(self) -> Entered:
        """Return the directory with the files that it has now."""
        return replace(self, names=self.fs.list(self.directory))

    def remember(self, claims: Claims) -> None:
        """Make claims durable; OSError."""
        write_hint(self.fs, self.directory / claims_file.FILE_NAME, claims.encode())

    def release(self) -> None:
        """Release the lock and the directory; twice is allowed."""
        try:
            self.lock.release()
        finally:
            self.fs.close()


def enter_log(
    directory: Path,
    *,
    fs: FileSystem,
    owner: str,
    take_lock: Callable[[FileSystem, Path, str], Lock] = lock_log,
) -> Entered:
    """Lock the directory of a log, creating it if needed. WalLockedError, OSError."""
    is_made = fs.make_directory(directory)
    with contextlib.ExitStack() as stack:
        # From here on the log is in this directory, even if that is moved.
        fs = fs.anchor(directory)
        stack.callback(fs.close)
        lock = take_lock(fs, directory, owner)
        stack.callback(lock.release)
        names = fs.list(directory)
        if not is_made and not any(name.endswith(segment.SUFFIX) for name in names):
            sync_entry(fs, directory)  # before any file in it implies that this was done
        stack.pop_all()
    return Entered(directory, fs, lock, names)


def has_been_entered(fs: FileSystem, directory: Path) -> bool:
    """Return whether somebody has locked a directory once: :func:`enter_log` leaves the lock's file there."""
    try:
        return LOCK_NAME in fs.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False


class RecoveredEnd(NamedTuple):
    """Where the log in a directory ends, after what was torn has been cut off."""

    log_id: bytes
    header: SegmentHeader
    """Of the last segment."""
    position: int
    """End of its frames."""
    is_sealed: bool
    limit: int
    epoch: int
    """Of its last frame."""
    damaged: Mapping[int, str]
    """Segments before the last one that are damaged or missing; as of :func:`find_damaged`."""


def recover_end(fs: FileSystem, directory: Path) -> RecoveredEnd | None:
    """Cut a torn tail off a copy of a log, and make the rest durable; None if there is no log.

    Only the last segment has to be whole: it says where the copy ends, and others come from another copy.
    A copy's frames are those of another machine, where what they say of syncs applied; only checkpoint and
    cell, and the file ``SYNCED``, speak of this disk. CorruptionError also if it ends before what they say,
    or ``SYNCED`` is damaged: such a copy may lack what it acknowledged. Raises as :func:`recover_log`.
    """
    hint, cell = load_checkpoint(fs, directory), read_cell(fs, directory, is_locked=True)
    synced = load_note(fs, directory)
    # Not one of an epoch that may have come to nothing. A copy may have lost its oldest segments: they come
    # from another one, so the head is left aside.
    is_usable = hint is not None and (hint.is_of_copy or hint.is_epoch_written)
    known = replace(hint, head=0) if hint is not None and is_usable else None
    headless = None if cell is None else cell._replace(head=0)
    names = fs.list(directory)
    last = [segment.file_name(start) for start in pick_segments(directory, names)[-1:]]
    found = find_log(fs, directory, last, known, headless, Ledger())
    if found is None:
        return None
    damaged = find_damaged(fs, directory, names, found.log_id)
    evidence = evidence_of_copy(directory, found.header, hint, cell, synced)
    copies = TornCopies(fs, directory, names)
    start = _recover(fs, directory, found, hint, evidence, copies)
    start.close()
    epoch = max(start.chain.epoch, found.header.epoch)
    position = found.position if start.active is None else start.active[2]
    limit = start.chain.next_offset
    return RecoveredEnd(
        found.log_id, found.header, position, found.is_sealed, limit, epoch, damaged
    )


def recover_log(
    entered: Entered,
    *,
    clock: Clock,
    settings: Settings,
    defers_epoch: bool = False,
    make_log_id: Callable[[], bytes],
    tier_limit: int,
    tier_url: str | None,
    tier_timestamp_us: int = 0,
    own_epoch: int | None = None,
) -> Opened:
    """Recover or create the log in a directory, which is released if that fails.

    ``tier_limit`` is the offset after the last one in the log's cloud tier (1 without a tier). A new
    log begins there, so that offsets are never used twice; an existing log that ends before it is
    refused with ContentionError. No record of a new log is older than ``tier_timestamp_us``. Raises
    CorruptionError, FormatVersionError, OSError.

    ``defers_epoch``: a log that was closed cleanly is opened without writing anything. Its new epoch
    becomes durable with the first write; without one, the next opening has the same epoch.
    ``own_epoch`` is the epoch of a replicated log's primary; what frames of earlier ones say of syncs applied
    elsewhere.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(entered.release)
        opened = _open_locked(
            entered,
            clock,
            settings,
            make_log_id,
            tier_limit,
            tier_url,
            tier_timestamp_us,
            defers_epoch=defers_epoch and own_epoch is None,
            own_epoch=own_epoch,
        )
        opened.tail.lock = entered.lock
        stack.pop_all()
    return opened


def close_log(opened: Opened) -> None:
    """Release a log whose opener was cancelled meanwhile."""
    try:
        opened.tail.close(clean=True)
    finally:
        opened.release()


def _open_locked(
    entered: Entered,
    clock: Clock,
    settings: Settings,
    make_log_id: Callable[[], bytes],
    tier_limit: int,
    tier_url: str | None,
    tier_timestamp_us: int,
    *,
    defers_epoch: bool,
    own_epoch: int | None,
) -> Opened:
    directory, fs = entered.directory, entered.fs
    hint = load_checkpoint(fs, directory)
    cell = _heeding_cursors(entered, hint, read_cell(fs, directory, is_locked=True))
    ledger = Ledger(window=settings.producer_window, max_producers=settings.max_producers)
    found = find_log(fs, directory, entered.names, hint, cell, ledger)
    copies = TornCopies(fs, directory, entered.names)
    if found is None:
        chain = Chain(tier_limit, 0, tier_timestamp_us, 0, ledger)
        log_id, start = make_log_id(), _Start(chain, tier_limit, Recovery(created=True))
    else:
        evidence = evidence_of(found.header.start, found.header.salt, hint, cell)
        evidence = replace(evidence, own_epoch=max(evidence.own_epoch, own_epoch or 0))
        log_id, start = found.log_id, _recover(fs, directory, found, hint, evidence, copies)
    if start.chain.next_offset < tier_limit:
        start.close()
        raise ContentionError(
            f"{tier_url} holds offsets up to {tier_limit} but {directory} ends at "
            f"{start.chain.next_offset}: it is the prefix of another log, or this disk lost records"
        )
    start.chain.epoch = max(start.chain.epoch, hint.epoch if hint else 0) + 1
    if own_epoch is not None:
        start.chain.epoch = max(start.chain.epoch, own_epoch)
    shared = None
    try:
        adopted = _settle_side_files(
            fs,
            directory,
            ledger,
            is_ours=hint is not None and not hint.is_of_copy,
            is_replicated=own_epoch is not None,
        )
        remove_leftovers(fs, directory, entered.names)
        copies.remove_before(min(pick_segments(directory, entered.names), default=0))
        cell_path = directory / checkpoint.CELL_FILE_NAME
        shared = ActiveCell(fs, cell_path, checkpoint.CELL_BYTES)

        def make_tail() -> Tail:
            assert shared is not None
            return Tail(
                fs=fs,
                clock=clock,
                settings=settings,
                directory=directory,
                log_id=log_id,
                chain=start.chain,
                head=start.head,
                sealed=start.sealed,
                active=start.active,
                cell=shared,
                uploaded_limit=hint.uploaded_limit if hint and found is not None else 0,
                tier_url=tier_url or (hint.tier_url if hint else None),
                own_epoch=max(hint.own_epoch if hint else 0, own_epoch or 0),
                given_up=start.given_up,
                copies=copies,
                is_as_checkpointed=defers_epoch
                and start.active is not None
                and _is_as_checkpointed(hint, cell, start, tier_url),
            )

        tail = _with_room(make_tail, fs, directory, start, found)
    except BaseException:
        if shared is not None:
            shared.close()
        start.close()
        raise
    sealed = [
        Segment(directory / segment.file_name(summary.start), summary.start, summary)
        for summary in tail.summaries()[:-1]
    ]
    free_bytes = look(fs, directory)
    return Opened(fs, tail, entered.lock, log_id, sealed, start.recovery, free_bytes, adopted)


def _settle_side_files(
    fs: FileSystem, directory: Path, ledger: Ledger, *, is_ours: bool, is_replicated: bool
) -> Mapping[str, Found] | None:
    """Make the files next to the log, cursors and journals of groups, say nothing that is not so any more.

    ``is_ours``: there is a checkpoint. A copy loses it before another primary's frames come in, so with one
    this directory was also the last to have the log open, and the journals are of that time. Without one they
    may be older, and have to be gone before the next checkpoint is written. Returns the cursors that the log
    has to adopt.
    """
    is_kept = keeps_cursors(ledger.registers, directory)
    if not is_kept and not is_replicated:
        return None  # as most logs are: all of it is in files, which were never copied
    if not is_ours:
        remove_journals(fs, directory)
    if not is_kept:
        return cursors_of_files(fs, directory)
    if not is_replicated:
        restore_files(fs, directory, ledger.registers)
        restore_journals(fs, directory, ledger.registers)
    return None


def _heeding_cursors(
    entered: Entered, hint: Checkpoint | None, cell: DurableCell | None
) -> DurableCell | None:
    """Return the cell with a head that no cursor forbids, if the checkpoint does not have it.

    Without room for the lock of the cursors, the cell shows a head before it is certain that there is
    no cursor (:class:`walstore.log.retention.HeldPins`), and the process may have died before it took that
    back.
    """
    if hint is None or cell is None or cell.head <= hint.head:
        return cell
    pin = lowest_pin(list_cursors(entered.fs, entered.directory, now_us=0))
    starts = pick_segments(entered.directory, entered.names)
    if pin is None or pin >= cell.head or not starts:
        return cell
    return cell._replace(head=min(cell.head, max(hint.head, pin, starts[0])))


@dataclass(slots=True)
class _Start:
    """Where a log continues."""

    chain: Chain
    head: int
    recovery: Recovery
    sealed: list[SegmentSummary] = field(default_factory=list)
    active: tuple[Segment, File, int] | None = None
    """The open segment to continue, and where its frames end; None to begin a new one."""
    given_up: Sequence[int] = ()
    """Segments below the head, to be removed once that is durable."""

    def close(self) -> None:
        """Release the file; this start is not used."""
        if self.active is not None:
            self.active[1].close()


def _with_room(
    make_tail: Callable[[], Tail],
    fs: FileSystem,
    directory: Path,
    start: _Start,
    found: ScannedLog | None,
) -> Tail:
    """Make the tail. If a full disk has no room for a new segment, unseal and continue the last one."""
    try:
        return make_tail()
    except OSError as error:
        can_unseal = found is not None and found.is_sealed and found.header.salt is not None
        if start.active is not None or not start.sealed or not is_full(error) or not can_unseal:
            raise
        if segment.file_name(start.chain.next_offset) in fs.list(directory):
            raise  # a segment to continue exists, though it was not known to be durable
    assert found is not None
    summary = start.sealed.pop()
    path = directory / segment.file_name(summary.start)
    logger.warning("no space for a new segment: %s is unsealed and continued", path)
    file = fs.open(path, "r+")
    source = Segment(path, summary.start, None, found.index, header=found.header)
    start.active = source, file, summary.data_bytes
    file.truncate(summary.data_bytes)
    file.datasync()
    return make_tail()


def _is_as_checkpointed(
    hint: Checkpoint | None, cell: DurableCell | None, start: _Start, tier_url: str | None
) -> bool:
    """Return whether a log was closed cleanly, so that only the epoch has to be written."""
    assert start.active is not None
    header = start.active[0].header
    return (
        hint is not None
        and cell is not None
        and header is not None
        and header.salt is not None
        and hint.is_closed
        and start.recovery == Recovery()
        and hint.next_offset == cell.durable_limit == start.chain.next_offset
        and (hint.head, hint.tail_start, hint.tail_salt)
        == (cell.head, cell.tail_start, cell.tail_salt)
        and tier_url in (None, hint.tier_url)
    )


def _recover(
    fs: FileSystem,
    directory: Path,
    found: ScannedLog,
    hint: Checkpoint | None,
    evidence: Evidence,
    copies: TornCopies,
) -> _Start:
    """Make the end of the log safe to append to."""
    header, chain = found.header, found.chain
    path = directory / segment.file_name(header.start)
    file = fs.open(path, "r+")
    try:
        if found.is_sealed:
            end, torn, copy = found.position, 0, None
            _write_again(file, end, file.size())
            fs.sync_directory(directory)
        else:
            is_closed = hint is not None and hint.is_closed
            end, torn, copy = _cut_torn_tail(
                fs, path, file, found, evidence, copies, is_closed=is_closed
            )
        start = _Start(
            chain,
            max(found.head, chain.ledger.head if chain.ledger else 0),
            Recovery(
                scanned_bytes=0 if found.is_sealed else end - found.position,
                truncated_bytes=torn,
                broken_copy=str(copy) if copy else None,
                missing_from=_missing(path, chain, end, evidence),
            ),
            found.sealed,
            given_up=found.given_up,
        )
        if chain.next_offset < start.head:
            _pass_over(start, [*(s.start for s in found.sealed), header.start], evidence)
        elif not found.is_sealed:
            source = Segment(path, header.start, None, found.index, header=header)
            start.active = source, file, end
    except BaseException:
        file.close()
        raise
    if start.active is None:
        file.close()
    return start


def _cut_torn_tail(
    fs: FileSystem,
    path: Path,
    file: File,
    found: ScannedLog,
    evidence: Evidence,
    copies: TornCopies,
    *,
    is_closed: bool,
) -> tuple[int, int, Path | None]:
    """Walk the active segment to its end and cut off a torn tail, durably.

    Returns where the frames end, how many bytes were torn, and the path of their copy.
    """
    chain, header = found.chain, found.header
    end, size = found.position, file.size()
    if size > end:
        end = walk_file(file, path, chain, header.salt, end, index=found.index)
    rest = file.pread(used_limit(file, end) - end, end) if size > end else b""
    verdict, why = recovery.judge(memoryview(rest), chain, evidence, position=end, header=header)
    if verdict is Verdict.CORRUPT:
        advice = REMAKE if evidence.is_strict else "see 'walstore repair'"
        raise CorruptionError(
            f"{why}; nothing was changed, {advice}",
            path=str(path),
            position=end,
            expected=chain.next_offset,
        )
    copy, torn = None, 0
    if verdict is Verdict.TORN:
        torn = unfinished_bytes(file, end, size, header, chain.previous_crc)
        copy = copies.keep(path, rest[:torn])
        logger.warning("cut %d bytes off %s at %d: %s; copy: %s", torn, path, end, why, copy)
    if size == end == found.position and is_closed:
        return end, 0, None
    if size != end:
        file.truncate(end)
    # Also if nothing follows the position known to be synced: an earlier cut there may not be synced.
    _write_again(file, max(min(evidence.durable_position, end), segment.HEADER_BYTES), end)
    fs.sync_directory(path.parent)
    return end, torn, copy


def _write_again(file: File, begin: int, end: int) -> None:
    """Make bytes durable that may be only in memory, even if a sync of them failed before."""
    for at in range(begin, end, _CHUNK_BYTES):
        file.pwrite([file.pread(min(_CHUNK_BYTES, end - at), at)], at)
    file.datasync()


def _pass_over(start: _Start, starts: list[int], evidence: Evidence) -> None:
    """Continue at the head of a log whose end is missing below it, so that no offset is used again."""
    chain = start.chain
    start.head = chain.next_offset = max(start.head, evidence.durable_limit)
    start.given_up, start.sealed = [*start.given_up, *starts], []


def _missing(path: Path, chain: Chain, end: int, evidence: Evidence) -> int | None:
    """Return the first offset at which synced records or changes are missing, and log it; None if none
    are."""
    if evidence.durable_limit <= chain.next_offset and evidence.durable_position <= end:
        return None
    logger.error(
        "%s ends before offset %d although offsets below %d had been synced, at byte %d although bytes below "
        "%d had been: they were lost or removed",
        path,
        chain.next_offset,
        max(evidence.durable_limit, chain.next_offset),
        end,
        max(evidence.durable_position, end),
    )
    return chain.next_offset
