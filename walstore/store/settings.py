"""Settings of a store: what its logs share. Settings of the logs themselves are in ``settings.py``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from walstore.errors import InvalidSettingsError
from walstore.settings import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What the logs of a store share. Sizes are bytes."""

    cache_bytes: int = 128 * MIB
    """Most bytes of recent batches that all logs keep in memory together; each log is bounded by its own
    ``cache_bytes`` besides. The log used longest ago gives up its oldest first. 0 keeps none."""

    channel_bytes: int = 256 * MIB
    """Most bytes that all logs have accepted and not yet on disk; each log is bounded by its own
    ``channel_bytes`` besides. Beyond it ``append`` waits, in turn with the other logs, and
    ``append_nowait`` raises :class:`WouldBlock`. 1 MiB or more. A group larger than this is accepted
    while nothing else is."""

    writer_threads: int = 8
    """Threads that write and sync, shared by all logs, one commit of a log at a time. 1 to 256."""

    reader_threads: int = 4
    """Threads that read files, shared by all logs, at most two at a time for one log. 1 to 256."""

    max_open_logs: int = 256
    """Most logs that have their files open, two descriptors each, beside those that are being used at
    the moment. The one used longest ago is parked: its files are closed until its next append. 1 or
    more."""

    max_concurrent_opens: int = 16
    """Most logs that are being opened or closed at the same time; others wait in turn. 1 or more."""

    def __post_init__(self) -> None:
        _between("cache_bytes", self.cache_bytes, 0, None)
        _between("channel_bytes", self.channel_bytes, MIB, None)
        _between("writer_threads", self.writer_threads, 1, 256)
        _between("reader_threads", self.reader_threads, 1, 256)
        _between("max_open_logs", self.max_open_logs, 1, None)
        _between("max_concurrent_opens", self.max_concurrent_opens, 1, None)

    def replace(self, **changes: int) -> StoreSettings:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


def _between(name: str, value: int, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSettingsError(f"{name} must be a whole number, not {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidSettingsError(f"{name} must be {bounds}, not {value!r}")
