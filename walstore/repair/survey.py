"""Surveying the directory of a damaged log. Reads every byte and changes nothing. Blocking.

The results are judged elsewhere (``repair/runs.py``, ``repair/planner.py``). Needs memory for one batch and a
few megabytes, and for the bytes after the last batch of an unsealed segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from walstore.cursors.directory import list_cursors
from walstore.errors import CorruptionError, FormatVersionError, LogNotFoundError
from walstore.files.directory import RESTORE_NAME, restore_interrupted
from walstore.files.segment_file import read_footer, read_last_footer
from walstore.format import checkpoint, segment
from walstore.format.checkpoint import Checkpoint, DurableCell
from walstore.format.segment import SegmentHeader
from walstore.ports import File, FileSystem
from walstore.repair.survey_types import LogSurvey, SegmentSurvey
from walstore.repair.walk import Mark, SegmentWalk
from walstore.verify.segment import message_of


def survey_log(fs: FileSystem, directory: Path) -> LogSurvey:
    """Read all of the log in ``directory``.

    Raises LogNotFoundError, CorruptionError if it is an interrupted restore, FormatVersionError if a file was
    written by a newer version, and OSError.
    """
    try:
        names = frozenset(fs.list(directory))
    except (FileNotFoundError, NotADirectoryError):
        names = frozenset()
    starts = {name: segment.parse_file_name(name) for name in names}
    hint, hint_error = _read_hint(fs, directory, names)
    cell, cell_error = _read_cell(fs, directory, names)
    is_log = checkpoint.FILE_NAME in names or any(start is not None for start in starts.values())
    if not is_log and (cell is None or cell.durable_limit <= cell.head):
        raise LogNotFoundError(f"there is no log at {directory}", location=str(directory))
    if RESTORE_NAME in names:
        raise restore_interrupted(directory)
    found = sorted((start, name) for name, start in starts.items() if start is not None)
    segments: list[SegmentSurvey] = []
    following: SegmentHeader | None = None
    for start, name in reversed(found):
        marks = list(_marks(start, hint, cell, following))
        one = _survey_segment(
            fs, directory / name, start, hint, cell, marks, is_last=name == found[-1][1]
        )
        segments.append(one)
        following = one.header
    return LogSurvey(
        path=directory,
        segments=sorted(segments, key=lambda one: (one.first_offset, one.name)),
        foreign=sorted(
            name for name, start in starts.items() if start is None and _is_foreign(name)
        ),
        names=names,
        hint=hint,
        hint_error=hint_error,
        cell=cell,
        cell_error=cell_error,
        cursors=tuple(
            (one.name, one.position)
            for one in list_cursors(fs, directory, now_us=0)
            if one.state is not None
        ),
    )


def _is_foreign(name: str) -> bool:
    return name.endswith(segment.SUFFIX)


def _read_hint(
    fs: FileSystem, directory: Path, names: frozenset[str]
) -> tuple[Checkpoint | None, str]:
    if checkpoint.FILE_NAME not in names:
        return None, ""
    path = directory / checkpoint.FILE_NAME
    found = checkpoint.decode_checkpoint(fs.read(path), str(path))
    return found, "" if found else "the checkpoint is damaged"


def _read_cell(
    fs: FileSystem, directory: Path, names: frozenset[str]
) -> tuple[DurableCell | None, str]:
    if checkpoint.CELL_FILE_NAME not in names:
        return None, ""
    found = checkpoint.decode_cell(fs.read(directory / checkpoint.CELL_FILE_NAME))
    return found, "" if found else "the durable cell is damaged"


def _marks(
    start: int, hint: Checkpoint | None, cell: DurableCell | None, following: SegmentHeader | None
) -> Iterator[Mark]:
    """Yield where frames of the segment that begins at ``start`` end, by the rest of the log."""
    if hint is not None and hint.tail_start == start:
        yield Mark(hint.tail_position, hint.next_offset, hint.previous_crc)
    if cell is not None and cell.tail_start == start:
        yield Mark(cell.tail_position, cell.durable_limit, None)
    if following is not None:
        yield Mark(None, following.start, following.previous_crc)


def _survey_segment(
    fs: FileSystem,
    path: Path,
    start: int,
    hint: Checkpoint | None,
    cell: DurableCell | None,
    marks: list[Mark],
    *,
    is_last: bool,
) -> SegmentSurvey:
    with contextlib.closing(fs.open(path, "r")) as file:
        return survey_file(file, path, start, hint, cell, marks, is_last=is_last)


def survey_file(
    file: File,
    path: Path,
    start: int,
    hint: Checkpoint | None,
    cell: DurableCell | None,
    marks: Iterable[Mark],
    *,
    is_last: bool,
) -> SegmentSurvey:
    """Survey the segment that ``path`` names. See :class:`SegmentWalk` for the arguments."""
    found = SegmentSurvey(name=path.name, start=start, size_bytes=file.size())
    data = file.pread(segment.HEADER_BYTES, 0)
    try:
        found.header = segment.decode_header(data, str(path))
    except CorruptionError as error:
        found.header = _with_one_bit_flipped(data, start, path)
        found.header_error = message_of(error)
    try:
        read = read_last_footer if is_last else read_footer
        footer = read(file, start, path)
        found.footer = footer[0] if footer else None
    except CorruptionError as error:
        found.footer_error = message_of(error)
    SegmentWalk(file, path, found, hint, cell, marks, is_last=is_last).run()
    return found


def _with_one_bit_flipped(data: bytes, start: int, path: Path) -> SegmentHeader | None:
    """Return the original header if one flipped bit explains the damage, by its CRC; else None."""
    for at in range(8 * len(data)):
        mended = bytearray(data)
        mended[at // 8] ^= 1 << at % 8
        try:
            header = segment.decode_header(bytes(mended), str(path))
        except (CorruptionError, FormatVersionError):
            continue
        return header if header.start == start else None
    return None
