"""The files of a log's directory: segments, checkpoint, durable cell; replacing small ones. Blocking."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from walstore.core.files import spare_segment
from walstore.core.files.segment_file import read_header
from walstore.core.format import checkpoint, claims, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.claims import Claims
from walstore.core.format.recovery import Evidence
from walstore.core.format.segment import SegmentHeader
from walstore.core.ports import FileSystem
from walstore.core.runtime.error_mapping import is_full
from walstore.errors import CorruptionError, LogNotFoundError

logger = logging.getLogger("walstore.log")

LOCK_NAME: Final = "LOCK"
REPAIR_NAME: Final = "repair.wal"
"""File of a repair in progress. Its name ends like a segment's, so that the log does not open."""
PROMISE_NAME: Final = "PROMISE"
"""File of a copy of a replicated log (``walstore.cluster.replication.promise``)."""
SYNCED_NAME: Final = "SYNCED"
"""How far a copy of a replicated log was synced here: laid out as the durable cell, which only the writer of
a log has. It is no evidence once its segment was replaced, and is removed before the copy is cut."""
RESTORE_NAME: Final = "restore.wal"
"""The same for a restore (``uploader.care.restoring``)."""
REMAKE: Final = (
    "empty the directory of this copy to have it made again from the others; if none of them is whole, "
    "keep it, and see 'walstore repair' and 'walstore logs reset-head'"
)
"""What helps a copy that lost something."""
CELL_ATTEMPTS: Final = 1000
"""So often a cell is read that another process may be storing to."""
_NO_EPOCH: Final = 1 << 63
"""Above all epochs: no frame says anything of this disk."""


def anchor_log(fs: FileSystem, directory: Path) -> FileSystem:
    """Return a file system that is bound to a log's directory; the caller closes it.

    Raises LogNotFoundError if there is no such directory.
    """
    try:
        return fs.anchor(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise LogNotFoundError(f"there is no log at {directory}", location=str(directory)) from None


def list_segments(fs: FileSystem, directory: Path) -> list[int]:
    """Return the first offsets of the segments in a directory, in order.

    Raises LogNotFoundError if there is no such directory and CorruptionError for a file whose
    name ends like a segment's but is not a segment's name.
    """
    try:
        names = fs.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise LogNotFoundError(f"there is no log at {directory}", location=str(directory)) from None
    return pick_segments(directory, names)


def pick_segments(directory: Path, names: Iterable[str]) -> list[int]:
    """As :func:`list_segments`, for the given names of files in the directory."""
    starts = []
    for name in names:
        start = segment.parse_file_name(name)
        if start is not None:
            starts.append(start)
        elif name == REPAIR_NAME:
            raise CorruptionError(
                f"a repair was interrupted; 'walstore repair {directory} --confirm' finishes it",
                path=str(directory / name),
            )
        elif name == RESTORE_NAME:
            raise restore_interrupted(directory)
        elif name.endswith(segment.SUFFIX):
            raise CorruptionError(
                "a foreign file is named like a segment; move it away", path=str(directory / name)
            )
    return sorted(starts)


def is_name_taken(fs: FileSystem, directory: Path, names: Iterable[str]) -> bool:
    """Whether a directory has the name under which the next segment is made, which nothing else may have."""
    name = spare_segment.NAME
    return name in names and name in fs.list_directories(directory)


def restore_interrupted(directory: Path) -> CorruptionError:
    """Return the error for a directory that contains :data:`RESTORE_NAME`: its other files are not a log."""
    return CorruptionError(
        "a restore was interrupted; restore the log again, into the same directory",
        path=str(directory / RESTORE_NAME),
    )


def peek_log_id(fs: FileSystem, directory: Path) -> bytes | None:
    """Return the identity of the log in a directory without taking its lock; None if there is none."""
    try:
        starts = list_segments(fs, directory)
    except LogNotFoundError:
        return None
    if not starts:
        return None
    return read_segment_header(fs, directory, starts[-1]).log_id


def read_segment_header(fs: FileSystem, directory: Path, start: int) -> SegmentHeader:
    """Read and check the header of a segment; FileNotFoundError if it is gone."""
    path = directory / segment.file_name(start)
    with contextlib.closing(fs.open(path, "r")) as file:
        return read_header(file, path)


def load_checkpoint(fs: FileSystem, directory: Path) -> Checkpoint | None:
    """Return the checkpoint, or None if there is none or it is damaged."""
    path = directory / checkpoint.FILE_NAME
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    found = checkpoint.decode_checkpoint(data, str(path))
    if found is None:
        logger.warning("checkpoint is damaged and will be rebuilt: %s", path)
    return found


def load_claims(fs: FileSystem, directory: Path) -> Claims:
    """Return the claims of a directory: none if the file is missing or damaged."""
    path = directory / claims.FILE_NAME
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return Claims()
    found = Claims.decode(data, str(path))
    if found is None:
        logger.warning("the claims are damaged and count for nothing: %s", path)
    return found or Claims()


def read_cell(fs: FileSystem, directory: Path, *, is_locked: bool = False) -> DurableCell | None:
    """Return the durable cell, or None if there is none or it stays damaged.

    A damaged cell is read again, since a writer may be half-way through an update; but not by the holder
    of the log's lock, who is the only writer.
    """
    for _ in range(1 if is_locked else CELL_ATTEMPTS):
        try:
            found = checkpoint.decode_cell(fs.read(directory / checkpoint.CELL_FILE_NAME))
        except FileNotFoundError:
            return None
        if found is not None:
            return found
    return None


def has_cell(fs: FileSystem, directory: Path) -> bool:
    """Return whether there is a durable cell, damaged or not."""
    return checkpoint.CELL_FILE_NAME in fs.list(directory)


def evidence_of(
    start: int,
    salt: int | None,
    hint: Checkpoint | None,
    cell: DurableCell | None,
    synced: DurableCell | None = None,
) -> Evidence:
    """Return what checkpoint and cell, and :data:`SYNCED_NAME`, prove was synced of the segment ``start``.

    A segment without records may be replaced by another of the same name, so the salt must match, too.
    """
    return Evidence(
        durable_limit=max(hint.next_offset if hint else 0, cell.durable_limit if cell else 0),
        durable_position=max(
            (
                found.tail_position
                for found in (hint, cell, synced)
                if found is not None and (found.tail_start, found.tail_salt) == (start, salt)
            ),
            default=0,
        ),
        own_epoch=hint.own_epoch if hint is not None else 0,
    )


def evidence_of_copy(
    directory: Path,
    header: SegmentHeader,
    hint: Checkpoint | None,
    cell: DurableCell | None,
    synced: DurableCell,
) -> Evidence:
    """Return the same of the last segment of a copy of a replicated log, which must have all of it.

    Its frames are those of another machine, where what they say of syncs applied. CorruptionError if
    ``synced`` speaks of a later segment.
    """
    if synced.tail_start > header.start:
        raise CorruptionError(
            f"the newest segments of the copy are gone; {REMAKE}",
            path=str(directory),
            expected=segment.file_name(synced.tail_start),
            found=segment.file_name(header.start),
        )
    evidence = evidence_of(header.start, header.salt, hint, cell, synced)
    return replace(evidence, own_epoch=_NO_EPOCH, is_strict=True)


def sync_entry(fs: FileSystem, directory: Path) -> None:
    """Make the entry of a directory in its parent durable: its creator may not have done so.

    A parent that may not be read is skipped; it existed before, for example as a mounted volume.
    """
    with contextlib.suppress(PermissionError):
        fs.sync_directory(directory / "..")


def write_durably(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old or the new content."""
    spare = path.with_name(path.name + ".tmp")
    try:
        file = fs.open(spare, "x")
    except FileExistsError:  # a crash left it
        fs.remove(spare)
        file = fs.open(spare, "x")
    try:
        file.pwrite([data], 0)
        file.datasync()
    finally:
        file.close()
    fs.replace(spare, path)
    fs.sync_directory(path.parent)


def write_hints(fs: FileSystem, directory: Path, hint: Checkpoint) -> None:
    """Replace the durable cell by one that agrees with a checkpoint, and then the checkpoint."""
    write_durably(fs, directory / checkpoint.CELL_FILE_NAME, checkpoint.encode_cell(hint.cell))
    write_durably(fs, directory / checkpoint.FILE_NAME, checkpoint.encode_checkpoint(hint))


def write_hint(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file that opening the log can do without; on a full disk, overwrite it in place.

    Overwriting needs no more space than the file has. A crash in the middle leaves a damaged file.
    """
    try:
        write_durably(fs, path, data)
    except OSError as error:
        if not is_full(error) or not _overwrite(fs, path, data):
            raise


def _overwrite(fs: FileSystem, path: Path, data: bytes) -> bool:
    with contextlib.suppress(FileNotFoundError):
        fs.remove(path.with_name(path.name + ".tmp"))
    try:
        file = fs.open(path, "r+")
    except FileNotFoundError:
        return False
    try:
        if len(data) > file.size():
            return False
        file.pwrite([data], 0)
        file.truncate(len(data))
        file.datasync()
    except OSError:
        with contextlib.suppress(OSError):  # none is better than half of one
            fs.remove(path)
        raise
    finally:
        file.close()
    return True
