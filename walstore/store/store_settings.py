"""Settings of a store: what its logs share. Those of the logs themselves are in ``core/settings.py``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from walstore.core.validation.fields import MIB, check_fields, described, size, whole


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What the logs of a store share. Sizes are bytes.

    Values are checked here, by name: InvalidSettingsError, which is a ValueError too.
    """

    cache_bytes: int = size(
        128 * MIB,
        """Maximum bytes of recent batches that all logs together keep in memory; each log is also
        bounded by its own cache_bytes. The least recently used log drops its oldest first. 0 keeps
        none.""",
    )

    channel_bytes: int = size(
        256 * MIB,
        """Maximum bytes that all logs together have accepted and not yet on disk; each log is also
        bounded by its own channel_bytes. Above it 'append' waits, in turn with the other logs, and
        'append_nowait' raises WouldBlock. A group larger than this is accepted while nothing else is
        pending.""",
        low=MIB,
    )

    writer_threads: int = whole(
        8,
        "Threads that write and sync, shared by all logs, one commit of a log at a time.",
        low=1,
        high=256,
    )

    reader_threads: int = whole(
        4,
        "Threads that read files, shared by all logs, at most two at a time for one log.",
        low=1,
        high=256,
    )

    max_open_logs: int = whole(
        256,
        """Maximum number of logs with open files, two descriptors each, not counting those in use at
        the moment. The least recently used one is parked: its files are closed until its next
        append.""",
        low=1,
    )

    max_concurrent_opens: int = whole(
        16,
        "Maximum number of logs being opened or closed at the same time; others wait in turn.",
        low=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def replace(self, **changes: int) -> StoreSettings:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)
