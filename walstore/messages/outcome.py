"""Outcome: the effect of a record on the transaction of its producer. The table is in docs/messages.md."""

from __future__ import annotations

from enum import StrEnum


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
