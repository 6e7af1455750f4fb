"""Surveying the directory of a damaged log. Reads every byte and changes nothing. Blocking.

The results are judged elsewhere (``repair/runs.py``, ``repair/planner.py``). Needs memory for one batch and a
few megabytes, and for the bytes after the last batch of an unsealed segment.

In a segment of format version 1, a frame inside a value is whole wherever it is found. So whole frames after
damage count only if something outside of them links them to the log: the remains of the damaged frames
before them, or a record of the log's position after them (:class:`Links`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from walstore.care.repair.bit_flip import mend, mend_header
from walstore.care.repair.plan import Patch
from walstore.care.repair.runs import FrameRun, LogSurvey, SegmentSurvey
from walstore.care.verify.segment import message_of
from walstore.core.files import spare_segment
from walstore.core.files.directory import (
    RESTORE_NAME,
    evidence_of,
    is_name_taken,
    restore_interrupted,
)
from walstore.core.files.frame_walk import find_salt, unfinished_bytes, used_limit, walk_file
from walstore.core.files.segment_file import (
    peek_frame,
    read_footer,
    read_last_footer,
    trailer_length,
    unreadable_batch,
)
from walstore.core.format import checkpoint, frame, recovery, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.frame import FrameHeader
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.ledger import Ledger, Marks
from walstore.core.format.recovery import Chain, Verdict
from walstore.core.format.segment import SegmentHeader, SegmentIndex
from walstore.core.ports import File, FileSystem
from walstore.errors import CorruptionError, LogNotFoundError
from walstore.positions.cursors.directory import list_cursors

_CRC_AT: Final = 4
_MOST_ATTEMPTS: Final = 16
"""Damaged batches of a segment searched for a single flipped bit; each search may take 0.2 s."""


class SegmentWalk:
    """One pass over the frames of a segment."""

    def __init__(
        self,
        file: File,
        path: Path,
        start: int,
        hint: Checkpoint | None,
        cell: DurableCell | None,
        marks: Iterable[Mark],
        *,
        is_last: bool,
    ) -> None:
        """Read header and footer of the segment that ``path`` names, which begins at offset ``start``.

        ``marks`` are the positions at which a frame ends, by the log's hints and the next segment.
        """
        self._file = file
        self._path = path
        self._found = found = SegmentSurvey(name=path.name, start=start, size_bytes=file.size())
        data = file.pread(segment.HEADER_BYTES, 0)
        try:
            found.header = segment.decode_header(data, str(path))
        except CorruptionError as error:
            found.header = mend_header(data, start, path)
            found.header_error = message_of(error)
        try:
            read = read_last_footer if is_last else read_footer
            footer = read(file, start, path)
            found.footer = footer[0] if footer else None
        except CorruptionError as error:
            found.footer_error = message_of(error)
        self._hint = hint if hint is not None and hint.tail_start == found.start else None
        self._is_last = is_last
        self._end = found.footer.data_bytes if found.footer else found.size_bytes
        found.salt = found.header.salt if found.header else find_salt(file, self._end, found.start)
        self._evidence = evidence_of(found.start, found.salt, hint, cell)
        if is_last:
            found.synced_position = self._evidence.durable_position
        self._scan = FrameScan(file.pread, self._end, found.salt)
        end = found.footer
        known = [Mark(end.data_bytes, end.limit, end.last_crc)] if end else []
        self._links = Links(file, self._scan, [*known, *marks])
        self._ledger = _new_ledger()
        self._is_exact = True
        self._attempts = _MOST_ATTEMPTS

    def run(self) -> SegmentSurvey:
        """Find all runs, and classify the bytes after the last one."""
        found, header = self._found, self._found.header
        at = segment.HEADER_BYTES
        chain = Chain(found.start, header.previous_crc if header else 0, 0, 0, self._ledger)
        is_empty = self._scan.whole_at(at) is None and self._used_limit(at) == at
        if header is not None and is_empty:  # the log continues here
            found.runs.append(FrameRun.none(found.start, header))
            return found
        is_over = False
        while at < self._end:
            whole = self._scan.whole_at(at)
            if whole is not None:
                at, chain = self._follow(at, whole[0])
                continue
            if is_over := self._is_unfinished(at, chain):
                found.torn_bytes = found.rest_bytes = unfinished_bytes(
                    self._file, at, self._end, header, chain.previous_crc
                )
                break
            if self._mend(at, chain):
                at = found.runs[-1].end
                continue
            following = self._behind(at, chain)
            if following is None:
                break
            at = following
            self._is_exact = False
        if not is_over:
            found.rest_bytes = self._used_limit(at) - at
        if header is not None and self._held_no_records():
            found.runs.append(FrameRun.none(found.start, header))
        return found

    def _held_no_records(self) -> bool:
        """Return whether the log ends in this segment, and it has no whole frame and never had records."""
        return (
            self._is_last
            and not self._found.runs
            and not self._found.was_sealed
            and (
                self._found.rest_bytes > self._found.torn_bytes
                or self._evidence.durable_position > segment.HEADER_BYTES
            )
            and self._evidence.durable_limit <= self._found.start
        )

    def _follow(self, at: int, first: FrameHeader) -> tuple[int, Chain]:
        """Note the run that begins at ``at``."""
        chain = Chain(
            first.start, first.previous_crc, first.base_timestamp_us, first.epoch, self._ledger
        )
        mark = self._hint.tail_position if self._hint else 0
        end, salt = at, self._found.salt
        if at <= mark <= self._end:
            end = walk_file(self._file, self._path, chain, salt, end, end=mark)
            self._compare(chain, end)
        end = walk_file(self._file, self._path, chain, salt, end, end=self._end)
        last = peek_frame(self._file, end - (trailer_length(self._file, end) or 0))
        self._add(at, end, first, chain, last.synced_limit if last is not None else 0)
        return end, chain

    def _add(
        self,
        at: int,
        end: int,
        first: FrameHeader,
        chain: Chain,
        synced_limit: int,
        patches: tuple[Patch, ...] = (),
    ) -> None:
        """Note the frames in ``[at, end)``; ``chain`` is the state of the log after them."""
        run = FrameRun(
            position=at,
            end=end,
            start=first.start,
            limit=chain.next_offset,
            previous_crc=first.previous_crc,
            last_crc=chain.previous_crc,
            first_epoch=first.epoch,
            epoch=chain.epoch,
            timestamp_us=chain.timestamp_us,
            created_us=first.base_timestamp_us,
            ledger=b"" if self._ledger.is_empty else self._ledger.whole().encode(),
            ledger_is_exact=self._is_exact,
            last_synced_limit=synced_limit,
            patches=patches,
        )
        runs = self._found.runs
        before = runs[-1] if runs else None
        if (
            before is not None
            and (before.end, before.limit, before.last_crc) == (at, run.start, run.previous_crc)
            and (before.patches or patches)
        ):
            runs[-1] = before.joined(run)
        else:
            runs.append(run)

    def _mend(self, at: int, chain: Chain) -> bool:
        """Note the frame at ``at`` with one bit corrected, if that is its only damage."""
        if self._found.header is None or not self._attempts:
            return False
        self._attempts -= 1
        place = frame.place(self._found.salt, at)
        mended = mend(lambda size: self._file.pread(size, at), self._end - at, chain, place)
        if mended is None:
            return False
        header = mended.header
        try:
            recovery.take(chain, SegmentIndex(), at, header, memoryview(mended.data))
        except ValueError as error:
            raise unreadable_batch(error, self._path, chain.next_offset) from None
        patch = Patch(at + mended.position, mended.data[mended.position])
        self._add(at, at + header.length, header, chain, header.synced_limit, (patch,))
        return True

    def _used_limit(self, at: int) -> int:
        return used_limit(self._file, at, self._end)

    def _compare(self, chain: Chain, end: int) -> None:
        """Compare the checkpoint with the frames up to the position that it names."""
        hint = self._hint
        assert hint is not None
        if end < hint.tail_position and self._scan.whole_at(end) is None:
            return  # there is damage before it
        expected = (hint.tail_position, hint.next_offset, hint.previous_crc)
        if expected != (end, chain.next_offset, chain.previous_crc):
            self._found.contradicts = (
                f"the checkpoint says that offset {hint.next_offset} follows at byte "
                f"{hint.tail_position}, but the batch there ends at byte {end} and offset "
                f"{chain.next_offset}"
            )
            return
        whole = self._scan.whole_at(end)
        if whole is not None and chain.follows(whole[0]) and whole[0].epoch < hint.epoch:
            self._found.contradicts = (
                f"the checkpoint is of epoch {hint.epoch}, but the batch behind it, at byte {end}, of "
                f"epoch {whole[0].epoch}"
            )
        elif not self._is_exact:
            self._ledger = chain.ledger = _new_ledger()
            if hint.ledger:
                self._ledger.apply(Marks.decode(hint.ledger))
            self._is_exact = True

    def _is_unfinished(self, at: int, chain: Chain) -> bool:
        """Return whether opening the log would cut off the bytes at ``at``, or find nothing there."""
        if not self._is_last or self._found.was_sealed:
            return False
        rest = memoryview(self._file.pread(self._used_limit(at) - at, at))
        verdict, _ = recovery.judge(
            rest, chain, self._evidence, position=at, header=self._found.header
        )
        return verdict is not Verdict.CORRUPT

    def _behind(self, at: int, chain: Chain) -> int | None:
        """Return where records continue after the damage at ``at``, or None. One pass over the bytes."""
        for later in self._links.claimed_limits(at):
            if self._scan.whole_at(later) is not None and self._goes_on(at, later, chain) is None:
                return later
        found = self._scan.next_whole(at + frame.ALIGNMENT)
        while found is not None:
            end = self._goes_on(at, found, chain)
            if end is None:
                break
            found = self._scan.next_whole(end)
        return found

    def _goes_on(self, at: int, later: int, chain: Chain) -> int | None:
        """Return None if the frames at ``later`` are records of the log, else where they end."""
        end, headers = self._links.run_limit(later)
        first = headers[0]
        is_later = first.start >= chain.next_offset and first.epoch >= chain.epoch
        return None if is_later and self._links.is_linked(at, later, headers) else end


def _new_ledger() -> Ledger:
    """A repair forgets nothing; the log's own settings bound the ledger when the log is opened."""
    return Ledger(window=10_000, max_producers=1 << 40)


class Mark(NamedTuple):
    """A known end of a frame of a segment. Unknown parts are None."""

    position: int | None
    limit: int
    crc: int | None


class Links:
    """The known positions of a segment at which frames begin and end."""

    def __init__(self, file: File, scan: FrameScan, marks: list[Mark]) -> None:
        self._file = file
        self._scan = scan
        self._marks = marks

    def claimed_limits(self, damage: int) -> Iterator[int]:
        """Yield where the damaged frame at ``damage`` ends, by its header and its trailer."""
        header = peek_frame(self._file, damage)
        if header is not None and damage + header.length < self._scan.end:
            yield damage + header.length
        yield from self._scan.trailer_limits(damage)

    def run_limit(self, position: int) -> tuple[int, list[FrameHeader]]:
        """Return the end and the headers of the whole frames from ``position`` on that form one chain."""
        headers: list[FrameHeader] = []
        chain: Chain | None = None
        for at, header, _ in self._scan.frames(position):
            chain = chain or Chain(header.start, header.previous_crc, 0, header.epoch)
            if not chain.follows(header):
                break
            chain.advance(header)
            headers.append(header)
            position = at + header.length
        return position, headers

    def is_linked(self, damage: int, position: int, headers: list[FrameHeader]) -> bool:
        """Return whether the frames at ``position`` are records, given the damage at ``damage``.

        In a segment with a salt they always are: there, no bytes of a value are a whole frame.
        """
        return (
            self._scan.salt is not None
            or int.from_bytes(self._file.pread(4, damage + _CRC_AT), "little")
            == headers[0].previous_crc
            or self._trailers_reach(damage, position)
            or self._is_marked(position, headers)
        )

    def _trailers_reach(self, damage: int, position: int) -> bool:
        """Return whether the bytes between are frames by their trailers, whatever they contain."""
        while position > damage:
            if position - frame.TRAILER.size < damage:
                return False
            length = trailer_length(self._file, position)
            if length is None or not 0 < length <= position - damage:
                return False
            position -= length
        return True

    def _is_marked(self, position: int, headers: list[FrameHeader]) -> bool:
        """Return whether one of the frames ends at a known position of the log."""
        for header in headers:
            position += header.length
            for mark in self._marks:
                if (
                    mark.limit == header.limit
                    and mark.position in (None, position)
                    and mark.crc in (None, header.crc)
                ):
                    return True
        return False


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
        path, is_last = directory / name, name == found[-1][1]
        with contextlib.closing(fs.open(path, "r")) as file:
            one = SegmentWalk(file, path, start, hint, cell, marks, is_last=is_last).run()
        segments.append(one)
        following = one.header
    taken = spare_segment.NAME if is_name_taken(fs, directory, names) else None
    return LogSurvey(
        path=directory,
        segments=sorted(segments, key=lambda one: (one.first_offset, one.name)),
        foreign=sorted(
            name
            for name, start in starts.items()
            if start is None and (name.endswith(segment.SUFFIX) or name == taken)
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
