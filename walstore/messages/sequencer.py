"""Sequencer: decides which messages of one log are committed, and in which order. Pure: no I/O.

Records of the log go in, in offset order; committed messages come out. Pending ones wait in a bounded
ring; the beginning of a larger span is requested again when it commits. So a transaction of any size
costs a second read and no memory, and no producer waits for another one's transaction.

Invariants (tests/walstore/messages/test_sequencer_laws.py)
  S1  A producer's messages come out in clock order, each at most once.
  S2  A pending message comes out when an ACK at or above its clock comes in, and never before.
  S3  A sequencer made from a checkpoint, fed from its position, continues as the original would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from walstore.messages.producers import Partial, Producers, ReadCheckpoint, Ring
from walstore.messages.stamp import Flag, Stamp
from walstore.records import Record

RING_RECORDS: Final = 8192
RING_BYTES: Final = 16 << 20
HORIZON_SECONDS: Final = 86_400.0


class Outcome(StrEnum):
    """The effect of a record, returned by :meth:`walstore.messages.Sequencer.step`."""

    UNTRACKED = "untracked"
    """No stamp, or clock 0: committed, and not checked for duplicates."""
    COMMITTED_ALONE = "committed_alone"
    """OUTSIDE with a new clock: committed. It discards what its producer had pending."""
    ALREADY_ACKED = "already_acked"
    """A duplicate of a message that was settled before: dropped."""
    ALREADY_SEEN = "already_seen"
    """A duplicate of a message that is pending or was rolled back: dropped."""
    SPAN_BEGUN = "span_begun"
    """CONTINUE, the first one: pending."""
    SPAN_EXTENDED = "span_extended"
    """CONTINUE, a further one: pending."""
    ROLLED_BACK = "rolled_back"
    """ACK with the clock settled last: pending messages are dropped."""
    ROLLED_BACK_TO_EARLIER = "rolled_back_to_earlier"
    """ACK below the clock settled last: the producer's program returned to an older state. Pending messages
    are dropped, and messages it publishes again are delivered again: at least once from here on."""
    ACK_EMPTY = "ack_empty"
    """ACK with a new clock and nothing pending."""
    COMMITTED_FROM_RING = "committed_from_ring"
    """ACK of a span that is all in memory."""
    COMMITTED_BY_REPLAY = "committed_by_replay"
    """ACK of a span whose beginning must be read again."""
    ABORTED = "aborted"
    """ABORT: pending messages are dropped."""

    @property
    def commits(self) -> bool:
        """Whether there are messages to take from the sequencer now."""
        return self in _COMMITS


_COMMITS = frozenset(
    {
        Outcome.UNTRACKED,
        Outcome.COMMITTED_ALONE,
        Outcome.COMMITTED_FROM_RING,
        Outcome.COMMITTED_BY_REPLAY,
    }
)


@dataclass(slots=True)
class _Delivery:
    """Messages of one commit that are being taken."""

    record: Record
    """The record that committed them: the ACK, or the message itself."""
    stamp: Stamp | None = None
    partial: Partial | None = None
    """Their producer; None for a record that is not tracked."""
    next: int = 0
    """Offset from which the span must be re-read."""
    replayed: int = 0
    """Largest clock found there."""


class Sequencer:
    """The state machine of one log. Feed it with :meth:`step`; after an outcome that commits, take the
    messages until :meth:`take` returns None."""

    def __init__(
        self,
        checkpoint: ReadCheckpoint | None = None,
        *,
        ring_records: int = RING_RECORDS,
        ring_bytes: int = RING_BYTES,
        horizon_seconds: float = HORIZON_SECONDS,
    ) -> None:
        """Begin empty, or where a checkpoint was taken.

        ``ring_records`` and ``ring_bytes`` bound the pending messages in memory; 0 keeps none. A
        producer without pending messages is forgotten when its last record is older than the newest
        record of the log by ``horizon_seconds``: older duplicates are no longer recognized.
        """
        self.position = checkpoint.position if checkpoint else 0
        """Offset of the next record for :meth:`step`; during a delivery, of the record that commits."""
        self._producers = Producers(
            checkpoint.producers if checkpoint else {}, horizon_seconds=horizon_seconds
        )
        self._ring = Ring(max_records=ring_records, max_bytes=ring_bytes)
        self._delivery: _Delivery | None = None

    # -- feeding -----------------------------------------------------------------------------

    def step(self, record: Record) -> Outcome:
        """Take in the next record of the log. ValueError while a delivery is not finished, or for a
        record below the position; FormatVersionError for a stamp of a newer version."""
        if self._delivery is not None:
            raise ValueError("take() all messages of the commit before the next step()")
        if record.offset < self.position:
            raise ValueError(f"record {record.offset} is below the position {self.position}")
        stamp = Stamp.of(record)
        self._producers.advance(record.timestamp_us)
        outcome = self._judge(record, stamp)
        self.position = record.offset if outcome.commits else record.offset + 1
        return outcome

    def _judge(self, record: Record, stamp: Stamp | None) -> Outcome:
        if stamp is None or not stamp.clock:
            self._delivery = _Delivery(record)
            return Outcome.UNTRACKED
        partial = self._producers.get(stamp.producer)
        if stamp.flag == Flag.ABORT:
            if partial is not None:
                self._roll_back(partial)
            return Outcome.ABORTED
        if partial is None:
            partial = self._producers.add(stamp.producer, stamp.clock)
        if stamp.flag == Flag.CONTINUE:
            return self._continue(partial, stamp, record)
        if stamp.flag == Flag.ACK:
            return self._acknowledge(partial, stamp, record)
        if stamp.clock <= partial.acked:
            return Outcome.ALREADY_ACKED
        self._roll_back(partial)
        self._delivery = _Delivery(record, stamp, partial)
        return Outcome.COMMITTED_ALONE

    def _continue(self, partial: Partial, stamp: Stamp, record: Record) -> Outcome:
        if stamp.clock <= partial.acked:
            return Outcome.ALREADY_ACKED
        if stamp.clock <= partial.newest:
            return Outcome.ALREADY_SEEN
        partial.newest = stamp.clock
        self._ring.add(partial.run, stamp.clock, record)
        if partial.begin:
            return Outcome.SPAN_EXTENDED
        partial.begin = record.offset
        return Outcome.SPAN_BEGUN

    def _acknowledge(self, partial: Partial, stamp: Stamp, record: Record) -> Outcome:
        if stamp.clock <= partial.acked:
            self._roll_back(partial)
            if stamp.clock == partial.acked:
                return Outcome.ROLLED_BACK
            partial.go_back(stamp.clock)
            return Outcome.ROLLED_BACK_TO_EARLIER
        if not partial.begin:
            partial.settle(stamp.clock)
            return Outcome.ACK_EMPTY
        self._delivery = _Delivery(record, stamp, partial, partial.begin, partial.acked)
        return Outcome.COMMITTED_BY_REPLAY if self.replay else Outcome.COMMITTED_FROM_RING

    def _roll_back(self, partial: Partial) -> None:
        self._ring.discard(partial.run)
        partial.settle(partial.acked)

    # -- taking ------------------------------------------------------------------------------

    @property
    def is_delivering(self) -> bool:
        """Whether messages of a commit are to be taken before the next :meth:`step`."""
        return self._delivery is not None

    @property
    def replay(self) -> range:
        """Offsets whose records must be given to :meth:`replayed`, each and in order, before
        :meth:`take` may be called; empty if none."""
        delivery = self._delivery
        if delivery is None or delivery.partial is None or not delivery.next:
            return range(0)
        run = delivery.partial.run
        limit = run[0].record.offset if run else delivery.record.offset
        return range(delivery.next, max(delivery.next, limit))

    def replayed(self, record: Record) -> Record | None:
        """Take in a record that was read again; return it if it is a message of this commit.

        ValueError unless it is the first one of :attr:`replay`.
        """
        missing = self.replay
        if not missing or record.offset != missing.start:
            raise ValueError(f"record {record.offset} was read again, but {missing} is wanted")
        delivery = self._delivery
        assert delivery is not None
        assert delivery.stamp is not None
        assert delivery.partial is not None
        stamp = Stamp.of(record)
        delivery.next = record.offset + 1
        if stamp is None or stamp.producer != delivery.stamp.producer:
            return None
        if stamp.flag != Flag.CONTINUE or stamp.clock <= delivery.replayed:
            return None
        delivery.replayed = stamp.clock
        return self._deliver(delivery.partial, stamp.clock, delivery.stamp.clock, record)

    def take(self) -> Record | None:
        """Return the next message of the commit; None when all were taken and :meth:`step` may continue.

        ValueError while :attr:`replay` is not empty.
        """
        delivery = self._delivery
        if delivery is None:
            return None
        partial, stamp = delivery.partial, delivery.stamp
        if partial is None or stamp is None:
            self._end(delivery)
            return delivery.record
        if stamp.flag != Flag.ACK:
            partial.settle(stamp.clock)
            self._end(delivery)
            return delivery.record
        if self.replay:
            raise ValueError(f"the records {self.replay} must be read again first")
        while partial.run:
            held = self._ring.take(partial.run)
            delivery.next = held.record.offset + 1
            message = self._deliver(partial, held.clock, stamp.clock, held.record)
            if message is not None:
                return message
        partial.settle(stamp.clock)
        self._end(delivery)
        return None

    @staticmethod
    def _deliver(partial: Partial, clock: int, ack_clock: int, record: Record) -> Record | None:
        """Return a message of the span, or None if it is after what the ACK commits."""
        if not partial.acked < clock <= ack_clock:
            return None
        partial.acked = clock
        partial.begin = record.offset + 1
        return record

    def _end(self, delivery: _Delivery) -> None:
        self.position = delivery.record.offset + 1
        self._delivery = None

    # -- remembering -------------------------------------------------------------------------

    @property
    def pending(self) -> Mapping[bytes, int]:
        """Producers with pending messages, and the offset at which these begin."""
        return self._producers.pending()

    @property
    def ring_bytes(self) -> int:
        """Approximate memory of the ring now."""
        return self._ring.nbytes

    def checkpoint(self) -> ReadCheckpoint:
        """Return where the messages taken so far end, also in the middle of a delivery."""
        self._producers.prune()
        return ReadCheckpoint(self.position, self._producers.states())
