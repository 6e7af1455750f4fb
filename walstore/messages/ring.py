"""Ring: the newest pending messages, kept in memory up to a bound. Pure.

It contains the end of each producer's pending span. For lack of room it always drops the oldest message
of the whole ring, which is the oldest one that its producer has here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from walstore.records import Record

RECORD_OVERHEAD_BYTES: Final = 256
"""Approximate cost of a record in addition to its bytes."""


class Held(NamedTuple):
    """A pending message in the ring."""

    clock: int
    size_bytes: int
    record: Record


class Ring:
    """Pending messages of all producers of one log, bounded in number and bytes."""

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        """Hold at most this much; 0 of either holds nothing."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        # By offset, oldest first, with the run that contains the record.
        self._runs: OrderedDict[int, deque[Held]] = OrderedDict()
        self.nbytes = 0
        """Approximate memory of the records."""

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: deque[Held], clock: int, record: Record) -> None:
        """Put a record at the end of its producer's run, and drop the oldest ones over the bound."""
        size_bytes = _size_bytes(record)
        run.append(Held(clock, size_bytes, record))
        self._runs[record.offset] = run
        self.nbytes += size_bytes
        while len(self._runs) > self._max_records or self.nbytes > self._max_bytes:
            _, oldest = self._runs.popitem(last=False)
            self.nbytes -= oldest.popleft().size_bytes

    def take(self, run: deque[Held]) -> Held:
        """Remove and return the first message of a run."""
        held = run.popleft()
        del self._runs[held.record.offset]
        self.nbytes -= held.size_bytes
        return held

    def discard(self, run: deque[Held]) -> None:
        """Remove all messages of a run."""
        while run:
            self.take(run)


def _size_bytes(record: Record) -> int:
    headers_bytes = sum(map(len, record.headers.values()))
    return RECORD_OVERHEAD_BYTES + len(record.value) + len(record.key or b"") + headers_bytes
