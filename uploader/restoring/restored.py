"""What a restore tells: how far it is, and what it has made. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far a restore is."""

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
    """Whether it is the log that lies at ``url``: opened with ``tier=CloudTier(url)`` it goes on shipping
    there. Otherwise it is a log of its own, which may be shipped to another place."""
    head: int
    limit: int
    """The records of ``[head, limit)`` were restored."""
    resumed_at: int
    """What lies below was restored by an earlier call that was interrupted; normally the head."""
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
    """Streams that the log knows again, from its records and from its table of streams."""
