"""FragmentBuilder: batches in, one immutable object out. Pure, but slow: for executor threads.

Encoding and hashing are two ways through the same records. An object can be put once it is encoded, while
its records are still being hashed, and records that are known early can go through both before the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from uploader.format.document import check_u64
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_columns
from uploader.fragments.fragment_file import FileWriter
from walstore.batches.batch import Batch

_APART_BYTES: Final = 256 * 1024
"""From this size on a fragment is hashed while another thread makes the file, which takes about half as
long and, other than hashing, leaves the interpreter to others."""


@dataclass(frozen=True, slots=True)
class FragmentFile:
    """An object ready to be put."""

    data: bytes = field(repr=False)
    """The object."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last record."""

    def summed(self, setsum: Setsum) -> EncodedFragment:
        """Return the fragment, now that the sum of its records is known."""
        return EncodedFragment(self.data, self.start, self.limit, setsum)


@dataclass(frozen=True, slots=True)
class EncodedFragment(FragmentFile):
    """A fragment ready to be put, and what the manifest will say of it."""

    setsum: Setsum
    """Sum of the records."""

    def entry(self, seq_no: int) -> Fragment:
        """Return its manifest entry as the fragment with that number."""
        return Fragment.numbered(
            seq_no,
            start=self.start,
            limit=self.limit,
            num_bytes=len(self.data),
            setsum=self.setsum,
        )


class FragmentBuilder:
    """One fragment in the making. One thread at a time, and none that runs an event loop.

    Any number of calls of :meth:`add`, then :meth:`write` and :meth:`sum`, or :meth:`finish` for both. A call
    that refuses its batches with ValueError changes nothing; after any other error it is of no use any more.
    """

    def __init__(
        self, *, timestamp_us: int, writer: str | None = None, closings: int | None = None
    ) -> None:
        """``timestamp_us`` and ``writer`` as for :func:`encode_fragment`; ``closings`` as for FileWriter."""
        check_u64(timestamp_us=timestamp_us)
        self._timestamp_us = timestamp_us
        self._file = FileWriter(timestamp_us=timestamp_us, writer=writer, closings=closings)
        self._bounds: tuple[int, int] | None = None  # of the records so far
        self._setsum = Setsum()  # of what was hashed
        self._unsummed: list[Batch] = []

    def add(self, batches: Sequence[Batch]) -> None:
        """Encode and hash the next records, as a part of the file of their own.

        ValueError if the batches do not follow each other, or if a number does not fit 64 bits.
        """
        found = self._follow(batches)
        if found:
            self._file.add(fragment_columns.to_table(found))
            self._setsum += fragment_columns.setsum_of(found, self._timestamp_us)

    def write(self, batches: Sequence[Batch] = ()) -> FragmentFile:
        """Encode the last records and return the file; their hashes are left to :meth:`sum`.

        ValueError as :meth:`add`, and if there is no record at all.
        """
        found = self._last(batches)
        if found:
            self._file.add(fragment_columns.to_table(found))
        self._unsummed = found
        return self._file_of(self._file.finish())

    def sum(self) -> Setsum:
        """Return the sum of all records."""
        self._setsum += fragment_columns.setsum_of(self._unsummed, self._timestamp_us)
        self._unsummed = []
        return self._setsum

    def finish(self, batches: Sequence[Batch] = ()) -> EncodedFragment:
        """Do what :meth:`write` and :meth:`sum` do; if it is much, on two threads."""
        found = self._last(batches)
        if not found:
            return self._file_of(self._file.finish()).summed(self._setsum)
        records = fragment_columns.to_table(found)

        def write() -> bytes:
            self._file.add(records)
            return self._file.finish()

        if records.nbytes < _APART_BYTES:
            data, setsum = write(), fragment_columns.setsum_of(found, self._timestamp_us)
        else:
            with ThreadPoolExecutor(1, "walstore-parquet") as background:
                writing = background.submit(write)
                setsum = fragment_columns.setsum_of(found, self._timestamp_us)
                data = writing.result()
        return self._file_of(data).summed(self._setsum + setsum)

    # -- inside ------------------------------------------------------------------------------

    def _last(self, batches: Sequence[Batch]) -> list[Batch]:
        found = self._follow(batches)
        if self._bounds is None:
            raise ValueError("a fragment needs at least one record")
        return found

    def _follow(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches that have records, after checking that they go on where others ended."""
        found = [batch for batch in batches if len(batch)]
        bounds = self._bounds
        for batch in found:
            check_u64(start=batch.start, limit=batch.limit)
            start, end = bounds or (batch.start, batch.start)
            if end != batch.start:
                raise ValueError(f"{batch!r} does not follow offset {end}")
            bounds = start, batch.limit
        self._bounds = bounds
        return found

    def _file_of(self, data: bytes) -> FragmentFile:
        assert self._bounds is not None
        return FragmentFile(data, *self._bounds)


def encode_fragment(
    batches: Sequence[Batch], *, timestamp_us: int, writer: str | None = None
) -> EncodedFragment:
    """Return the fragment that holds the batches' records.

    ``timestamp_us`` is the fragment's own time, in microseconds since 1970 UTC; wal3 hashes it with every
    record. Values of longer batches are not copied on their way to the Parquet encoder. The same input
    gives the same bytes; ``writer``, noted in the file, distinguishes those of two writers. Larger fragments
    take two threads. ValueError if there is no record, if the batches do not follow each other, or if a
    number does not fit 64 bits.
    """
    return FragmentBuilder(timestamp_us=timestamp_us, writer=writer).finish(batches)
