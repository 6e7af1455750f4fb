"""Settings of a log: plain values, validated once, independent of the components it runs on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from walstore.errors import InvalidSettingsError
from walstore.records import AnyDurability, Durability
from walstore.validation.fields import (
    GIB,
    KIB,
    MIB,
    Rule,
    check_fields,
    choice,
    described,
    optional_seconds,
    optional_size,
    seconds,
    size,
    whole,
)

__all__ = ["GIB", "KIB", "MIB", "Settings", "parse_durability"]

_LEVEL = Rule(
    "Level an append waits for unless it names its own. 'replicated' is reserved for a later version.",
    "",
    words=tuple(level.value for level in Durability),
)

if TYPE_CHECKING:

    class DefaultLevel:
        """Type of a field that is given as a member or a word and read as a member."""

        def __get__(self, instance: object, owner: type | None = None) -> Durability: ...

        def __set__(self, instance: object, value: AnyDurability) -> None: ...


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a log behaves. Sizes are bytes, times are seconds; ``None`` switches a limit off.

    Values are checked here, by name: InvalidSettingsError, which is a ValueError too.
    """

    durability: DefaultLevel = choice(Durability.DISK, _LEVEL)  # noqa: RUF009 - it makes a field

    sync: Literal["batch", "os"] | float = choice(
        "batch",
        Rule(
            """When what was written is synced. 'batch': with every write. A number of seconds: at most
            that long after it was written, and at once if an append waits for level 'disk'; a crash of
            the machine may lose the last seconds of appends at level 'memory'. 'os': only for appends
            that wait for 'disk', at rotation and on close; readers see what is written but not synced,
            and a crash of the machine may take it back (a crash of the process does not).""",
            "seconds",
            high=3600,
            above=True,
            words=("batch", "os"),
        ),
    )

    linger_seconds: float = seconds(
        0.0,
        """How long a write waits for more records once there is one, to make fewer and larger batches.
        Without it batches still grow with the load, because records gather during each sync.""",
        high=10,
    )

    compression: Literal["zstd"] | None = choice(
        None,
        Rule(
            "Compress batches that become smaller by it. Needs the extra 'zstd'.",
            "",
            words=("zstd",),
            optional=True,
        ),
    )

    segment_bytes: int = size(
        64 * MIB,
        """Size at which the active segment is sealed and the next begins. One batch is never split, so a
        file may exceed it by one batch. Also the space reserved ahead on disk.""",
        low=64 * KIB,
        high=2 * GIB,
    )

    segment_age_seconds: float | None = optional_seconds(
        "Age at which a segment that holds records is sealed even if it is small."
    )

    cache_bytes: int = size(
        32 * MIB,
        "Most bytes of recent batches kept in memory for readers near the tail. 0 keeps none.",
    )

    channel_bytes: int = size(
        64 * MIB,
        """Most bytes accepted and not yet on disk; 'append' waits beyond it, 'append_nowait' raises
        WouldBlock. At least max_record_bytes.""",
        low=1,
        high=1 * GIB,
    )

    transaction_memory_bytes: int = size(
        8 * MIB,
        """Size up to which a transaction is kept in memory and committed as one batch; a larger one goes
        to a file of its own. Never more than channel_bytes is kept in memory.""",
        low=1,
    )

    producer_window: int = whole(
        64,
        """How many appends of each idempotent producer are remembered, so that repeating one of them
        returns its offset instead of appending again.""",
        low=1,
        high=10_000,
    )

    max_producers: int = whole(
        1024,
        """How many idempotent producers are remembered; the one idle longest is forgotten first. Together
        with registers and streams they may take 16 MiB; then LimitExceededError.""",
        low=1,
    )

    channel_records: int = whole(1_000_000, "Most records accepted and not yet on disk.", low=1)

    max_record_bytes: int = size(
        16 * MIB,
        "Largest record: value, key, stream name and headers together.",
        low=1,
        high=512 * MIB,
    )

    batch_bytes: int = size(
        4 * MIB,
        """Size at which a batch is closed and the next begins; the unit of readers' memory. An atomic
        group larger than this makes a batch of its own.""",
        low=4 * KIB,
        high=256 * MIB,
    )

    checkpoint_bytes: int = size(
        64 * MIB,
        "Bytes appended between checkpoints, hence the most that recovery re-reads.",
        low=64 * KIB,
    )

    read_ahead_bytes: int = size(
        1 * MIB,
        "Bytes a catch-up reader asks of a segment at once.",
        low=4 * KIB,
        high=64 * MIB,
    )

    retention_bytes: int | None = optional_size(
        """Sealed segments are deleted from local disk, oldest first, while together they exceed this; with
        a cloud tier only those that are uploaded. None keeps all."""
    )

    retention_seconds: float | None = optional_seconds(
        """Sealed segments whose last record is older are deleted from local disk; with a cloud tier only
        those that are uploaded. None keeps all."""
    )

    min_free_bytes: int = size(
        64 * MIB,
        """Appends are refused with DiskFullError while the disk has less space than this, so that it never
        fills; they work again once there is more. 0 switches this off.""",
    )

    max_timestamp_lead_seconds: float = seconds(
        86_400.0,
        """How far ahead of this machine's clock a caller's 'timestamp_us' may be. Timestamps never go back
        within a log, so one wild value would otherwise date every later record.""",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "durability", Durability(self.durability))
        if self.durability is Durability.REPLICATED:
            raise InvalidSettingsError("durability 'replicated' is not available yet")
        if self.channel_bytes < self.max_record_bytes:
            raise InvalidSettingsError(
                f"channel_bytes must be at least max_record_bytes, which is {self.max_record_bytes}, "
                f"not {self.channel_bytes}"
            )

    def replace(self, **changes: object) -> Settings:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def parse_durability(value: Durability | str) -> Durability:
    """Return the level named by ``value``; InvalidSettingsError for any other word."""
    try:
        return Durability(value)
    except ValueError:
        names = ", ".join(map(repr, _LEVEL.words))
        raise InvalidSettingsError(f"durability must be one of {names}, not {value!r}") from None
