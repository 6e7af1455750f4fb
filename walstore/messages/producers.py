"""Producers: the state that a sequencer keeps for each producer of one log. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from walstore.messages.read_checkpoint import ProducerState
from walstore.messages.ring import Held

_FIRST_PRUNING: Final = 64


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
