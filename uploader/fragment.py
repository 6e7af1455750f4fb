"""Fragments: batches in, one immutable object out, and back. Pure, but slow: for executor threads.

Owns what a fragment means: which records it holds, their setsum, and whether it is the one its manifest
entry speaks of. How it is stored is in ``fragment_file.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pyarrow as pa

from uploader import fragment_file, layout
from uploader.document import check_u64
from uploader.fragment_batch import FragmentBatch
from uploader.fragment_file import Content
from uploader.manifest import Fragment
from uploader.setsum import Setsum
from walstore.arrow import SCHEMA
from walstore.batch import Batch
from walstore.errors import CorruptionError

_HASH_ROWS: Final = 1024
_HASH_BYTES: Final = 256 * 1024
"""Values are taken out of Arrow in runs of so many rows and about so many bytes, to be hashed."""


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


def encode_fragment(batches: Sequence[Batch], *, timestamp_us: int) -> EncodedFragment:
    """Return the fragment that holds the batches' records.

    ``timestamp_us`` is the fragment's own time, in microseconds since 1970 UTC; wal3 hashes it with every
    record. Values are not copied on their way to the Parquet encoder. The same input gives the same bytes.
    ValueError if there is no record, if the batches do not follow each other, or if a number does not
    fit 64 bits.
    """
    found = [batch for batch in batches if len(batch)]
    if not found:
        raise ValueError("a fragment needs at least one record")
    for before, after in pairwise(found):
        if before.limit != after.start:
            raise ValueError(f"{after!r} does not follow {before!r}")
    start, limit = found[0].start, found[-1].limit
    check_u64(start=start, limit=limit, timestamp_us=timestamp_us)
    records = pa.Table.from_batches([batch.to_arrow() for batch in found], SCHEMA)
    return EncodedFragment(
        data=fragment_file.write(records, timestamp_us=timestamp_us),
        setsum=_setsum(Content(records, timestamp_us, start)),
        start=start,
        limit=limit,
    )


def decode_fragment(data: bytes, entry: Fragment) -> FragmentBatch:
    """Return the records of the object that ``entry`` names.

    CorruptionError unless its length and its offsets are those of the entry, and all that
    :func:`uploader.fragment_file.read` checks. The setsum is not: see :func:`verify_fragment`.
    """
    return _batch(_read(data, entry))


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


def fragment_timestamp(data: bytes, *, path: str = "fragment") -> int:
    """Return the fragment's own time, which its setsum covers; CorruptionError if it is none."""
    return fragment_file.timestamp(data, path=path)


def _read(data: bytes, entry: Fragment) -> Content:
    _same("length", entry, entry.num_bytes, len(data))
    content = fragment_file.read(data, path=entry.path)
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
    sums = []
    offset = content.start
    for values in _runs(content.records.column("value")):
        sums.append(Setsum.of_records(offset, content.timestamp_us, values))
        offset += len(values)
    return Setsum.total(sums)


def _runs(values: pa.ChunkedArray) -> Iterator[list[bytes]]:
    """Yield the values run by run, so that neither much memory nor the interpreter lock is held."""
    for chunk in values.chunks:
        rows = len(chunk)
        row_bytes = max(1, chunk.nbytes // max(1, rows))
        step = max(1, min(_HASH_ROWS, _HASH_BYTES // row_bytes))
        for low in range(0, rows, step):
            yield chunk.slice(low, step).to_pylist()
