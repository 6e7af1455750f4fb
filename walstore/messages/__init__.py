"""Messages over several logs: published now, visible once their transaction commits.

The layer uses only the public interface of a log: appends, readers and registers. See docs/messages.md
for the protocol, the outcome table and the format.
"""

from __future__ import annotations

from walstore.messages.committed_reader import CommittedReader
from walstore.messages.coordinator import CoordinatedTransaction, Coordinator
from walstore.messages.coordinator_state import CoordinatorState, RegisterStore, StateStore
from walstore.messages.producers import ProducerState, ReadCheckpoint
from walstore.messages.publisher import AckIntents, Publisher, abort_producers, send_intents
from walstore.messages.sequencer import Outcome, Sequencer
from walstore.messages.stamp import HEADER, Flag, MessageClock, Stamp, new_producer_id, time_us

__all__ = [
    # several logs, all or nothing
    "Coordinator",
    "CoordinatedTransaction",
    "CoordinatorState",
    "RegisterStore",
    "StateStore",
    # publishing
    "AckIntents",
    "MessageClock",
    "Publisher",
    "abort_producers",
    "new_producer_id",
    "send_intents",
    "time_us",
    # reading
    "CommittedReader",
    "Outcome",
    "ProducerState",
    "ReadCheckpoint",
    "Sequencer",
    # the stamp
    "HEADER",
    "Flag",
    "Stamp",
]
