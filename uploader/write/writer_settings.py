"""Settings of what writes to a store, a local log's uploader or a CloudWriter; and the latter's statistics.

Values only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from uploader.format.rollup import RollUpSettings
from walstore.core.runtime.metric import Labels, Metric, MetricKind, figure
from walstore.core.validation.fields import (
    KIB,
    MIB,
    check_fields,
    described,
    flag,
    nested,
    seconds,
    size,
    whole,
)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """How a log is shipped. Sizes are bytes, times are seconds."""

    fragment_bytes: int = size(
        8 * MIB,
        "Size of batches at which a fragment is cut, before compression.",
        low=4 * KIB,
        high=512 * MIB,
    )

    fragment_age_seconds: float = seconds(
        1.0,
        """Longest time that a durable record waits for more before it is shipped. Sealing a segment, or a
        caller that waits for the cloud, ships at once.""",
    )

    max_in_flight: int = whole(
        8,
        """Fragments built, put or waiting to be named at the same time; memory is about this many times
        fragment_bytes. How many of them are put at once follows what the uplink takes, and see
        parallel_puts.""",
        low=1,
        high=64,
    )

    parallel_puts: bool = flag(
        """Whether fragments of a log in the layout 'swap' are put in parallel. Those of a log in the
        layout 'chain' always are. Without it the next fragment is put once the one before is there.
        So whatever a crash leaves continues the log, and programs of wal3 may open it for writing
        at any time. With it more of a fast uplink is used when full fragments pile up; records that
        a caller waits for are not sooner. But after a crash there may be fragments behind a hole. Ours
        deal with that; a program of wal3 that opens the log for writing then links what does not
        continue it, and with that destroys the log. So set it only where no such program ever
        does.""",
        default=False,
    )

    interval_seconds: float = seconds(
        0.04,
        """Least time from one fragment to the next while some are under way and callers wait for the cloud,
        unless one is full. Less lets the chain of manifests answer sooner, with more requests; a single
        manifest needs one fragment for each swap anyway.""",
    )

    encoder_processes: int = whole(
        0,
        """Processes that encode and hash fragments of 1 MiB and more, shared by all logs of the process.
        They are started for the first such fragment, take some 100 MiB each and have a lower priority.
        0 encodes on threads: then appends wait for the interpreter while much is shipped. One ships what
        an application appends at full speed; more of them only a backlog, on as many cores.""",
        low=0,
        high=64,
    )

    roll_up: RollUpSettings = nested(  # noqa: RUF009 - it makes a field
        RollUpSettings, "How the manifest is kept short."
    )

    drain_seconds: float = seconds(
        30.0,
        """How long closing the log waits for a store that fulfils no request; 0 does not wait for the cloud
        at all. Records that are not shipped by then stay on disk for the next opening.""",
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """How a log is written straight to a store. Sizes are bytes, times are seconds."""

    fragment_bytes: int = size(
        8 * MIB,
        "Size of records at which a fragment is cut, before compression.",
        low=4 * KIB,
        high=512 * MIB,
    )

    interval_seconds: float = seconds(
        0.04,
        """Least time from one fragment to the next while some are under way, unless one is full. A first
        record never waits. With a single swapped manifest fragments are cut less often than this, just in
        time for the next swap.""",
    )

    max_in_flight: int = whole(
        16,
        """Fragments built, put or waiting to be named at the same time. After another writer was met it is 1
        for a while. How many of them are put at once follows what the uplink takes, and see
        parallel_puts.""",
        low=1,
        high=64,
    )

    parallel_puts: bool = flag(
        """Whether fragments of a log in the layout 'swap' are put in parallel: more of a fast uplink is
        used when full fragments pile up; a single append is not sooner. As for
        UploadSettings.parallel_puts, there may then be fragments behind a hole, here also behind another
        writer. So set it only where no program of wal3 ever opens the log for writing.""",
        default=False,
    )

    pending_bytes: int = size(
        64 * MIB,
        """Records accepted and not yet committed; beyond it appends wait. It bounds the memory of records,
        to which come the encoded fragments under way. An atomic group may have as much.""",
        low=64 * KIB,
    )

    pending_records: int = whole(1_000_000, "The same, counted in records.", low=1)

    max_record_bytes: int = size(16 * MIB, "Larger values are refused.", low=1)

    contention_attempts: int = whole(
        8,
        """How often a record is appended again, behind what another writer appended instead, before its
        append raises a retriable ContentionError. 0: at once, as wal3 does.""",
    )

    roll_up: RollUpSettings = nested(  # noqa: RUF009 - it makes a field
        RollUpSettings, "How the manifest is kept short."
    )

    patience_seconds: float = seconds(
        30.0,
        """How long appends under way, or closing, wait for a store that fulfils no request; then they raise,
        saying whether their records may still be committed.""",
        above=True,
    )

    max_timestamp_lead_seconds: float = seconds(
        86_400.0, "How far ahead of the clock a caller's timestamp may be."
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """State of a writer at one moment. Counters count since it was opened."""

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
    """Fragments made again behind another writer's."""
    unknown_records: int
    """Records whose append raised OutcomeUnknownError."""
    put_seconds: float
    """Recent time to build and put a fragment: the median of a few; 0 before the first."""
    publish_seconds: float
    """Recent time to name it; 0 before the first."""


def _total(name: str, text: str) -> Metric:
    return figure("writer", name, text, _read(name))


def _now(name: str, text: str) -> Metric:
    return figure("writer", name, text, _read(name), kind=MetricKind.GAUGE)


def _read(name: str) -> Callable[[Any], dict[Labels, float]]:
    get = attrgetter(name)
    return lambda writer: {(): get(writer.statistics())}


WRITER_METRICS: Final = (
    _now("head", "First offset that the manifest holds."),
    _now("tail", "Offset after the last one that the manifest holds."),
    _now("waiting_bytes", "Bytes of records accepted and not yet committed."),
    _now("waiting_records", "Records accepted and not yet committed."),
    _now("blocked_appends", "Appends that wait for room."),
    _now("fragments_under_way", "Fragments cut and not yet committed."),
    _total("committed_records", "Records of this writer that are in the log."),
    _total("committed_bytes", "Their bytes."),
    _total("put_fragments", "Fragments put."),
    _total("put_bytes", "Their length as stored."),
    _total("adopted_fragments", "Fragments of others that this writer published."),
    _total("contentions", "How often another writer was quicker."),
    _total("reappended_fragments", "Fragments made again behind another writer's."),
    _total("unknown_records", "Records whose append raised OutcomeUnknownError."),
    _now("put_seconds", "Recent time to build and put a fragment: the median of a few."),
    _now("publish_seconds", "Recent time to name it: the median of a few."),
)
"""What is shown of a CloudWriter."""
