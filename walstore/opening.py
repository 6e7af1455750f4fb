"""Opening a log for writing: lock, recover, repair the torn tail. Blocking; runs on the writer thread.

The order is fixed and each step may be the last one before a crash:

  1. take the lock;            2. read the checkpoint, or do without it;
  3. list the segments and compare them with each other and with the checkpoint;
  4. walk the active segment from the checkpointed place to its end;
  5. keep a copy of a torn tail as ``<segment>.broken``, cut it off, sync;
  6. raise the epoch and make that durable in a new checkpoint.

Bytes are only ever removed in step 5, and only those that were never acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from walstore import checkpoint, recovery, segment
from walstore.active import ActiveCell
from walstore.checkpoint import Checkpoint, DurableCell
from walstore.directory import (
    load_checkpoint,
    read_cell,
    walk_file,
)
from walstore.disk_watch import look
from walstore.durable_file import sync_entry, write_durably
from walstore.errors import ContentionError, CorruptionError
from walstore.finding import Found, find_log
from walstore.ledger import Ledger
from walstore.locks import lock_log
from walstore.ports import Clock, File, FileSystem, Lock
from walstore.recovery import Chain, Verdict
from walstore.segment import SegmentIndex
from walstore.segment_file import Segment
from walstore.settings import Settings
from walstore.spill import remove_leftovers
from walstore.tail import Tail

logger = logging.getLogger("walstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening a log found and did."""

    created: bool = False
    """Whether there was no log and one was made."""
    scanned_bytes: int = 0
    """Bytes of the active segment that were walked."""
    truncated_bytes: int = 0
    """Bytes of an unfinished batch, or seal, that were cut off; a copy is kept beside the segment."""
    broken_copy: str | None = None
    """Path of that copy."""
    missing_from: int | None = None
    """First offset that had been durable and is gone, if the file ends before it; normally None."""


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
    """Space left on the file system, if it can be told."""

    def release(self) -> None:
        """Give the lock back and let go of the directory; twice is allowed."""
        try:
            self.lock.release()
        finally:
            self.fs.close()


def open_log(
    directory: Path,
    *,
    fs: FileSystem,
    clock: Clock,
    settings: Settings,
    owner: str,
    take_lock: Callable[[FileSystem, Path, str], Lock] = lock_log,
    defers_epoch: bool = False,
    make_log_id: Callable[[], bytes],
    tier_limit: int,
    tier_url: str | None,
) -> Opened:
    """Open or create the log in ``directory``.

    ``tier_limit`` is the offset after the last one that the log's cloud tier holds (1 without a
    tier). A new log begins there, so that offsets are never used twice; an existing log that ends
    before it is refused with ContentionError. Raises WalLockedError, CorruptionError,
    FormatVersionError, OSError.

    ``defers_epoch``: a log that was closed cleanly is opened without writing anything. Its new epoch
    becomes durable with the first write; if there is none, the next opening has the same.
    """
    is_made = fs.make_directory(directory)
    with contextlib.ExitStack() as stack:
        # From here on the log is in this directory, wherever that is moved.
        fs = fs.anchor(directory)
        stack.callback(fs.close)
        lock = take_lock(fs, directory, owner)
        stack.callback(lock.release)
        if not is_made and not any(name.endswith(segment.SUFFIX) for name in fs.list(directory)):
            sync_entry(fs, directory)  # before there is anything that would say it was done
        opened = _open_locked(
            directory,
            fs,
            clock,
            settings,
            lock,
            make_log_id,
            tier_limit,
            tier_url,
            defers_epoch=defers_epoch,
        )
        opened.tail.lock = lock
        stack.pop_all()
    return opened


def close_log(opened: Opened) -> None:
    """Release a log that was opened for nobody: its caller was cancelled meanwhile."""
    try:
        opened.tail.close(clean=True)
    finally:
        opened.release()


def _open_locked(
    directory: Path,
    fs: FileSystem,
    clock: Clock,
    settings: Settings,
    lock: Lock,
    make_log_id: Callable[[], bytes],
    tier_limit: int,
    tier_url: str | None,
    *,
    defers_epoch: bool,
) -> Opened:
    hint = load_checkpoint(fs, directory)
    cell = read_cell(fs, directory)
    ledger = Ledger(window=settings.producer_window, max_producers=settings.max_producers)
    found = find_log(fs, directory, hint, ledger)
    created = found is None
    if found is None:
        chain = Chain(tier_limit, 0, 0, 0, ledger)
        found = Found(make_log_id(), tier_limit, [], chain, SegmentIndex(), 0, None)
        active, recovered = None, Recovery(created=True)
    else:
        durable_limit = max(hint.next_offset if hint else 0, cell.durable_limit if cell else 0)
        active, recovered = _recover_active(fs, directory, found, durable_limit)
    if found.chain.next_offset < tier_limit:
        if active is not None:
            active[1].close()
        raise ContentionError(
            f"{tier_url} holds offsets up to {tier_limit} but {directory} ends at "
            f"{found.chain.next_offset}: it is the prefix of another log, or this disk lost records"
        )
    remove_leftovers(fs, directory)
    found.chain.epoch = max(found.chain.epoch, hint.epoch if hint else 0) + 1
    shared = None
    try:
        cell_path = directory / checkpoint.CELL_FILE_NAME
        shared = ActiveCell(fs, cell_path, checkpoint.CELL_BYTES)
        tail = Tail(
            fs=fs,
            clock=clock,
            settings=settings,
            directory=directory,
            log_id=found.log_id,
            chain=found.chain,
            head=found.head,
            sealed=found.sealed,
            active=active,
            cell=shared,
            uploaded_limit=hint.uploaded_limit if hint and not created else 0,
            tier_url=tier_url or (hint.tier_url if hint else None),
            is_as_checkpointed=defers_epoch
            and active is not None
            and _is_as_checkpointed(hint, cell, found.chain, recovered, tier_url),
        )
    except BaseException:
        if shared is not None:
            shared.close()
        if active is not None:
            active[1].close()
        raise
    sealed = [
        Segment(directory / segment.file_name(summary.start), summary.start, summary)
        for summary in found.sealed
    ]
    return Opened(fs, tail, lock, found.log_id, sealed, recovered, look(fs, directory))


def _is_as_checkpointed(
    hint: Checkpoint | None,
    cell: DurableCell | None,
    chain: Chain,
    recovered: Recovery,
    tier_url: str | None,
) -> bool:
    """Return whether a log was closed cleanly, so that there is nothing to write but the epoch."""
    return (
        hint is not None
        and cell is not None
        and recovered == Recovery()
        and hint.next_offset == cell.durable_limit == chain.next_offset
        and (hint.head, hint.tail_start) == (cell.head, cell.tail_start)
        and tier_url in (None, hint.tier_url)
    )


def _recover_active(
    fs: FileSystem, directory: Path, found: Found, durable_limit: int
) -> tuple[tuple[Segment, File, int] | None, Recovery]:
    """Walk the active segment to its end and cut a torn tail off."""
    if found.active_start is None:
        return None, Recovery(missing_from=_missing(found.chain, durable_limit))
    path = directory / segment.file_name(found.active_start)
    index = found.index
    file = fs.open(path, "r+")
    try:
        position, size = found.position, file.size()
        if size > position:
            position = walk_file(file, path, found.chain, index, position)
        rest = file.pread(size - position, position) if size > position else b""
        verdict, why = recovery.judge(memoryview(rest), found.chain, durable_limit)
        if verdict is Verdict.CORRUPT:
            raise CorruptionError(
                f"{why}; nothing was changed, see 'walstore repair'",
                path=str(path),
                position=position,
                expected=found.chain.next_offset,
            )
        torn = recovery.used_bytes(rest)
        copy = None
        if torn:
            copy = _keep(fs, path, rest[:torn])
            logger.warning(
                "cut %d bytes off %s at %d: %s; copy: %s", torn, path, position, why, copy
            )
        missing = _missing(found.chain, durable_limit)
        if missing is not None:
            logger.error(
                "%s ends before offset %d although offsets below %d had been synced: "
                "the disk or somebody removed them",
                path,
                missing,
                durable_limit,
            )
        if size != found.position:  # else all of it is synced: the checkpoint says so
            file.truncate(position)
            file.datasync()
    except BaseException:
        file.close()
        raise
    state = Recovery(
        scanned_bytes=position - found.position,
        truncated_bytes=torn,
        broken_copy=str(copy) if copy else None,
        missing_from=missing,
    )
    return (Segment(path, found.active_start, None, index), file, position), state


def _keep(fs: FileSystem, path: Path, torn: bytes) -> Path:
    """Keep a torn tail in a file that is not there yet, unless an opening that died just did."""
    copy, number = path.with_suffix(".broken"), 1
    taken = set(fs.list(path.parent))
    while copy.name in taken:
        if fs.read(copy) == torn:
            return copy
        number += 1
        copy = path.with_suffix(f".broken.{number}")
    write_durably(fs, copy, torn)
    return copy


def _missing(chain: Chain, durable_limit: int) -> int | None:
    return chain.next_offset if durable_limit > chain.next_offset else None
