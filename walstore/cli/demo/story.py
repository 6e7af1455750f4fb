"""What the parent learns from the writing process, over both of its lives. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from walstore.cli.demo import messages
from walstore.cli.demo.checks import ProducerClaim
from walstore.cli.demo.latencies import LatencySamples
from walstore.cli.demo.messages import unpack_latencies


class Story:
    """Acknowledgements, latencies and counters, as they arrived through the pipe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``monotonic`` tells the time in seconds."""
        self._monotonic = monotonic
        self._since: float | None = None
        self._seconds = 0.0
        self.claims: dict[int, ProducerClaim] = {}
        """By producer, of all lives."""
        self.append_latencies = LatencySamples()
        self.tail_latencies = LatencySamples()
        self.opened: list[dict[str, Any]] = []
        """What each life found when it opened the log."""
        self.stopped: dict[str, Any] | None = None
        self.is_closed = False
        """Whether the last life closed the log cleanly."""
        self.status: dict[str, Any] = {}
        """Where the log stood when the child last spoke of it."""
        self.rotations = 0
        self.commits = 0
        self.appended_bytes = 0
        self.tier_reads = 0
        self._before: dict[str, int] = {}

    @property
    def acknowledged(self) -> int:
        """Records that were acknowledged as being on disk."""
        return sum(claim.acknowledged for claim in self.claims.values())

    @property
    def uploaded(self) -> int:
        """Records that a manifest names, as far as the child has said."""
        return int(self.status.get("uploaded_limit", 1)) - 1

    @property
    def append_seconds(self) -> float:
        """How long the producers have been at work, over all lives."""
        running = 0.0 if self._since is None else self._monotonic() - self._since
        return self._seconds + running

    def end_life(self) -> None:
        """The producers stopped, or were killed."""
        self._seconds = self.append_seconds
        self._since = None

    def take(self, message: list[Any]) -> None:
        """Take a message of the child into account."""
        kind, *items = message
        if kind == messages.ACK:
            number, count, checksum = items
            claim = self.claims[number]
            claim.acknowledged, claim.checksum = count, checksum
        elif kind == messages.STATUS:
            self._take_status(*items)
        elif kind == messages.PRODUCER:
            number, stream = items
            self.claims[number] = ProducerClaim(stream)
        elif kind == messages.OPENED:
            self.opened.append(items[0])
            self._before = {}
            self._since = self._monotonic()
        elif kind == messages.STOPPED:
            self.stopped = items[0]
            self.end_life()
        elif kind == messages.CLOSED:
            self.is_closed = True

    def _take_status(self, status: dict[str, Any], append_us: bytes, tail_us: bytes) -> None:
        self.status = status
        self.append_latencies.add(unpack_latencies(append_us))
        self.tail_latencies.add(unpack_latencies(tail_us))
        # Counters begin anew with each life.
        for name in ("rotations", "commits", "appended_bytes", "tier_reads"):
            grown = status[name] - self._before.get(name, 0)
            setattr(self, name, getattr(self, name) + grown)
            self._before[name] = status[name]
