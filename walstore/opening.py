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

from walstore import checkpoint, frame, recovery, segment
from walstore.active import ActiveCell
from walstore.checkpoint import Checkpoint, DurableCell
from walstore.directory import (
    list_segments,
    load_checkpoint,
    read_cell,
    walk_file,
)
from walstore.disk_watch import look
from walstore.durable_file import write_durably
from walstore.errors import ContentionError, CorruptionError
from walstore.ledger import Ledger, Marks
from walstore.locks import lock_log
from walstore.ports import Clock, File, FileSystem, Lock
from walstore.recovery import Chain, Verdict
from walstore.segment import SegmentHeader, SegmentIndex, SegmentSummary
from walstore.segment_file import Segment, read_footer, read_header, read_last_footer
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
    """Bytes of an unfinished batch that were cut off; a copy is kept beside the segment."""
    broken_copy: str | None = None
    """Path of that copy."""
    missing_from: int | None = None
    """First offset that had been durable and is gone, if the file ends before it; normally None."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A log ready for its writer."""

    tail: Tail
    lock: Lock
    log_id: bytes
    sealed: list[Segment]
    recovery: Recovery
    free_bytes: int | None
    """Space left on the file system, if it can be told."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What lies in the directory, before anything is changed."""

    log_id: bytes
    head: int
    sealed: list[SegmentSummary]
    chain: Chain
    index: SegmentIndex
    position: int
    """Where to walk the active segment from."""
    active_start: int | None


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
    fs.make_directory(directory)
    lock = take_lock(fs, directory, owner)
    try:
        return _open_locked(
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
    except BaseException:
        lock.release()
        raise


def close_log(opened: Opened) -> None:
    """Release a log that was opened for nobody: its caller was cancelled meanwhile."""
    try:
        opened.tail.close(clean=True)
    finally:
        opened.lock.release()


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
    found = _find(fs, directory, hint, ledger)
    created = found is None
    if found is None:
        chain = Chain(tier_limit, 0, 0, 0, ledger)
        found = _Found(make_log_id(), tier_limit, [], chain, SegmentIndex(), 0, None)
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
    return Opened(tail, lock, found.log_id, sealed, recovered, look(fs, directory))


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


def _find(
    fs: FileSystem, directory: Path, hint: Checkpoint | None, ledger: Ledger
) -> _Found | None:
    starts = list_segments(fs, directory)
    if not starts:
        if hint is not None:
            raise CorruptionError(
                "the checkpoint names segments that are gone; restore them, or move the checkpoint "
                "away to begin a new log",
                path=str(directory),
                expected=segment.file_name(hint.tail_start),
            )
        return None
    starts = _drop_below_head(fs, directory, starts, hint)
    summaries = {s.start: s for s in hint.sealed} if hint else {}
    sealed: list[SegmentSummary] = []
    log_id = hint.log_id if hint else None
    for start in starts[:-1]:
        _check_adjacent(directory, sealed, start)
        summary = summaries.get(start)
        if summary is None:
            log_id, summary = _read_sealed(fs, directory, start, sealed, log_id)
        sealed.append(summary)
    last = starts[-1]
    _check_adjacent(directory, sealed, last)
    if hint is not None and starts[0] > hint.head:
        raise CorruptionError(
            "segments are missing at the beginning of the log",
            path=str(directory),
            expected=segment.file_name(hint.head),
            found=segment.file_name(starts[0]),
        )
    if hint is not None and last < hint.tail_start:
        raise CorruptionError(
            "segments are missing at the end of the log",
            path=str(directory),
            expected=segment.file_name(hint.tail_start),
            found=segment.file_name(last),
        )
    head = hint.head if hint else starts[0]
    return _find_tail(fs, directory, hint, sealed, last, head, log_id, ledger)


def _find_tail(
    fs: FileSystem,
    directory: Path,
    hint: Checkpoint | None,
    sealed: list[SegmentSummary],
    last: int,
    head: int,
    log_id: bytes | None,
    ledger: Ledger,
) -> _Found:
    path = directory / segment.file_name(last)
    file = fs.open(path, "r")
    try:
        header = read_header(file, path)
        footer = read_last_footer(file, last, path)
        _check_header(path, header, last, sealed, log_id)
        if hint is not None and hint.tail_start == last and _ends_as_checkpointed(file, hint):
            if hint.ledger:
                ledger.apply(Marks.decode(hint.ledger))
            chain = Chain(
                hint.next_offset, hint.previous_crc, hint.timestamp_us, hint.epoch, ledger
            )
            index, position = hint.tail_index, hint.tail_position
        else:
            timestamp_us = sealed[-1].max_timestamp_us if sealed else 0
            chain = Chain(last, header.previous_crc, timestamp_us, header.epoch, ledger)
            index, position = SegmentIndex(), segment.HEADER_BYTES
        if footer is None:
            return _Found(header.log_id, head, sealed, chain, index, position, last)
        summary = footer[0]
        walk_file(
            file, path, chain, index, position
        )  # for the ledger that the next segment begins with
    finally:
        file.close()
    epoch = max(header.epoch, hint.epoch if hint else 0)
    chain = Chain(summary.limit, summary.last_crc, summary.max_timestamp_us, epoch, ledger)
    return _Found(header.log_id, head, [*sealed, summary], chain, SegmentIndex(), 0, None)


def _ends_as_checkpointed(file: File, hint: Checkpoint) -> bool:
    """Return whether the frame that ends at the checkpointed place is there and whole.

    If so, all before it was synced and need not be walked again.
    """
    end = hint.tail_position
    if end <= segment.HEADER_BYTES:
        return True
    trailer = file.pread(frame.TRAILER.size, end - frame.TRAILER.size)
    if len(trailer) < frame.TRAILER.size:
        return False
    length, magic = frame.TRAILER.unpack(trailer)
    if magic != frame.TRAILER_MAGIC or length > end - segment.HEADER_BYTES:
        return False
    view = memoryview(file.pread(length, end - length))
    header = frame.parse_header(view, 0)
    return header is not None and header.crc == hint.previous_crc and frame.is_whole(view, header)


def _drop_below_head(
    fs: FileSystem, directory: Path, starts: list[int], hint: Checkpoint | None
) -> list[int]:
    """Finish a deletion that a crash interrupted: files wholly below the durable head."""
    if hint is None:
        return starts
    while len(starts) > 1 and starts[1] <= hint.head:
        with contextlib.suppress(FileNotFoundError):
            fs.remove(directory / segment.file_name(starts[0]))
        starts = starts[1:]
    return starts


def _read_sealed(
    fs: FileSystem,
    directory: Path,
    start: int,
    before: list[SegmentSummary],
    log_id: bytes | None,
) -> tuple[bytes, SegmentSummary]:
    path = directory / segment.file_name(start)
    file = fs.open(path, "r")
    try:
        header = read_header(file, path)
        footer = read_footer(file, start, path)
    finally:
        file.close()
    _check_header(path, header, start, before, log_id)
    if footer is None:
        raise CorruptionError("segment is not sealed although another one follows", path=str(path))
    return header.log_id, footer[0]


def _check_header(
    path: Path,
    header: SegmentHeader,
    start: int,
    before: list[SegmentSummary],
    log_id: bytes | None,
) -> None:
    """Check that a segment is the one its name says and continues those before it."""
    if header.start != start:
        raise CorruptionError(
            "segment is not the one its name says",
            path=str(path),
            expected=start,
            found=header.start,
        )
    if log_id is not None and log_id != header.log_id:
        raise CorruptionError(
            "segment belongs to another log",
            path=str(path),
            expected=log_id.hex(),
            found=header.log_id.hex(),
        )
    if before and before[-1].last_crc != header.previous_crc:
        raise CorruptionError(
            "segment does not continue the one before",
            path=str(path),
            expected=before[-1].last_crc,
            found=header.previous_crc,
        )


def _check_adjacent(directory: Path, sealed: list[SegmentSummary], start: int) -> None:
    if sealed and sealed[-1].limit != start:
        raise CorruptionError(
            "a segment is missing",
            path=str(directory),
            expected=segment.file_name(sealed[-1].limit),
            found=segment.file_name(start),
        )


def _recover_active(
    fs: FileSystem, directory: Path, found: _Found, durable_limit: int
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
