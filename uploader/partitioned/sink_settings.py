"""SinkSettings: how rows are staged and published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from uploader.manifests.roots import Layout
from walstore.errors import InvalidSettingsError

FRAGMENT_BYTES: Final = 8 << 20
"""Size at which fragments are cut unless it is told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Options of staging and publishing; every one has a default."""

    layout: Layout | None = None
    """Layout of logs that do not exist yet; None is ``swap``. A log that exists keeps its own."""
    fragment_bytes: int = FRAGMENT_BYTES
    """Size of the records at which a fragment is cut."""
    buffer_bytes: int = 64 << 20
    """Memory that a task takes for records of all logs together before it cuts the largest part early."""
    max_in_flight: int = 3
    """Fragments that a task encodes or puts at a time."""
    max_record_bytes: int = 16 << 20
    """Longer values are refused."""
    max_timestamp_lead_seconds: float = 86_400.0
    """How far ahead of the task's clock a record's time may be."""
    parallel_logs: int = 8
    """Logs that the driver publishes to at a time; each takes the memory of two fragments or three."""
    max_moves: int = 100
    """How often other writers of a log may come between before publishing gives up; see
    ``Committer.commit``."""
    patience_seconds: float = 60.0
    """How long a store may fulfil nothing before the driver gives up."""

    def __post_init__(self) -> None:
        """Check the ranges; InvalidSettingsError."""
        for name in ("fragment_bytes", "buffer_bytes", "max_in_flight", "parallel_logs"):
            if getattr(self, name) < 1:
                raise InvalidSettingsError(f"{name} must be at least 1, not {getattr(self, name)}")
