"""BatchBuilder: records accepted but not yet written, collected by column. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgpack

from walstore.core.batches.conditions import AppendConditions
from walstore.core.batches.cost import BATCH_RECORDS, PART_COST_BYTES
from walstore.core.format import frame
from walstore.core.format.frame import Column, ColumnKind
from walstore.core.format.ledger import Marks

_T = TypeVar("_T")

RECORD_OVERHEAD_BYTES: Final = 8
"""What a record counts in a batch or a commit in addition to its bytes: about what is written for it."""
RECORD_ROOM_BYTES: Final = RECORD_OVERHEAD_BYTES + PART_COST_BYTES
"""The same in memory, for a record that is only a value."""


class RecordsInFile(ABC):
    """The records of a large transaction, in their own file: :class:`walstore.core.files.spill.Spill`."""

    count = 0
    """Records so far."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the file so far."""


@dataclass(slots=True)
class BatchBuilder:
    """A batch being built. Optional columns exist only once a record needs them."""

    start: int
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    streams: list[str | None] | None = None
    headers: list[bytes | None] | None = None
    """Packed headers (msgpack map) of each record."""
    timestamps_us: list[int | None] | None = None
    """Requested times; None means the time of the commit."""
    size_bytes: int = 0
    """Bytes of the records, and an overhead each. Set when the builder is closed."""
    held_bytes: int = 0
    """What they take in memory. Set at the same time."""
    marks: Marks | None = None
    """Changes of the ledger that are written with the records."""
    serial: int = 0
    """Serial of its last append that changes the ledger; see ``Channel.serial``."""
    spill: RecordsInFile | None = None
    """The records, if they are in a file of their own."""
    accepted_at: float | None = None
    """When the first of its records was accepted, by the monotonic clock; None if it is empty."""
    only_value: bytes | None = field(default=None, compare=False)
    """The only value, if a builder that is padded has one record with nothing but a value."""

    @property
    def limit(self) -> int:
        """Offset after its last record."""
        return self.start + (len(self.values) if self.spill is None else self.spill.count)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.values and self.marks is None and self.spill is None

    def extend(self, request: AppendRequest) -> None:
        """Append the records of a request."""
        before = len(self.values)
        self.values += request.values
        self.keys = _join(self.keys, request.keys, before, len(request.values))
        self.streams = _join(self.streams, request.streams, before, len(request.values))
        self.headers = _join(self.headers, request.headers, before, len(request.values))
        self.timestamps_us = _join(
            self.timestamps_us, request.timestamps_us, before, len(request.values)
        )

    def pad(self) -> None:
        """Fill optional columns up to the length of the values, after plain values were added."""
        rows, is_plain = len(self.values), self.marks is None
        for column in (self.keys, self.streams, self.headers, self.timestamps_us):
            if column is not None:
                is_plain = False
                column.extend([None] * (rows - len(column)))
        self.only_value = self.values[0] if is_plain and rows == 1 else None

    def part(self, low: int, high: int) -> BatchBuilder:
        """Return a new builder with the records ``[low, high)``, counted from 0, padded.

        Nothing else of this builder is copied.
        """

        def cut(column: list[_T] | None) -> list[_T] | None:
            return None if column is None else column[low:high]

        part = BatchBuilder(
            self.start + low,
            self.values[low:high],
            cut(self.keys),
            cut(self.streams),
            cut(self.headers),
            cut(self.timestamps_us),
        )
        part.pad()
        return part

    def times(self, now_us: int, floor_us: int) -> tuple[int, int, list[int] | None]:
        """Return base timestamp, last timestamp, and the deltas if they are not all zero.

        No timestamp is less than ``floor_us`` or an earlier one of the builder.
        """
        if not self.values:
            return floor_us, floor_us, None
        if self.timestamps_us is None:
            base = max(now_us, floor_us)
            return base, base, None
        times: list[int] = []
        latest = floor_us
        for requested in self.timestamps_us:
            latest = max(latest, now_us if requested is None else requested)
            times.append(latest)
        base = times[0]
        return base, latest, [time - base for time in times] if latest > base else None

    def columns(self, deltas: Sequence[int] | None) -> list[Column]:
        """Return the columns to frame, values last."""
        found: list[Column] = []
        if self.marks is not None:
            found.append(marks_column(self.marks))
        values = self.values
        if not values:
            return found
        lengths = list(map(len, values))
        found.append(frame.uint_column(ColumnKind.VALUE_LENGTHS, lengths))
        if deltas is not None:
            found.append(frame.uint_column(ColumnKind.TIMESTAMP_DELTAS, deltas))
        if self.streams is not None:
            found += _stream_columns(self.streams)
        if self.keys is not None:
            found += _optional_columns(ColumnKind.KEY_LENGTHS, ColumnKind.KEYS, self.keys)
        if self.headers is not None:
            found += _optional_columns(ColumnKind.HEADER_LENGTHS, ColumnKind.HEADERS, self.headers)
        found.append(frame.blob_column(ColumnKind.VALUES, values, sum(lengths)))
        return found


@dataclass(slots=True, eq=False)
class AppendRequest:
    """Records that enter the log together, as columns; optional ones may be None.

    Nobody changes one; saying so with ``frozen`` takes a tenth of the time of an append with a key.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    streams: Sequence[str | None] | None
    headers: Sequence[bytes | None] | None
    timestamps_us: Sequence[int | None] | None
    size_bytes: int
    conditions: AppendConditions | None = None
    spill: RecordsInFile | None = None
    """The records, if they are in a file of their own; then ``values`` is empty."""
    held_bytes: int = 0
    """What the records take in memory."""

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.values) if self.spill is None else self.spill.count


def split(builder: BatchBuilder, part_bytes: int) -> Iterator[BatchBuilder]:
    """Yield the records of a padded builder in parts of at least one record and at most about
    ``part_bytes`` and :data:`BATCH_RECORDS`."""
    first = size = 0
    for row, value in enumerate(builder.values):
        added = len(value) + sum(
            len(column[row] or b"")
            for column in (builder.keys, builder.headers)
            if column is not None
        )
        if row > first and (size + added > part_bytes or row - first == BATCH_RECORDS):
            yield builder.part(first, row)
            first, size = row, 0
        size += added
    if builder.values:
        yield builder.part(first, len(builder.values))


def marks_column(marks: Marks) -> Column:
    """Return the column for marks."""
    data = marks.encode()
    return frame.blob_column(ColumnKind.MARKS, (data,), len(data))


def _join(
    column: list[_T | None] | None, more: Sequence[_T | None] | None, before: int, rows: int
) -> list[_T | None] | None:
    if more is None and column is None:
        return None
    joined: list[_T | None] = [] if column is None else column
    joined += [None] * (before - len(joined))
    joined += [None] * rows if more is None else more
    return joined


def _stream_columns(streams: Sequence[str | None]) -> list[Column]:
    numbers: dict[str | None, int] = {None: 0}
    ids = [numbers.setdefault(name, len(numbers)) for name in streams]
    names = msgpack.packb(list(numbers)[1:])
    return [
        frame.uint_column(ColumnKind.STREAM_IDS, ids),
        frame.blob_column(ColumnKind.STREAM_NAMES, (names,), len(names)),
    ]


def _optional_columns(
    lengths: ColumnKind, blob: ColumnKind, items: Sequence[bytes | None]
) -> list[Column]:
    sizes = [0 if item is None else len(item) + 1 for item in items]
    pieces = [item for item in items if item]
    return [
        frame.uint_column(lengths, sizes),
        frame.blob_column(blob, pieces, sum(map(len, pieces))),
    ]
