"""Batches made of others: several batches (ConcatBatch), or none (EmptyBatch). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from walstore.core.batches.batch import Batch, SelectedBatch

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_ROWS: Final = 64
"""Below this many rows each, Python lists cost less than concatenating Arrow arrays."""


def spanning(batch: Batch, start: int, limit: int) -> Batch:
    """Return the records of a batch over a larger interval than its own."""
    if start == batch.start and limit == batch.limit:
        return batch
    if isinstance(batch, SelectedBatch):
        return batch.spanning(start, limit)
    return SelectedBatch(batch, range(len(batch)), start, limit)


def covering(batches: Sequence[Batch], start: int, limit: int) -> list[Batch]:
    """Return ordered batches with their intervals extended to cover ``[start, limit)`` without gaps.

    Each is extended back to the end of the previous one, and the last one to ``limit``.
    """
    found: list[Batch] = []
    for batch in batches:
        found.append(spanning(batch, start, batch.limit))
        start = batch.limit
    if found:
        found[-1] = spanning(found[-1], found[-1].start, limit)
    return found


class EmptyBatch(Batch):
    """No records, at a position, or in an interval without requested records."""

    __slots__ = ()

    def __init__(self, start: int, limit: int | None = None) -> None:
        """Cover ``[start, limit)``, by default nothing at ``start``."""
        self.start = start
        self.limit = start if limit is None else limit

    def __len__(self) -> int:
        return 0

    @property
    def offsets(self) -> Sequence[int]:
        """No offsets."""
        return range(0)

    @property
    def values(self) -> Sequence[bytes]:
        """No values."""
        return ()

    @property
    def keys(self) -> Sequence[bytes | None]:
        """No keys."""
        return ()

    @property
    def streams(self) -> Sequence[str | None]:
        """No stream names."""
        return ()

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """No headers."""
        return ()

    @property
    def timestamps_us(self) -> Sequence[int]:
        """No timestamps."""
        return ()

    @property
    def nbytes(self) -> int:
        """No bytes."""
        return 0

    def slice(self, start: int, limit: int) -> EmptyBatch:
        """Return a part of the interval; ValueError if outside."""
        self._check_inside(start, limit)
        return EmptyBatch(start, limit)

    def to_arrow(self) -> pa.RecordBatch:
        """Return a RecordBatch without rows."""
        from walstore.core.batches.arrow import empty

        return empty()


class ConcatBatch(Batch):
    """Several consecutive batches as one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Batch]) -> None:
        """Concatenate ``parts``, each of which begins where the previous one ends."""
        self._parts = parts
        self.start = parts[0].start
        self.limit = parts[-1].limit

    @property
    def parts(self) -> Sequence[Batch]:
        """The batches, in order."""
        return self._parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def offsets(self) -> Sequence[int]:
        """The records' offsets, ascending; a range if they are consecutive."""
        if len(self) == self.limit - self.start:
            return range(self.start, self.limit)
        return [offset for part in self._parts for offset in part.offsets]

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        return [value for part in self._parts for value in part.values]

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return [key for part in self._parts for key in part.keys]

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return [stream for part in self._parts for stream in part.streams]

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        return [headers for part in self._parts for headers in part.headers]

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        return [time for part in self._parts for time in part.timestamps_us]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self._parts)

    def record_sizes(self) -> Iterator[int]:
        """Yield the bytes of each record, in offset order."""
        return chain.from_iterable(part.record_sizes() for part in self._parts)

    def slice(self, start: int, limit: int) -> Batch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        parts = [
            part.slice(max(start, part.start), min(limit, part.limit))
            for part in self._parts
            if part.start < limit and part.limit > start
        ]
        return ConcatBatch(parts) if parts else EmptyBatch(start)

    def may_hold_stream(self, name: str) -> bool:
        """Return False only if no record of stream ``name`` can be in the batch."""
        return any(part.may_hold_stream(name) for part in self._parts)

    def select_stream(self, name: str) -> Batch:
        """Return the records of stream ``name``, over the same interval; there may be none."""
        return ConcatBatch([part.select_stream(name) for part in self._parts])

    def to_arrow(self) -> pa.RecordBatch:
        """Return one RecordBatch; the parts are copied together."""
        from walstore.core.batches.arrow import concat, of_columns

        if len(self) >= _SMALL_ROWS * len(self._parts):
            return concat([part.to_arrow() for part in self._parts])
        return of_columns(
            self.offsets, self.timestamps_us, self.values, self.keys, self.streams, self.headers
        )
