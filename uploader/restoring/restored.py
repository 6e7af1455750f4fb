"""What a restore reports: its progress and its result. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Progress of a restore."""

    position: int
    """Every offset below it is in the directory."""
    head: int
    """First offset to be restored."""
    limit: int
    """Offset after the last one to be restored."""
    fragment_bytes: int
    """Bytes fetched so far, by this call."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has made."""

    path: Path
    url: str
    """Where from, without credentials."""
    log_id: str
    """Identity of the log in the directory, in hex."""
    owns_prefix: bool
    """Whether it is the log at ``url``: opened with ``tier=CloudTier(url)`` it continues to ship there.
    Otherwise it is a separate log, which may be shipped to another place."""
    head: int
    limit: int
    """The records of ``[head, limit)`` were restored."""
    resumed_at: int
    """An earlier call that was interrupted restored the records below; normally the head."""
    fragments: int
    """Fragments read by this call."""
    fragment_bytes: int
    """Their length."""
    segments: int
    size_bytes: int
    """Bytes of the segments."""
    adopted_fragments: int
    """Fragments that no manifest had named, and that were published first."""
    streams: int
    """Streams that were restored, from the log's records and from its table of streams."""
