"""Producers: what a sequencer keeps for each producer of one log, and the checkpoint of it. Pure.

The bytes of a checkpoint are msgpack; docs/messages.md has the fields.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from walstore.errors import FormatVersionError
from walstore.records import Record

VERSION: Final = 1
RECORD_OVERHEAD_BYTES: Final = 256
"""Approximate cost of a record in addition to its bytes."""
_FIRST_PRUNING: Final = 64


class ProducerState(NamedTuple):
    """A reader's state for one producer."""

    acked: int
    """Clock up to which its messages were delivered, or counted as delivered."""
    newest: int
    """Largest clock of any of its messages, including rolled-back ones."""
    begin: int
    """Offset from which its pending messages must be re-read; 0 if there are none."""
    seen_us: int
    """Timestamp of its last record."""


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Enough to continue after the last message delivered, without loss or repetition."""

    position: int
    """Offset of the next record to examine."""
    producers: Mapping[bytes, ProducerState] = field(default_factory=dict)
    """Producers seen within the horizon, and all that have pending messages."""

    @property
    def pin(self) -> int:
        """Lowest offset that a reader resuming here may have to read again: keep it in the log.

        It never decreases between checkpoints of a reader, so a cursor may follow it.
        """
        begins = (state.begin for state in self.producers.values() if state.begin)
        return min(begins, default=self.position)

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes, about 40 for each producer."""
        rows = [[producer, *state] for producer, state in self.producers.items()]
        packed: bytes = msgpack.packb([VERSION, self.position, rows])
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> ReadCheckpoint:
        """Parse :meth:`to_bytes`; FormatVersionError for bytes of a newer version, ValueError for other
        bytes."""
        try:
            fields: list[Any] = msgpack.unpackb(data)
            version = int(fields[0])
        except Exception as error:
            raise ValueError("these bytes are not a read checkpoint") from error
        if version != VERSION:
            raise FormatVersionError(
                "the read checkpoint has another version",
                path="read checkpoint",
                found=version,
                supported=VERSION,
            )
        _, position, rows = fields
        states = {producer: ProducerState(*state) for producer, *state in rows}
        return cls(position, states)


class Held(NamedTuple):
    """A pending message in the ring."""

    clock: int
    size_bytes: int
    record: Record


class Ring:
    """The newest pending messages of all producers of one log, bounded in number and bytes.

    It contains the end of each producer's pending span. For lack of room it always drops the oldest message
    of the whole ring, which is the oldest one that its producer has here.
    """

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


@dataclass(slots=True)
class Partial:
    """Mutable state of one producer, with fields as in :class:`ProducerState`."""

    acked: int
    newest: int
    begin: int = 0
    seen_us: int = 0
    run: deque[Held] = field(default_factory=deque)
    """The end of the pending span, as far as the ring had room."""

    def settle(self, clock: int) -> None:
        """Record that everything up to a clock is settled and nothing is pending."""
        self.begin = 0
        self.acked = clock
        self.newest = max(self.newest, clock)

    def go_back(self, clock: int) -> None:
        """Record that nothing after a clock counts any more, and nothing is pending."""
        self.begin = 0
        self.acked = self.newest = clock


class Producers:
    """All producers that were seen within the horizon or have pending messages."""

    def __init__(self, states: Mapping[bytes, ProducerState], *, horizon_seconds: float) -> None:
        """Begin with the state of a checkpoint."""
        self._partials = {name: Partial(*state) for name, state in states.items()}
        self._horizon_us = int(horizon_seconds * 1e6)
        self._now_us = max((one.seen_us for one in self._partials.values()), default=0)
        self._prune_at = _FIRST_PRUNING

    def advance(self, timestamp_us: int) -> None:
        """Record the time of the newest record of the log; all times here are those of records."""
        self._now_us = max(self._now_us, timestamp_us)

    def get(self, producer: bytes) -> Partial | None:
        """Return a producer and mark it as seen now; None if it is not known."""
        partial = self._partials.get(producer)
        if partial is not None:
            partial.seen_us = self._now_us
        return partial

    def add(self, producer: bytes, clock: int) -> Partial:
        """Return a new producer, whose first message has this clock."""
        if len(self._partials) >= self._prune_at:
            self.prune()
            self._prune_at = max(_FIRST_PRUNING, 2 * len(self._partials))
        partial = self._partials[producer] = Partial(clock - 1, clock - 1, seen_us=self._now_us)
        return partial

    def prune(self) -> None:
        """Forget idle producers; never one with pending messages, since its ACK may still come."""
        oldest_us = self._now_us - self._horizon_us
        idle = [
            name
            for name, one in self._partials.items()
            if one.seen_us < oldest_us and not one.begin
        ]
        for name in idle:
            del self._partials[name]

    def states(self) -> dict[bytes, ProducerState]:
        """Return the state to store in a checkpoint."""
        return {
            name: ProducerState(one.acked, one.newest, one.begin, one.seen_us)
            for name, one in self._partials.items()
        }

    def pending(self) -> dict[bytes, int]:
        """Return the producers with pending messages, and the offset at which these begin."""
        return {name: one.begin for name, one in self._partials.items() if one.begin}
