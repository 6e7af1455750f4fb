"""Fragments: batches in, one immutable object out, and back. Pure, but slow: for executor threads.

Owns what a fragment means: which records it holds, their setsum, and whether it is the one its manifest
entry speaks of. How it is stored is in ``fragment_file.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

import pyarrow as pa

from uploader import layout
from uploader.fragments import fragment_columns, fragment_file
from uploader.fragments.fragment_batch import FragmentBatch
from uploader.fragments.fragment_file import Content, Footer
from uploader.manifests.document import check_u64
from uploader.manifests.manifest import Fragment
from uploader.setsum import Setsum
from walstore.batch import Batch
from walstore.errors import CorruptionError

_APART_BYTES: Final = 256 * 1024
"""From this size on a fragment is hashed while another thread makes the file, which takes about half as
long and, other than hashing, leaves the interpreter to others."""


@dataclass(frozen=True, slots=True)
class EncodedFragment:
    """A fragment ready to be put, and what the manifest will say of it."""

    data: bytes = field(repr=False)
    """The object."""
    setsum: Setsum
    """Sum of the records."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last record."""

    def entry(self, seq_no: int) -> Fragment:
        """Return its manifest entry as the fragment with that number."""
        return Fragment.numbered(
            seq_no,
            start=self.start,
            limit=self.limit,
            num_bytes=len(self.data),
            setsum=self.setsum,
        )


def encode_fragment(
    batches: Sequence[Batch], *, timestamp_us: int, writer: str | None = None
) -> EncodedFragment:
    """Return the fragment that holds the batches' records.

    ``timestamp_us`` is the fragment's own time, in microseconds since 1970 UTC; wal3 hashes it with every
    record. Values of longer batches are not copied on their way to the Parquet encoder. The same input
    gives the same bytes; ``writer``, noted in the file, tells those of two writers apart. Larger fragments
    take two threads. ValueError if there is no record, if the batches do not follow each other, or if a
    number does not fit 64 bits.
    """
    found = [batch for batch in batches if len(batch)]
    if not found:
        raise ValueError("a fragment needs at least one record")
    for before, after in pairwise(found):
        if before.limit != after.start:
            raise ValueError(f"{after!r} does not follow {before!r}")
    start, limit = found[0].start, found[-1].limit
    check_u64(start=start, limit=limit, timestamp_us=timestamp_us)
    records = fragment_columns.to_table(found)
    data, setsum = _write_and_sum(found, records, timestamp_us, writer)
    return EncodedFragment(data, setsum, start, limit)


def decode_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """Return the records of the object that ``entry`` names.

    CorruptionError unless its length and its offsets are those of the entry, and all that
    :func:`uploader.fragments.fragment_file.read` checks. The setsum is not: see :func:`verify_fragment`.
    """
    return _batch(_read(data, entry))


def decode_columns(
    data: bytes | bytearray, entry: Fragment, names: Collection[str]
) -> FragmentBatch:
    """As :func:`decode_fragment`, with only the columns ``names`` of ``walstore.arrow.SCHEMA`` and offsets.

    The others are null, times the fragment's; what lies where they are stored is not looked at.
    """
    return _batch(_read(data, entry, only=names))


def verify_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """As :func:`decode_fragment`, and hash every record: CorruptionError if the setsum differs too."""
    content = _read(data, entry)
    _same("setsum", entry, entry.setsum, _setsum(content))
    return _batch(content)


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
    return fragment_file.footer_bytes(end, path=path)


def read_footer(end: bytes, *, path: str = "fragment") -> Footer:
    """Return what a fragment says of its records' times and streams, from its last bytes.

    ``end`` holds the whole footer; CorruptionError if there is none.
    """
    return fragment_file.read_footer(end, path=path)


def fragment_timestamp(data: bytes, *, path: str = "fragment") -> int:
    """Return the fragment's own time, which its setsum covers; CorruptionError if it is none."""
    return fragment_file.timestamp(data, path=path)


def _read(
    data: bytes | bytearray, entry: Fragment, *, only: Collection[str] | None = None
) -> Content:
    _same("length", entry, entry.num_bytes, len(data))
    content = fragment_file.read(data, path=entry.path, only=only)
    _same("first offset", entry, entry.start, content.start)
    _same("limit", entry, entry.limit, content.limit)
    return content


def _same(what: str, entry: Fragment, expected: object, found: object) -> None:
    if found != expected:
        raise CorruptionError(
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


def _write_and_sum(
    batches: Sequence[Batch], records: pa.Table, timestamp_us: int, writer: str | None
) -> tuple[bytes, Setsum]:
    write = partial(fragment_file.write, records, timestamp_us=timestamp_us, writer=writer)
    if records.nbytes < _APART_BYTES:
        return write(), fragment_columns.setsum_of(batches, timestamp_us)
    with ThreadPoolExecutor(1, "walstore-parquet") as beside:
        writing = beside.submit(write)
        setsum = fragment_columns.setsum_of(batches, timestamp_us)
        return writing.result(), setsum
