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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from walstore.core.append.disk_watch import look
from walstore.core.append.tail import Tail
from walstore.core.files.directory import (
    evidence_of,
    load_checkpoint,
    pick_segments,
    read_cell,
)
from walstore.core.files.directory_scan import ScannedLog, find_log
from walstore.core.files.open_files import ActiveCell
from walstore.core.files.segment_file import Segment
from walstore.core.files.spill import remove_leftovers
from walstore.core.files.torn_copies import TornCopies
from walstore.core.format import checkpoint, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.ledger import Ledger
from walstore.core.format.recovery import Chain
from walstore.core.ports import Clock, FileSystem, Lock
from walstore.core.runtime.error_mapping import is_full
from walstore.core.settings import Settings
from walstore.errors import ContentionError
from walstore.log.entered import Entered
from walstore.log.log_end import LogEnd, Recovery, continue_end
from walstore.positions.cursors.directory import list_cursors, lowest_pin
from walstore.positions.cursors.kept import Found, cursors_of_files, keeps_cursors, restore_files
from walstore.positions.groups.journal import remove_journals
from walstore.positions.groups.kept_journal import restore_journals

logger = logging.getLogger("walstore.log")


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
        log_id, start = make_log_id(), LogEnd(chain, tier_limit, Recovery(created=True))
    else:
        evidence = evidence_of(found.header.start, found.header.salt, hint, cell)
        evidence = replace(evidence, own_epoch=max(evidence.own_epoch, own_epoch or 0))
        log_id, start = found.log_id, continue_end(fs, directory, found, hint, evidence, copies)
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


def _with_room(
    make_tail: Callable[[], Tail],
    fs: FileSystem,
    directory: Path,
    start: LogEnd,
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
    hint: Checkpoint | None, cell: DurableCell | None, start: LogEnd, tier_url: str | None
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
