"""Fragments: one immutable object in, records out. Pure, but slow: for executor threads.

Owns what a fragment means: which records it contains, their setsum, and whether it is the one that its
manifest entry names. Readers get the first fault as an error; :func:`check_fragment` finds all of them.
``fragment_file.py`` describes how a fragment is stored, ``fragment_builder.py`` makes one.

The length in an entry determines how much to request, and reveals a torn object at once. It does not identify
the records: wal3's copy of a log keeps the entries and rewrites the objects, with other lengths. So an
object of another length is accepted if the hashes of all its records match the entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import pyarrow.compute as pc

from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.findings import RESTORE, Finding, Severity, of_error
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_file
from uploader.fragments.fragment_batch import FragmentBatch
from uploader.fragments.fragment_builder import setsum_of_column
from uploader.fragments.fragment_file import Content
from walstore.errors import CorruptionError, FormatVersionError


def decode_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """Return the records of the object that ``entry`` names.

    CorruptionError unless its offsets are those of the entry, its length or else its setsum too, and all that
    :func:`uploader.fragments.fragment_file.read` checks. See :func:`verify_fragment`.
    """
    if has_length(data, entry):
        return _batch(_read(data, entry))
    return verify_fragment(data, entry)


def decode_columns(
    data: bytes | bytearray, entry: Fragment, names: Collection[str]
) -> FragmentBatch:
    """As :func:`decode_fragment`, with only the columns ``names`` of ``arrow.SCHEMA`` and offsets.

    The others are null, times the fragment's; their stored bytes are not checked.
    CorruptionError if the length is not that of the entry.
    """
    if not has_length(data, entry):
        raise _differs("length", entry, entry.num_bytes, len(data))
    return _batch(_read(data, entry, only=names))


def verify_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """As :func:`decode_fragment`, and hash every record: CorruptionError if the setsum differs."""
    try:
        content = _read(data, entry)
    except CorruptionError as error:
        if has_length(data, entry):
            raise
        raise _differs("length", entry, entry.num_bytes, len(data)) from error
    _same("setsum", entry, entry.setsum, _setsum(content))
    return _batch(content)


def has_length(data: bytes | bytearray, entry: Fragment) -> bool:
    """Return whether an object is as long as its entry says."""
    return len(data) == entry.num_bytes


def inspect_fragment(data: bytes, path: str) -> Fragment:
    """Return the manifest entry for the object found at ``path``, from nothing but its bytes.

    CorruptionError if it is no fragment, or ``path`` no key of one.
    """
    try:
        seq_no = layout.parse_fragment_path(path)
    except ValueError as error:
        raise CorruptionError("not the key of a fragment", path=path) from error
    content = fragment_file.read(data, path=path)
    return Fragment(path, seq_no, content.start, content.limit, len(data), _setsum(content))


def fragment_closings(data: bytes, *, path: str = "fragment") -> tuple[int, frozenset[str]] | None:
    """Return how many closings of streams a fragment's maker knew, and which streams it has records of.

    None if its footer does not say: it is not bound to them. CorruptionError if it is no fragment.
    """
    known = fragment_file.closings(data, path=path)
    if known is None:
        return None
    names = fragment_file.read(data, path=path, only={"stream"}).records.column("stream").unique()
    return known, frozenset(name for name in names.to_pylist() if name is not None)


def _read(
    data: bytes | bytearray, entry: Fragment, *, only: Collection[str] | None = None
) -> Content:
    content = fragment_file.read(data, path=entry.path, only=only)
    _same("first offset", entry, entry.start, content.start)
    _same("limit", entry, entry.limit, content.limit)
    return content


def _same(what: str, entry: Fragment, expected: object, found: object) -> None:
    if found != expected:
        raise _differs(what, entry, expected, found)


def _differs(what: str, entry: Fragment, expected: object, found: object) -> CorruptionError:
    return CorruptionError(
        f"a fragment's {what} is {found}, but the manifest says {expected}",
        path=entry.path,
        expected=expected,
        found=found,
    )


def _batch(content: Content) -> FragmentBatch:
    return FragmentBatch(content.records, start=content.start)


def _setsum(content: Content) -> Setsum:
    values = content.records.column("value")
    return setsum_of_column(values, content.start, content.timestamp_us)


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


def check_fragment(data: bytes, entry: Fragment) -> Checked:
    """Look at a whole object that should be the fragment ``entry``."""
    found: list[Finding] = []
    try:
        content = fragment_file.read(data, path=entry.path)
        footer = fragment_file.read_footer(data, path=entry.path)
    except (CorruptionError, FormatVersionError) as error:
        if len(data) != entry.num_bytes:
            found.append(_of_length(entry, len(data), is_sound=False))
        return Checked(entry, (*found, of_error(error)))
    setsum = _setsum(content)
    for title, stated, held in (
        ("first offset", entry.start, content.start),
        ("limit", entry.limit, content.limit),
        ("setsum", entry.setsum.hexdigest(), setsum.hexdigest()),
    ):
        if stated != held:
            found.append(_mismatch(entry, title, stated, held))
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
            found.append(_misleads(entry, "its footer denies a stream that it holds", stream, None))
    return Checked(entry, tuple(found), setsum=setsum, times_us=times)


def _mismatch(entry: Fragment, title: str, expected: object, found: object) -> Finding:
    what = f"its {title} is not what the manifest says"
    return Finding(Severity.ERROR, entry.path, what, RESTORE, expected, found)


def _of_length(entry: Fragment, size_bytes: int, *, is_sound: bool) -> Finding:
    """Another length is damage only if the records are others, too."""
    found = _mismatch(entry, "length", entry.num_bytes, size_bytes)
    if not is_sound:
        return found
    return dataclasses.replace(found, severity=Severity.WARNING, advice=_OTHER_LENGTH)


def _misleads(entry: Fragment, what: str, expected: object, found: object) -> Finding:
    return Finding(Severity.WARNING, entry.path, what, _REWRITE, expected, found)
