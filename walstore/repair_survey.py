"""Surveying a damaged log: which frames of which files are whole, and which of them abut.

Reads every byte of every segment and changes nothing. What it finds is judged elsewhere
(``repair_decide.py``). Blocking; memory for one batch and a few megabytes, and for what lies behind the
last batch of an unsealed segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from walstore import checkpoint, frame, recovery, segment
from walstore.checkpoint import Checkpoint, DurableCell
from walstore.errors import CorruptionError, FormatVersionError, LogNotFoundError
from walstore.ledger import Ledger, Marks
from walstore.ports import File, FileSystem
from walstore.recovery import Chain, Verdict
from walstore.segment import SegmentHeader, SegmentIndex, SegmentSummary
from walstore.segment_file import read_footer
from walstore.verify_frames import FrameScan

_CHUNK_BYTES: Final = 8 << 20
_PRODUCER_WINDOW: Final = 10_000
_PRODUCERS: Final = 1 << 40
"""A repair forgets nothing; the log's own settings bound what is remembered when it is opened."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whole frames of one segment, each of which continues the one before."""

    position: int
    """Where they begin in the file."""
    end: int
    """Where they end."""
    start: int
    limit: int
    previous_crc: int
    """CRC of the frame to which the first one is chained."""
    last_crc: int
    first_epoch: int
    epoch: int
    timestamp_us: int
    """Of the last record."""
    created_us: int
    """Of the first record."""
    ledger: bytes
    """What the log remembers behind them, as marks; empty if nothing."""
    ledger_is_exact: bool
    """Whether no change of it can have been lost with damaged frames before."""
    last_synced_limit: int
    """What the last frame says had been synced when it was written; 0 if there is no frame."""


@dataclass(slots=True, kw_only=True)
class SegmentSurvey:
    """What one segment file holds."""

    name: str
    start: int
    """Offset in its name."""
    size_bytes: int
    header: SegmentHeader | None = None
    header_error: str = ""
    """What is wrong with the header; empty if it can be read."""
    footer: SegmentSummary | None = None
    footer_error: str = ""
    """What is wrong with the footer, if there seems to be one."""
    runs: list[Run] = field(default_factory=list)
    torn_bytes: int = 0
    """Bytes behind the last frame that were never acknowledged."""
    rest_bytes: int = 0
    """Bytes behind the last frame that are not zero, whatever they are; those included."""
    contradicts: str = ""
    """How the checkpoint contradicts these frames; empty if it does not."""

    @property
    def first_offset(self) -> int:
        """Offset of its first whole frame; that of the name if there is none."""
        return self.runs[0].start if self.runs else self.start

    @property
    def was_sealed(self) -> bool:
        """Whether the file ends, or ended, like a sealed one."""
        return self.footer is not None or bool(self.footer_error)


@dataclass(slots=True, kw_only=True)
class Survey:
    """What lies in a log's directory."""

    path: Path
    segments: list[SegmentSurvey]
    """In the order of their first offsets."""
    foreign: list[str]
    """Files that are named like segments and are none."""
    names: frozenset[str]
    """Everything that lies in the directory."""
    hint: Checkpoint | None
    hint_error: str
    """What is wrong with the checkpoint; empty if nothing is, or there is none."""
    cell: DurableCell | None
    cell_error: str


def survey_log(fs: FileSystem, directory: Path) -> Survey:
    """Read all of the log in ``directory``.

    Raises LogNotFoundError, FormatVersionError if a file was written by a newer version, and OSError.
    """
    try:
        names = frozenset(fs.list(directory))
    except (FileNotFoundError, NotADirectoryError):
        names = frozenset()
    starts = {name: segment.parse_file_name(name) for name in names}
    is_log = checkpoint.FILE_NAME in names or any(start is not None for start in starts.values())
    if not is_log:
        raise LogNotFoundError(f"there is no log at {directory}", location=str(directory))
    hint, hint_error = _read_hint(fs, directory, names)
    cell, cell_error = _read_cell(fs, directory, names)
    durable_limit = max(hint.next_offset if hint else 0, cell.durable_limit if cell else 0)
    found = sorted((start, name) for name, start in starts.items() if start is not None)
    segments = [
        _survey_segment(
            fs, directory / name, start, hint, durable_limit, is_last=name == found[-1][1]
        )
        for start, name in found
    ]
    return Survey(
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


def _survey_segment(
    fs: FileSystem,
    path: Path,
    start: int,
    hint: Checkpoint | None,
    durable_limit: int,
    *,
    is_last: bool,
) -> SegmentSurvey:
    file = fs.open(path, "r")
    try:
        found = SegmentSurvey(name=path.name, start=start, size_bytes=file.size())
        data = file.pread(segment.HEADER_BYTES, 0)
        try:
            found.header = segment.decode_header(data, str(path))
        except CorruptionError as error:
            found.header = _with_one_bit_flipped(data, start, path)
            found.header_error = _bare(error)
        try:
            footer = read_footer(file, start, path)
            found.footer = footer[0] if footer else None
        except CorruptionError as error:
            found.footer_error = _bare(error)
        _Walk(file, path, found, hint, durable_limit, is_last=is_last).run()
        return found
    finally:
        file.close()


def _bare(error: CorruptionError) -> str:
    return str(error).partition(f": {error.path}")[0]


def _with_one_bit_flipped(data: bytes, start: int, path: Path) -> SegmentHeader | None:
    """Return the header as it was if one flipped bit explains the damage, which its CRC then shows."""
    for at in range(8 * len(data)):
        mended = bytearray(data)
        mended[at // 8] ^= 1 << at % 8
        try:
            header = segment.decode_header(bytes(mended), str(path))
        except (CorruptionError, FormatVersionError):
            continue
        return header if header.start == start else None
    return None


class _Walk:
    """One pass over the frames of a segment."""

    def __init__(
        self,
        file: File,
        path: Path,
        found: SegmentSurvey,
        hint: Checkpoint | None,
        durable_limit: int,
        *,
        is_last: bool,
    ) -> None:
        self._file = file
        self._path = path
        self._found = found
        self._hint = hint if hint is not None and hint.tail_start == found.start else None
        self._durable_limit = durable_limit
        self._is_last = is_last
        self._end = found.footer.data_bytes if found.footer else found.size_bytes
        self._scan = FrameScan(file, self._end)
        self._ledger = Ledger(window=_PRODUCER_WINDOW, max_producers=_PRODUCERS)
        self._is_exact = True

    def run(self) -> None:
        """Find all runs, and say what lies behind the last one."""
        found, header = self._found, self._found.header
        at = segment.HEADER_BYTES
        chain = Chain(found.start, header.previous_crc if header else 0, 0, 0)
        first = frame.parse_header(memoryview(self._file.pread(frame.HEADER_BYTES, at)), 0)
        if first is None or self._scan.whole_at(at) is None:
            # The place where a log that holds nothing (or nothing whole) in this file goes on.
            rest = self._scan.used_limit(at) > at
            if header is not None and not rest:
                epoch = header.epoch
                found.runs.append(_empty_run(found.start, header.previous_crc, epoch))
                return
        while at < self._end:
            whole = self._scan.whole_at(at)
            if whole is None:
                following = self._behind(at, chain)
                if following is None:
                    break
                at = following
                self._is_exact = False
                continue
            at, chain = self._follow(at, whole[0])
        found.rest_bytes = self._scan.used_limit(at) - at

    def _follow(self, at: int, first: frame.FrameHeader) -> tuple[int, Chain]:
        """Note the run that begins at ``at``."""
        chain = Chain(
            first.start, first.previous_crc, first.base_timestamp_us, first.epoch, self._ledger
        )
        mark = self._hint.tail_position if self._hint else 0
        end = at
        if at <= mark <= self._end:
            end = self._walk(chain, end, mark)
            self._compare(chain, end)
        end = self._walk(chain, end, self._end)
        self._found.runs.append(
            Run(
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
                last_synced_limit=self._last_synced_limit(end),
            )
        )
        return end, chain

    def _walk(self, chain: Chain, at: int, end: int) -> int:
        """Follow frames that lie below byte ``end``; return where they end."""
        wanted = _CHUNK_BYTES
        while True:
            view = memoryview(self._file.pread(min(wanted, end - at), at))
            try:
                used = recovery.walk(view, chain, SegmentIndex(), at)
            except ValueError as error:
                raise FormatVersionError(
                    "batch uses a feature of a newer version",
                    path=str(self._path),
                    found=str(error),
                    supported=frame.FRAME_VERSION,
                ) from None
            at += used
            needed = recovery.needed_bytes(view[used:])
            if not used and (needed <= len(view) or at + needed > end):
                return at
            wanted = max(_CHUNK_BYTES, 0 if used else needed)

    def _compare(self, chain: Chain, end: int) -> None:
        """Compare the checkpoint with the frames up to the place that it names."""
        hint = self._hint
        assert hint is not None
        follows = frame.parse_header(memoryview(self._file.pread(frame.HEADER_BYTES, end)), 0)
        if end < hint.tail_position and (follows is None or self._scan.whole_at(end) is None):
            return  # damage lies before it
        expected = (hint.tail_position, hint.next_offset, hint.previous_crc)
        if expected != (end, chain.next_offset, chain.previous_crc):
            self._found.contradicts = (
                f"the checkpoint says that offset {hint.next_offset} follows at byte "
                f"{hint.tail_position}, but the batch there ends at byte {end} and offset "
                f"{chain.next_offset}"
            )
        elif not self._is_exact:
            self._ledger = chain.ledger = Ledger(window=_PRODUCER_WINDOW, max_producers=_PRODUCERS)
            if hint.ledger:
                self._ledger.apply(Marks.decode(hint.ledger))
            self._is_exact = True

    def _last_synced_limit(self, end: int) -> int:
        trailer = self._file.pread(frame.TRAILER.size, end - frame.TRAILER.size)
        (length, _) = frame.TRAILER.unpack(trailer)
        header = frame.parse_header(
            memoryview(self._file.pread(frame.HEADER_BYTES, end - length)), 0
        )
        return header.synced_limit if header is not None else 0

    def _behind(self, at: int, chain: Chain) -> int | None:
        """Return where whole frames go on behind the bytes at ``at``, or None if the log may end there."""
        if self._is_last and not self._found.was_sealed:
            rest = memoryview(self._file.pread(self._end - at, at))
            verdict, _ = recovery.judge(rest, chain, self._durable_limit)
            if verdict is not Verdict.CORRUPT:
                self._found.torn_bytes = self._scan.used_limit(at) - at
                return None
        later = self._scan.next_whole(self._least(at))
        while later is not None:
            whole = self._scan.whole_at(later)
            assert whole is not None
            header = whole[0]
            if header.start >= chain.next_offset and header.epoch >= chain.epoch:
                return later
            later = self._scan.next_whole(later + frame.ALIGNMENT)
        return None

    def _least(self, at: int) -> int:
        """Return where to look for the next frame: behind the damaged one, if its length is confirmed
        by what follows there, because its values may themselves look like frames."""
        header = frame.parse_header(memoryview(self._file.pread(frame.HEADER_BYTES, at)), 0)
        if header is not None and at + header.length < self._end:
            following = self._scan.whole_at(at + header.length)
            if following is not None and following[0].previous_crc == header.crc:
                return at + header.length
        return at + frame.ALIGNMENT


def _empty_run(start: int, previous_crc: int, epoch: int) -> Run:
    at = segment.HEADER_BYTES
    return Run(
        position=at,
        end=at,
        start=start,
        limit=start,
        previous_crc=previous_crc,
        last_crc=previous_crc,
        first_epoch=epoch,
        epoch=epoch,
        timestamp_us=0,
        created_us=0,
        ledger=b"",
        ledger_is_exact=True,
        last_synced_limit=0,
    )
