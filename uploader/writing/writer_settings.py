"""Settings and statistics of a :class:`uploader.cloud_writer.CloudWriter`. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from uploader.manifests.rollup import RollUpSettings
from walstore.errors import InvalidSettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a log is written straight to a store. Sizes are bytes, times are seconds."""

    fragment_bytes: int = 8 << 20
    """Size of records at which a fragment is cut, before compression. 4 KiB to 512 MiB."""

    interval_seconds: float = 0.02
    """Least time from one fragment to the next while some are under way, unless one is full. 0 or more.
    A first record never waits. With a single swapped manifest fragments are cut less often than this,
    just in time for the next swap."""

    max_in_flight: int = 16
    """Fragments built, put or waiting to be named at the same time. 1 to 64. After another writer was met it
    is 1 for a while. How many of them are put at once follows what the uplink takes, and see
    :attr:`parallel_puts`."""

    parallel_puts: bool = False
    """Whether fragments of a log in the layout ``"swap"`` are put side by side. A log in the layout
    ``"chain"`` always does so.

    Without it the next fragment is put once the one before is there. So whatever a crash leaves continues the
    log, and programs of wal3 may write to it at any time. With it more of a fast uplink is used when full
    fragments pile up; a single append is not sooner. But after a crash, or behind another writer, fragments
    may lie behind a hole. Ours deal with that; a program of wal3 that opens the log for writing then
    links what does not continue it, and with that destroys the log. So set it only where no such
    program ever does."""

    pending_bytes: int = 64 << 20
    """Records accepted and not yet committed; beyond it appends wait. It bounds the memory of records,
    to which come the encoded fragments under way. An atomic group may have as much. 64 KiB or more."""

    pending_records: int = 1_000_000
    """The same, counted in records. 1 or more."""

    max_record_bytes: int = 16 << 20
    """Larger values are refused. 1 or more."""

    contention_attempts: int = 8
    """How often a record is appended anew, behind what another writer appended instead, before its append
    raises a retriable ContentionError. 0: at once, as wal3 does."""

    roll_up: RollUpSettings = field(default_factory=RollUpSettings)
    """How the manifest is kept short."""

    patience_seconds: float = 30.0
    """How long appends under way, or closing, wait for a store that fulfils no request; then they raise,
    saying whether their records may still be committed. More than 0."""

    max_timestamp_lead_seconds: float = 86_400.0
    """How far ahead of the clock a caller's timestamp may be. 0 or more."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 4096 <= self.fragment_bytes <= 512 << 20:
            raise InvalidSettingsError(
                f"fragment_bytes must be 4 KiB to 512 MiB, not {self.fragment_bytes}"
            )
        if not 1 <= self.max_in_flight <= 64:
            raise InvalidSettingsError(f"max_in_flight must be 1 to 64, not {self.max_in_flight}")
        if self.pending_bytes < 64 << 10:
            raise InvalidSettingsError(
                f"pending_bytes must be at least 64 KiB, not {self.pending_bytes}"
            )
        if self.max_record_bytes < 1:
            raise InvalidSettingsError(
                f"max_record_bytes must be at least 1, not {self.max_record_bytes}"
            )
        if self.pending_records < 1 or self.contention_attempts < 0:
            raise InvalidSettingsError(
                "pending_records must be at least 1, and contention_attempts not negative"
            )
        if not (self.interval_seconds >= 0 and self.max_timestamp_lead_seconds >= 0):
            raise InvalidSettingsError(
                "interval_seconds and max_timestamp_lead_seconds must not be negative"
            )
        if not self.patience_seconds > 0:
            raise InvalidSettingsError(
                f"patience_seconds must be more than 0, not {self.patience_seconds}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """What a writer looked like at one moment. Counters count since it was opened."""

    head: int
    """First offset that the manifest holds."""
    tail: int
    """Offset after the last one that the manifest holds."""
    waiting_bytes: int
    """Bytes of records accepted and not yet committed."""
    waiting_records: int
    """Records accepted and not yet committed."""
    blocked_appends: int
    """Appends that wait for room."""
    fragments_under_way: int
    """Fragments cut and not yet committed."""
    committed_records: int
    """Records of this writer that are in the log."""
    committed_bytes: int
    """Their bytes."""
    put_fragments: int
    """Fragments put."""
    put_bytes: int
    """Their length as stored."""
    adopted_fragments: int
    """Fragments of others, put and not named by any manifest, that this writer published."""
    contentions: int
    """How often another writer was quicker."""
    reappended_fragments: int
    """Fragments made anew behind another writer's."""
    unknown_records: int
    """Records whose append raised OutcomeUnknownError."""
    put_seconds: float
    """How long building and putting a fragment takes lately: the median of a few; 0 before the first."""
    publish_seconds: float
    """How long naming it takes lately; 0 before the first."""
