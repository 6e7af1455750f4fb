"""Messages over several logs: published now, visible once their transaction commits.

The layer uses only the public interface of a log: appends, readers and registers. See docs/messages.md
for the protocol, the outcome table and the format.
"""

from __future__ import annotations

from walstore.messages.committed_reader import CommittedReader
from walstore.messages.coordinated_transaction import CoordinatedTransaction
from walstore.messages.coordinator import Coordinator
from walstore.messages.coordinator_state import CoordinatorState, StateStore
from walstore.messages.message_clock import MessageClock, time_us
from walstore.messages.outcome import Outcome
from walstore.messages.publisher import AckIntents, Publisher
from walstore.messages.read_checkpoint import ProducerState, ReadCheckpoint
from walstore.messages.recovery import abort_producers, send_intents
from walstore.messages.register_store import RegisterStore
from walstore.messages.sequencer import Sequencer
from walstore.messages.stamp import HEADER, Flag, Stamp, new_producer_id

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
