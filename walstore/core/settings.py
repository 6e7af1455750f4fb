"""Settings of a log: plain values, validated once, independent of the log's components."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from walstore.core.validation.fields import (
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
from walstore.errors import InvalidSettingsError
from walstore.records import AnyDurability, Durability

__all__ = ["GIB", "KIB", "MIB", "Settings", "parse_durability"]

_LEVEL = Rule(
    "Level an append waits for unless the call names one. With 'replication=' it is 'replicated' instead of "
    "'disk'.",
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
    """How a log behaves. Sizes are bytes, times are seconds; ``None`` disables a limit.

    Values are checked here, by name: InvalidSettingsError, which is a ValueError too.
    """

    durability: DefaultLevel = choice(Durability.DISK, _LEVEL)  # noqa: RUF009 - it makes a field

    sync: Literal["batch", "os"] | float = choice(
        "batch",
        Rule(
            """When written records are synced. 'batch': with every write. A number of seconds: at most
            that long after the write, and at once if an append waits for level 'disk'; a crash of the
            machine may lose the last seconds of appends at level 'memory'. 'os': only for appends that
            wait for 'disk', at rotation and on close; readers see records that are written but not
            synced, and a crash of the machine may lose them (a crash of the process does not).""",
            "seconds",
            high=3600,
            above=True,
            words=("batch", "os"),
        ),
    )

    linger_seconds: float = seconds(
        0.0,
        """How long a write waits for more records after the first, to make fewer and larger batches.
        Without it batches still grow with the load, because records accumulate during each sync.""",
        high=10,
    )

    compression: Literal["zstd"] | None = choice(
        None,
        Rule(
            "Compress batches where that makes them smaller. Needs the extra 'zstd'.",
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
        """Maximum bytes of recent batches kept in memory for readers near the tail, with what Python needs
        for them: some 130 bytes a batch. 0 keeps none.""",
    )

    channel_bytes: int = size(
        64 * MIB,
        """Maximum bytes accepted and not yet on disk, with what Python needs for them: 56 bytes a record,
        and 48 for each of key, stream, time and headers. Above it 'append' waits and 'append_nowait'
        raises WouldBlock. At least max_record_bytes.""",
        low=1,
        high=1 * GIB,
    )

    transaction_memory_bytes: int = size(
        8 * MIB,
        """Size, counted as for channel_bytes, up to which a transaction is kept in memory and committed as
        one batch; a larger one is written to a file of its own. At most channel_bytes are kept in memory.""",
        low=1,
    )

    producer_window: int = whole(
        64,
        """Number of appends remembered for each idempotent producer; repeating one of them returns its
        offset instead of appending again.""",
        low=1,
        high=10_000,
    )

    max_producers: int = whole(
        1024,
        """Number of idempotent producers remembered; the one idle longest is forgotten first. Together
        with registers and streams they may take 16 MiB; then LimitExceededError.""",
        low=1,
    )

    channel_records: int = whole(1_000_000, "Maximum records accepted and not yet on disk.", low=1)

    max_record_bytes: int = size(
        16 * MIB,
        "Maximum size of a record: value, key, stream name and headers together.",
        low=1,
        high=512 * MIB,
    )

    batch_bytes: int = size(
        4 * MIB,
        """Size at which a batch is closed and the next begins; the unit of readers' memory. A larger
        atomic group becomes a batch of its own.""",
        low=4 * KIB,
        high=256 * MIB,
    )

    checkpoint_bytes: int = size(
        64 * MIB,
        "Bytes appended between checkpoints, hence the maximum that recovery re-reads.",
        low=64 * KIB,
    )

    read_ahead_bytes: int = size(
        1 * MIB,
        "Bytes that a catch-up reader reads from a segment at once.",
        low=4 * KIB,
        high=64 * MIB,
    )

    retention_bytes: int | None = optional_size(
        """Total size above which sealed segments are deleted from local disk, oldest first; with a
        cloud tier only uploaded ones. None keeps all."""
    )

    retention_seconds: float | None = optional_seconds(
        """Age of its last record above which a sealed segment is deleted from local disk; with a cloud tier
        only if it is uploaded. None keeps all."""
    )

    min_free_bytes: int = size(
        64 * MIB,
        """Appends are refused with DiskFullError while the disk has less free space, so that it never
        fills; they work again once there is more. 0 disables this.""",
    )

    max_append_bytes_per_second: int | None = optional_size(
        """Bytes that the log accepts in a second, and 8 for each record; above it 'append' waits, in
        turn, and 'append_nowait' raises WouldBlock. What was not used is kept for one second, and an append
        may be larger than the rate: the next one waits the longer. None for no limit.""",
        low=1,
    )

    max_timestamp_lead_seconds: float = seconds(
        86_400.0,
        """How far ahead of this machine's clock a caller's 'timestamp_us' may be. Timestamps never go back
        within a log, so one wrong value would otherwise apply to every later record.""",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "durability", Durability(self.durability))
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
