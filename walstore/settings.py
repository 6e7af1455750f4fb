"""Settings of a log: plain values, validated once, independent of the components it runs on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

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
    """With a cloud tier: sealed segments that are uploaded are deleted from local disk, oldest first,
    while the sealed segments together exceed this. ``None`` keeps all. 0 keeps none that are uploaded."""

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


def _between(name: str, value: float, low: float, high: float | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSettingsError(f"{name} must be a number, not {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidSettingsError(f"{name} must be {bounds}, not {value!r}")
