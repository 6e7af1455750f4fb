"""LogEnd: the end of a log's files, made safe to append to. Blocking; the caller has the lock.

These are steps 4 to 6 of opening a log (``log/opening.py``), and all that a copy of a log needs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from walstore.core.files.directory import (
    REMAKE,
    evidence_of_copy,
    load_checkpoint,
    pick_segments,
    read_cell,
)
from walstore.core.files.directory_scan import ScannedLog, find_damaged, find_log
from walstore.core.files.floor import load_note
from walstore.core.files.frame_walk import unfinished_bytes, used_limit, walk_file
from walstore.core.files.segment_file import Segment
from walstore.core.files.torn_copies import TornCopies
from walstore.core.format import recovery, segment
from walstore.core.format.checkpoint import Checkpoint
from walstore.core.format.ledger import Ledger
from walstore.core.format.recovery import Chain, Evidence, Verdict
from walstore.core.format.segment import SegmentHeader, SegmentSummary
from walstore.core.ports import File, FileSystem
from walstore.errors import CorruptionError

logger = logging.getLogger("walstore.log")

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


@dataclass(slots=True)
class LogEnd:
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


def continue_end(
    fs: FileSystem,
    directory: Path,
    found: ScannedLog,
    hint: Checkpoint | None,
    evidence: Evidence,
    copies: TornCopies,
) -> LogEnd:
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
        start = LogEnd(
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


def _pass_over(start: LogEnd, starts: list[int], evidence: Evidence) -> None:
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
    start = continue_end(fs, directory, found, hint, evidence, copies)
    start.close()
    epoch = max(start.chain.epoch, found.header.epoch)
    position = found.position if start.active is None else start.active[2]
    limit = start.chain.next_offset
    return RecoveredEnd(
        found.log_id, found.header, position, found.is_sealed, limit, epoch, damaged
    )
