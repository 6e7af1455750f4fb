"""Fragments: one immutable object in, records out. Pure, but slow: for executor threads.

Owns what a fragment means: which records it holds, their setsum, and whether it is the one its manifest
entry speaks of. How it is stored is in
``fragment_file.py``, how one is made in ``fragment_builder.py``.

The length in an entry determines how much to request, and reveals a torn object at once. It does not identify
the records: wal3's copy of a log keeps the entries and rewrites the objects, with other lengths. So an
object of another length is accepted if the hashes of all its records match the entry.
"""

from __future__ import annotations

from collections.abc import Collection

from uploader.format import layout
from uploader.format.manifest import Fragment
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_columns, fragment_file, parquet_metadata
from uploader.fragments.fragment_batch import FragmentBatch
from uploader.fragments.fragment_file import Content, Footer
from walstore.errors import CorruptionError


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


def fragment_time_bounds(data: bytes, *, path: str = "fragment") -> tuple[int, int]:
    """Return the times of the oldest and the newest record, in microseconds since 1970 UTC.

    For files with statistics (ours; wal3's) this reads the footer only, and the last part of the object
    that holds it is enough. CorruptionError if there is none.
    """
    return fragment_file.time_bounds(data, path=path)


def footer_bytes(end: bytes, *, path: str = "fragment") -> int:
    """Return how long the footer is, from a fragment's last 8 bytes; CorruptionError if there is none."""
    return parquet_metadata.footer_bytes(end, path=path)


def read_footer(end: bytes, *, path: str = "fragment") -> Footer:
    """Return what a fragment says of its records' times and streams, from its last bytes.

    ``end`` holds the whole footer; CorruptionError if there is none.
    """
    return fragment_file.read_footer(end, path=path)


def fragment_timestamp(data: bytes, *, path: str = "fragment") -> int:
    """Return the fragment's own time, which its setsum covers; CorruptionError if it is none."""
    return fragment_file.timestamp(data, path=path)


def fragment_maker(data: bytes, *, path: str = "fragment") -> str | None:
    """Return the fragment's maker, if its footer names one; CorruptionError if it is not a fragment."""
    return fragment_file.maker(data, path=path)


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
    return fragment_columns.setsum_of_column(values, content.start, content.timestamp_us)
