"""Finds all faults of one fragment from its bytes and its entry. Pure, but slow: for threads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import pyarrow.compute as pc

from uploader.format.entries import Fragment
from uploader.format.findings import RESTORE, Finding, Severity, of_error
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_columns, fragment_file
from walstore.errors import CorruptionError, FormatVersionError

_OTHER_LENGTH: Final = (
    "nothing is lost; reading it takes a request more, and sizes that are shown are wrong; "
    "fork the log to mend it"
)
_REWRITE: Final = "nothing is lost, but searches go wrong; fork the log with a writer of records"


class CheckOutcome(Enum):
    """What became of the look at a fragment."""

    READ = "read"
    """It was read, and maybe found wrong."""
    LOST = "lost"
    """It is not there, and should be."""
    COLLECTED = "collected"
    """It was collected meanwhile."""
    UNAVAILABLE = "unavailable"
    """The store did not give it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What the look at one fragment gave."""

    entry: Fragment
    """What the manifest says of it."""
    findings: tuple[Finding, ...] = ()
    """All that is wrong with it."""
    fate: CheckOutcome = CheckOutcome.READ
    """Whether it was read."""
    setsum: Setsum = field(default_factory=Setsum)
    """Sum of the records it holds; zero if it cannot be read."""
    times_us: tuple[int, int] | None = None
    """Times of its oldest and newest record; None if it cannot be read."""
    error: CorruptionError | FormatVersionError | None = None
    """Why it cannot be read; None if it can."""

    def require_sound(self) -> None:
        """Raise CorruptionError for the first finding; another length of a sound object is none.

        FormatVersionError if a newer version wrote it.
        """
        if isinstance(self.error, FormatVersionError):
            raise self.error
        for finding in self.findings:
            if finding.advice != _OTHER_LENGTH:
                raise CorruptionError(
                    f"the fragment is damaged: {finding.what}",
                    path=finding.key,
                    expected=finding.expected,
                    found=finding.found,
                ) from self.error


def check_fragment(data: bytes, entry: Fragment) -> Checked:
    """Look at a whole object that should be the fragment ``entry``."""
    found: list[Finding] = []
    try:
        content = fragment_file.read(data, path=entry.path)
        footer = fragment_file.read_footer(data, path=entry.path)
    except (CorruptionError, FormatVersionError) as error:
        if len(data) != entry.num_bytes:
            found.append(_of_length(entry, len(data), is_sound=False))
        return Checked(entry, (*found, of_error(error)), error=error)
    setsum = fragment_columns.setsum_of_column(
        content.records.column("value"), content.start, content.timestamp_us
    )
    for title, stated, held in (
        ("first offset", entry.start, content.start),
        ("limit", entry.limit, content.limit),
        ("setsum", entry.setsum.hexdigest(), setsum.hexdigest()),
    ):
        if stated != held:
            found.append(_differs(entry, title, stated, held))
    if len(data) != entry.num_bytes:
        found.insert(0, _of_length(entry, len(data), is_sound=not found))
    bounds = pc.min_max(content.records.column("timestamp_us"))
    times = int(bounds["min"].as_py()), int(bounds["max"].as_py())
    if footer.times_us not in {None, times}:
        found.append(
            _misleads(entry, "its footer has other times than its records", footer.times_us, times)
        )
    for stream in pc.unique(content.records.column("stream")).to_pylist():
        if stream is not None and not footer.streams.may_hold(stream):
            what = f"its footer denies stream {stream!r}, of which it has records"
            found.append(_misleads(entry, what, stream, None))
    return Checked(entry, tuple(found), setsum=setsum, times_us=times)


def _differs(entry: Fragment, title: str, expected: object, found: object) -> Finding:
    what = f"its {title} is not what the manifest says"
    return Finding(Severity.ERROR, entry.path, what, RESTORE, expected, found)


def _of_length(entry: Fragment, size_bytes: int, *, is_sound: bool) -> Finding:
    """Another length is damage only if the records are others, too."""
    found = _differs(entry, "length", entry.num_bytes, size_bytes)
    if not is_sound:
        return found
    return dataclasses.replace(found, severity=Severity.WARNING, advice=_OTHER_LENGTH)


def _misleads(entry: Fragment, what: str, expected: object, found: object) -> Finding:
    return Finding(Severity.WARNING, entry.path, what, _REWRITE, expected, found)
