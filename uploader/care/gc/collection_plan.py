"""Settings, plans and reports of a garbage collection. Pure values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from uploader.format.cloud_cursor import CloudCursor
from uploader.format.garbage import Garbage
from walstore.core.validation.fields import (
    CENTURY_SECONDS,
    Rule,
    check_fields,
    choice,
    described,
    number,
    seconds,
    size,
    whole,
)

Phase = Literal["drop", "wait", "delete", "sweep"]
Kind = Literal["fragment", "snapshot"]


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """What a collector keeps, and how carefully it removes the rest. Sizes are bytes, times seconds."""

    interval_seconds: float = seconds(
        3600.0,
        """How long what was dropped from the manifest is still there for readers of older manifests. Longer
        than any reader holds on to a manifest, than any program takes for one step, and than clocks differ
        (docs/collection.md).""",
        high=CENTURY_SECONDS,
    )

    keep_bytes: int = size(
        0,
        "Newest fragments that are kept, whatever the cursors say, until they have so many bytes.",
    )

    keep_seconds: float = seconds(
        0.0,
        "Age of records, by their timestamps, up to which they are kept, whatever the cursors say.",
    )

    max_fragments: int = whole(
        10_000,
        "Most fragments that one collection takes; the rest is left to the next.",
        low=1,
    )

    max_drop_fraction: float = number(
        0.95,
        """Part of the log's bytes that a collection may take; one that would take more is refused. A
        safeguard against cursors that stand where they should not. 1 allows everything.""",
        high=1,
        above=True,
    )

    delete_batch: int = whole(100, "Objects that are deleted with one request.", low=1, high=1000)

    delete_pause_seconds: float = seconds(0.1, "Time between two such requests.")

    max_wait_seconds: float | None = choice(
        None,
        Rule(
            """Longest time that one call waits for interval_seconds to pass; beyond it the call returns, and
            a later one deletes. None: as long as it takes. 0 suits programs that are started now and
            then.""",
            "seconds",
            optional=True,
        ),
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Cutoff:
    """From where on the log is kept, and why."""

    offset: int
    """First offset to keep."""
    held_by: str
    """What keeps it: ``cursor NAME``, ``write NAME`` (one that is not finished), ``keep_bytes``,
    ``keep_seconds``, ``no cursor``, ``end of the log``, ``announcement``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a collection would do. Nothing is changed by making one."""

    garbage: Garbage
    """What would be removed; empty if nothing would."""
    etag: str | None
    """Names what ``gc/GARBAGE`` said when this was planned; None if there was no such object."""
    is_pending: bool
    """Whether another collection announced it and did not finish; this one continues it."""
    is_dropped: bool
    """Whether the manifest has dropped it already, so that only deleting is left."""
    due_us: int | None
    """When it may be deleted at the earliest, as far as that is known: wall-clock microseconds."""
    cutoff: Cutoff
    """Of a pending collection: where it ends."""
    cursors: tuple[CloudCursor, ...]
    """All cursors there are, expired pins included; not the holds of writes."""
    head: int
    """First offset of the log as it is."""
    tail: int
    """Offset after the log's last record."""
    live_bytes: int
    """Length of the log's fragments as it is."""
    drop_bytes: int
    """Length of those that would be dropped from the manifest."""
    has_more: bool
    """Whether more could be removed than one collection takes."""
    findings: tuple[str, ...]
    """Why it is refused; empty if it is not."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.garbage.is_empty

    @property
    def records(self) -> int:
        """Records that would be dropped from the manifest."""
        return 0 if self.is_empty else max(0, self.garbage.first_to_keep - self.head)

    @property
    def fragments(self) -> int:
        """Fragments that would be deleted."""
        return self.garbage.limit_seq_no - self.garbage.start_seq_no


@dataclass(frozen=True, slots=True)
class Deleted:
    """One object that a collection removed, and why."""

    key: str
    kind: Kind
    reason: str
    at_us: int
    """When, in wall-clock microseconds."""

    def to_line(self) -> str:
        """Return a line of JSON, without its end."""
        fields = {"at_us": self.at_us, "key": self.key, "kind": self.kind, "reason": self.reason}
        return json.dumps(fields)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a collection is."""

    phase: Phase
    done: float
    """Objects; seconds while it waits."""
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection did."""

    head: int
    """First offset of the log afterwards."""
    cutoff: Cutoff
    """From where on the log had to be kept."""
    deleted: tuple[Deleted, ...] = ()
    """What was removed, in this order; fragments that were gone already are listed too."""
    due_us: int | None = None
    """If it did not wait until it could delete: when a later call may."""
    is_superseded: bool = False
    """Whether another collector took over, and deletes or has deleted."""


ProgressCallback: TypeAlias = Callable[[Progress], None]
AuditCallback: TypeAlias = Callable[[str], None]
"""Takes a line of JSON for each object removed, as soon as it is: at_us, key, kind, reason."""
