"""What had been synced and is gone from the end of a log, as far as its files tell. Reads only; blocking."""

from __future__ import annotations

from pathlib import Path

from walstore.files.directory import (
    evidence_of,
    list_segments,
    load_checkpoint,
    read_cell,
    used_limit,
    walk_file,
)
from walstore.files.segment_file import read_header, read_last_footer
from walstore.format import frame, segment
from walstore.format.checkpoint import Checkpoint, DurableCell
from walstore.format.recovery import Chain
from walstore.format.segment import SegmentIndex
from walstore.ports import File, FileSystem


def find_missing(fs: FileSystem, directory: Path) -> int | None:
    """Return the first offset that had been durable and is cut off the end of the log, or None.

    If only changes without records are cut off (registers, streams), that is the log's next offset.
    What the checkpoint and the durable cell promise is compared with where the last file ends. Damage
    that left bytes behind is not meant; ``walstore verify`` finds that. May run beside a live writer.
    Raises LogNotFoundError, CorruptionError and FormatVersionError if the last file cannot be read.
    """
    cell, hint = read_cell(fs, directory), load_checkpoint(fs, directory)
    starts = list_segments(fs, directory)
    if not starts:
        return None
    path = directory / segment.file_name(starts[-1])
    try:
        file = fs.open(path, "r")
    except FileNotFoundError:  # retention deleted it, so there are newer ones
        return None
    try:
        return _find_missing(file, path, starts[-1], hint, cell)
    finally:
        file.close()


def _find_missing(
    file: File, path: Path, start: int, hint: Checkpoint | None, cell: DurableCell | None
) -> int | None:
    """Compare the end of the last file with what is known to have been synced."""
    header = read_header(file, path)
    evidence = evidence_of(start, header.salt, hint, cell)
    footer = read_last_footer(file, start, path)
    if footer is not None:
        return footer[0].limit if footer[0].limit < evidence.durable_limit else None
    chain, position = Chain(start, header.previous_crc, 0, header.epoch), segment.HEADER_BYTES
    is_noted = hint is not None and (hint.tail_start, hint.tail_salt) == (start, header.salt)
    if hint is not None and is_noted and _has_trailer(file, hint.tail_position):
        chain = Chain(hint.next_offset, hint.previous_crc, 0, header.epoch)
        position = hint.tail_position
    end = walk_file(file, path, chain, SegmentIndex(), position, header.salt)
    has_rest = not header.reuses_blocks and used_limit(file, end) > end
    is_short = evidence.durable_limit > chain.next_offset or evidence.durable_position > end
    return chain.next_offset if is_short and not has_rest else None


def _has_trailer(file: File, position: int) -> bool:
    """Return whether a frame seems to end at a place."""
    if position < segment.HEADER_BYTES + frame.TRAILER.size:
        return False
    data = file.pread(frame.TRAILER.size, position - frame.TRAILER.size)
    return len(data) == frame.TRAILER.size and frame.TRAILER.unpack(data)[1] == frame.TRAILER_MAGIC
