"""Verifying a log directory: every header, batch, chain, index, footer, and the checkpoint.

Read-only, without the lock, also next to a live writer: only what was durable at the beginning is judged.
Blocking, for the command line and for executor threads. Memory is bounded by the largest batch and a
few megabytes, whatever the size of the log. Repairs nothing; opening the log does, where it is allowed to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from walstore.care.verify.segment import Findings, Problem, SegmentCheck
from walstore.cluster.replication.promise import Promise, load_promise
from walstore.core.files import spare_segment
from walstore.core.files.directory import (
    RESTORE_NAME,
    anchor_log,
    is_name_taken,
    read_cell,
    restore_interrupted,
)
from walstore.core.files.floor import NOTHING_NOTED, load_note
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_header
from walstore.core.format import checkpoint, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.recovery import Chain
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError, LogNotFoundError

__all__ = ["Problem", "VerifyReport", "verify_directory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of :func:`walstore.care.verify.verify_directory`."""

    path: str
    log_id: str | None
    """Identity of the log, 32 hex digits; None if no segment header could be read."""
    head: int
    """First offset on local disk."""
    limit: int
    """Offset after the last record found."""
    segments: int
    batches: int
    """Whole batches found; the same holds for ``records`` and ``size_bytes``."""
    records: int
    size_bytes: int
    """Bytes of these batches as stored."""
    unfinished_bytes: int
    """Bytes after the last batch that were never acknowledged: a write that a crash cut off or that is in
    progress. No problem; the next opening for writing removes them."""
    problems: tuple[Problem, ...]
    """At most 100 of them, in the order in which they were found."""
    problem_count: int
    """Number of all problems."""

    @property
    def is_ok(self) -> bool:
        """Whether every byte checked is as it was written."""
        return self.problem_count == 0


def verify_directory(
    path: str | Path,
    *,
    fs: FileSystem | None = None,
    on_progress: Callable[[Path], None] | None = None,
) -> VerifyReport:
    """Check the log in directory ``path`` and report all problems found.

    Damage is reported, not raised: one run reports every damaged place. ``on_progress`` is called with
    each segment before it is read. Raises LogNotFoundError if there is no log, FormatVersionError for
    files of a newer version, and OSError if the disk does not answer.
    """
    path = Path(path)
    # All names are looked up in one directory, even if its path changes meanwhile.
    with contextlib.closing(anchor_log(fs or PosixFileSystem(), path)) as anchored:
        return _Verification(path, anchored, on_progress).run()


@dataclass(slots=True)
class _Verification:
    """One run over one directory."""

    _path: Path
    _fs: FileSystem
    _on_progress: Callable[[Path], None] | None
    _findings: Findings = field(default_factory=Findings)
    _log_id: bytes | None = None

    def run(self) -> VerifyReport:
        # The order matters next to a live writer: what the checkpoint names was durable when the cell was
        # stored, and what the cell names is in the listing.
        hint = self._load_checkpoint()
        cell = read_cell(self._fs, self._path)
        is_copy = self._check_promise()
        synced = self._load_note(is_copy=is_copy)
        starts = self._list(hint)
        head = max(cell.head if cell else 0, hint.head if hint else 0)
        durable_limit = max(cell.durable_limit if cell else 0, hint.next_offset if hint else 0)
        if head and starts[0] > head and not self._is_below_head(starts[0]):
            self._findings.add(
                self._path, f"the log begins at offset {head}, but its first segment at {starts[0]}"
            )
        chain = _unknown()
        limit = starts[0]
        for start in starts:
            path = self._path / segment.file_name(start)
            check = SegmentCheck(
                path,
                start,
                hint,
                cell,
                self._findings,
                is_last=start == starts[-1],
                synced=synced,
                is_copy=is_copy,
            )
            chain = self._verify(check, path, start, chain)
            limit = max(limit, chain.next_offset)
        self._check_end(starts[-1], chain, durable_limit, hint)
        found = self._findings
        return VerifyReport(
            path=str(self._path),
            log_id=self._log_id.hex() if self._log_id else None,
            head=max(starts[0], head),
            limit=limit,
            segments=found.segments,
            batches=found.batches,
            records=found.records,
            size_bytes=found.size_bytes,
            unfinished_bytes=found.unfinished_bytes,
            problems=tuple(found.problems),
            problem_count=found.problem_count,
        )

    def _load_checkpoint(self) -> Checkpoint | None:
        path = self._path / checkpoint.FILE_NAME
        try:
            data = self._fs.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        found = checkpoint.decode_checkpoint(data, str(path))
        if found is None:
            self._findings.add(path, "the checkpoint is damaged; opening the log rebuilds it", 0)
        return found

    def _check_promise(self) -> bool:
        """Return whether this is a copy of a replicated log, whose promise says whom it obeys."""
        try:
            return load_promise(self._fs, self._path) != Promise()
        except CorruptionError as error:
            self._findings.add_error(Path(error.path), error)
            return True

    def _load_note(self, *, is_copy: bool) -> DurableCell:
        """Return what a copy noted as synced; damage of that is none of a log which is not replicated."""
        try:
            return load_note(self._fs, self._path, is_locked=False)
        except CorruptionError as error:
            if is_copy:
                self._findings.add_error(Path(error.path), error)
            return NOTHING_NOTED

    def _list(self, hint: Checkpoint | None) -> list[int]:
        """Return the first offsets of the segments that belong to the log."""
        try:
            names = self._fs.list(self._path)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        starts = []
        if RESTORE_NAME in names:
            raise restore_interrupted(self._path)
        for name in names:
            start = segment.parse_file_name(name)
            if start is not None:
                starts.append(start)
            elif name.endswith(segment.SUFFIX):
                self._findings.add(self._path / name, "a foreign file is named like a segment")
        if is_name_taken(self._fs, self._path, names):
            path = self._path / spare_segment.NAME
            self._findings.add(path, "a directory is named like the next segment")
        if not starts and hint is None:
            raise LogNotFoundError(f"there is no log at {self._path}", location=str(self._path))
        if not starts:
            raise CorruptionError(
                "the checkpoint names segments that are gone; restore them",
                path=str(self._path),
            )
        starts.sort()
        # Files wholly below the head are left over from an interrupted deletion.
        while hint is not None and len(starts) > 1 and starts[1] <= hint.head:
            starts.pop(0)
        return starts

    def _verify(self, check: SegmentCheck, path: Path, start: int, chain: Chain) -> Chain:
        if self._on_progress is not None:
            self._on_progress(path)
        try:
            file = self._fs.open(path, "r")
        except FileNotFoundError:
            if not self._is_below_head(start + 1):
                self._findings.add(path, "the segment vanished while it was to be verified")
            return _unknown()
        with contextlib.closing(file):
            try:
                header = read_header(file, path)
            except CorruptionError as error:
                self._findings.add_error(path, error, 0)
                return _unknown()
            if self._log_id is None:
                self._log_id = header.log_id
            elif header.log_id != self._log_id:
                self._findings.add(
                    path,
                    f"belongs to log {header.log_id.hex()}, the segments before to "
                    f"{self._log_id.hex()}",
                    0,
                )
            return check.run(file, header, chain)

    def _check_end(
        self, last: int, chain: Chain, durable_limit: int, hint: Checkpoint | None
    ) -> None:
        if hint is not None and hint.tail_start > last:
            name = segment.file_name(hint.tail_start)
            self._findings.add(self._path / name, "the checkpoint names this segment; it is gone")
        path = self._path / segment.file_name(last)
        is_reported = any(problem.path == str(path) for problem in self._findings.problems)
        if chain.next_offset and durable_limit > chain.next_offset and not is_reported:
            self._findings.add(
                path,
                f"the log ends at offset {chain.next_offset}, but offsets below {durable_limit} had "
                "been synced",
            )

    def _is_below_head(self, limit: int) -> bool:
        """Return whether retention removed the offsets below ``limit`` meanwhile."""
        cell = read_cell(self._fs, self._path)
        return cell is not None and cell.head >= limit


def _unknown() -> Chain:
    """Return a chain that any segment continues."""
    return Chain(0, 0, 0, 0)
