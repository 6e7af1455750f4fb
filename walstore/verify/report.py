"""The result of verifying a log: counts, and problems with their places. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from walstore.errors import CorruptionError

MAX_PROBLEMS: Final = 100
"""Most problems kept; more are only counted, so that memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the files is not as it was written."""

    path: str
    position: int | None
    """Byte in that file; None if the problem is the file as a whole."""
    message: str

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of :func:`walstore.verify.verify_directory`."""

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
    """At most :data:`MAX_PROBLEMS` of them, in the order in which they were found."""
    problem_count: int
    """Number of all problems."""

    @property
    def is_ok(self) -> bool:
        """Whether every byte checked is as it was written."""
        return self.problem_count == 0


@dataclass(slots=True)
class Findings:
    """Counts and problems of a verification in progress."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    unfinished_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    def add(self, path: Path, message: str, position: int | None = None) -> None:
        """Note a problem."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(str(path), position, message))

    def add_error(self, path: Path, error: CorruptionError, position: int | None = None) -> None:
        """Note the problem that a reader raised."""
        self.add(path, message_of(error), error.position if position is None else position)


def message_of(error: CorruptionError) -> str:
    """Return what an error says is wrong, without the place."""
    return str(error).partition(f": {error.path}")[0]
