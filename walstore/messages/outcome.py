"""Outcome: what a record meant for the transaction of its producer. The table is in docs/messages.md."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What :meth:`walstore.messages.Sequencer.step` made of a record."""

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
    """ACK with the clock settled last: what was pending is dropped."""
    ROLLED_BACK_TO_EARLIER = "rolled_back_to_earlier"
    """ACK below the clock settled last: the producer's program went back to an older state. What was
    pending is dropped, and what it publishes anew is delivered again: at least once from here on."""
    ACK_EMPTY = "ack_empty"
    """ACK with a new clock and nothing pending."""
    COMMITTED_FROM_RING = "committed_from_ring"
    """ACK of a span that is all in memory."""
    COMMITTED_BY_REPLAY = "committed_by_replay"
    """ACK of a span whose beginning must be read again."""
    ABORTED = "aborted"
    """ABORT: what was pending is dropped."""

    @property
    def commits(self) -> bool:
        """Whether there are messages to be taken from the sequencer now."""
        return self in _COMMITS


_COMMITS = frozenset(
    {
        Outcome.UNTRACKED,
        Outcome.COMMITTED_ALONE,
        Outcome.COMMITTED_FROM_RING,
        Outcome.COMMITTED_BY_REPLAY,
    }
)
