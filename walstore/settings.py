"""Settings of a log: plain values, validated once, independent of the components it runs on."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from walstore.errors import InvalidSettingsError
from walstore.records import Durability

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a log behaves. Sizes are bytes, times are seconds; ``None`` switches a limit off."""

    durability: Durability = Durability.DISK
    """Level an append waits for unless it names its own: ``memory``, ``disk`` or ``cloud``."""

    sync: Literal["batch", "os"] | float = "batch"
    """When what was written is synced. ``"batch"``: with every write. A number of seconds: at most that
    long after it was written, and at once if an append waits for ``disk``; a crash of the machine may
    lose the last seconds of appends at level ``memory``. ``"os"``: only for appends that wait for
    ``disk``, at rotation and on close; readers see what is written but not synced, and a crash of the
    machine may take it back (a crash of the process does not). More than 0 and at most 3600."""

    linger_seconds: float = 0.0
    """How long a write waits for more records once there is one, to make fewer and larger batches.
    0 to 10. Without it batches still grow with the load, because records gather during each sync."""

    compression: Literal["zstd"] | None = None
    """Compress batches that become smaller by it. Needs the extra ``zstd``."""

    segment_bytes: int = 64 * MIB
    """Size at which the active segment is sealed and the next begins. 64 KiB to 2 GiB. One batch is
    never split, so a file may exceed it by one batch. Also the space reserved ahead on disk."""

    segment_age_seconds: float | None = None
    """Age at which a segment that holds records is sealed even if it is small. More than 0."""

    cache_bytes: int = 32 * MIB
    """Most bytes of recent batches kept in memory for readers near the tail. 0 keeps none."""

    channel_bytes: int = 64 * MIB
    """Most bytes accepted and not yet on disk; ``append`` waits beyond it, ``append_nowait`` raises
    :class:`WouldBlock`. At least ``max_record_bytes``; at most 1 GiB."""

    transaction_memory_bytes: int = 8 * MIB
    """Size up to which a transaction is kept in memory and committed as one batch; a larger one goes to
    a file of its own. 1 byte or more; never more than ``channel_bytes`` is kept in memory."""

    producer_window: int = 64
    """How many appends of each idempotent producer are remembered, so that repeating one of them returns
    its offset instead of appending again. 1 to 10 000."""

    max_producers: int = 1024
    """How many idempotent producers are remembered; the one idle longest is forgotten first. 1 or more."""

    channel_records: int = 1_000_000
    """Most records accepted and not yet on disk. 1 or more."""

    max_record_bytes: int = 16 * MIB
    """Largest record: value, key, stream name and headers together. 1 byte to 512 MiB."""

    batch_bytes: int = 4 * MIB
    """Size at which a batch is closed and the next begins; the unit of readers' memory. 4 KiB to
    256 MiB. An atomic group larger than this makes a batch of its own."""

    checkpoint_bytes: int = 64 * MIB
    """Bytes appended between checkpoints, hence the most that recovery re-reads. 64 KiB or more."""

    read_ahead_bytes: int = 1 * MIB
    """Bytes a catch-up reader asks of a segment at once. 4 KiB to 64 MiB."""

    retention_bytes: int | None = None
    """Sealed segments are deleted from local disk, oldest first, while together they exceed this; with a
    cloud tier only those that are uploaded. ``None`` keeps all."""

    retention_seconds: float | None = None
    """Sealed segments whose last record is older are deleted from local disk; with a cloud tier only
    those that are uploaded. ``None`` keeps all. More than 0."""

    min_free_bytes: int = 64 * MIB
    """Appends are refused with :class:`DiskFullError` while the disk has less space than this, so that it
    never fills; they work again once there is more. 0 switches this off."""

    max_timestamp_lead_seconds: float = 86_400.0
    """How far ahead of this machine's clock a caller's ``timestamp_us`` may be. 0 or more. Timestamps
    never go back within a log, so one wild value would otherwise date every later record."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "durability", parse_durability(self.durability))
        if self.durability is Durability.REPLICATED:
            raise InvalidSettingsError("durability 'replicated' is not available yet")
        _between("segment_bytes", self.segment_bytes, 64 * KIB, 2 * GIB)
        _between("max_record_bytes", self.max_record_bytes, 1, 512 * MIB)
        _between("channel_bytes", self.channel_bytes, self.max_record_bytes, 1 * GIB)
        _between("channel_records", self.channel_records, 1, None)
        _between("transaction_memory_bytes", self.transaction_memory_bytes, 1, None)
        _between("producer_window", self.producer_window, 1, 10_000)
        _between("max_producers", self.max_producers, 1, None)
        _between("linger_seconds", self.linger_seconds, 0, 10)
        _between("min_free_bytes", self.min_free_bytes, 0, None)
        self._check_choices()
        _between("batch_bytes", self.batch_bytes, 4 * KIB, 256 * MIB)
        _between("cache_bytes", self.cache_bytes, 0, None)
        _between("checkpoint_bytes", self.checkpoint_bytes, 64 * KIB, None)
        _between("read_ahead_bytes", self.read_ahead_bytes, 4 * KIB, 64 * MIB)
        _between("max_timestamp_lead_seconds", self.max_timestamp_lead_seconds, 0, None)
        if self.segment_age_seconds is not None and not self.segment_age_seconds > 0:
            raise InvalidSettingsError(
                f"segment_age_seconds must be more than 0 or None, not {self.segment_age_seconds!r}"
            )
        if self.retention_bytes is not None:
            _between("retention_bytes", self.retention_bytes, 0, None)

    def _check_choices(self) -> None:
        sync = self.sync
        is_seconds = isinstance(sync, int | float) and not isinstance(sync, bool)
        if sync not in ("batch", "os") and not (is_seconds and 0 < float(sync) <= 3600):
            raise InvalidSettingsError(
                f"sync must be 'batch', 'os' or up to 3600 seconds, not {sync!r}"
            )
        if self.compression not in (None, "zstd"):
            raise InvalidSettingsError(
                f"compression must be None or 'zstd', not {self.compression!r}"
            )
        if self.retention_seconds is not None and not self.retention_seconds > 0:
            raise InvalidSettingsError(
                f"retention_seconds must be more than 0 or None, not {self.retention_seconds!r}"
            )

    def replace(self, **changes: object) -> Settings:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def parse_durability(value: Durability | str) -> Durability:
    """Return the level named by ``value``; raise InvalidSettingsError for any other word."""
    try:
        return Durability(value)
    except ValueError:
        names = ", ".join(repr(str(level)) for level in Durability)
        raise InvalidSettingsError(f"durability must be one of {names}, not {value!r}") from None


def _between(name: str, value: Any, low: float, high: float | None) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise InvalidSettingsError(f"{name} must be a number, not {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidSettingsError(f"{name} must be {bounds}, not {value!r}")
