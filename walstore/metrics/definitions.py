"""Definitions of the metrics: the adapter exports these, and docs/metrics.md is generated from them.

Names lack the suffix ``_total`` that Prometheus adds to counters; see :attr:`Metric.full_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Any, Final

from walstore.runtime.statistics import Statistics

SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
"""Bounds for durations: finest where disks sync, from 50 µs (flash with a safe cache) to 50 ms (disks)."""

RECORDS: Final = (1, 2, 4, 8, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Bounds for records of one commit."""

BYTES: Final = tuple(1 << bits for bits in range(8, 27, 2))
"""Bounds for bytes of one commit: 256 B to 64 MiB."""

Labels = tuple[str, ...]
"""Values of a metric's own labels, in the order of their names."""
Reader = Callable[[Statistics], Mapping[Labels, float]]


class MetricKind(StrEnum):
    """How a value behaves over time."""

    COUNTER = "counter"
    """Only grows while the log is open."""
    GAUGE = "gauge"
    """Goes up and down."""
    HISTOGRAM = "histogram"
    """Counts samples by size."""


class Scope(StrEnum):
    """What a value is about."""

    LOG = "log"
    """One log, or those with the same label ``log``; removed when they are closed."""
    PROCESS = "process"
    """All logs since the metrics were made, closed ones included; without the label ``log``."""


class Merge(StrEnum):
    """How to merge the values of several logs with the same label."""

    SUM = "sum"
    MAX = "max"
    LEAVE_OUT = "leave out"
    """They are left out: offsets of different logs cannot be added."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A counter or gauge that is read from a log's statistics on demand."""

    name: str
    kind: MetricKind
    help: str
    read: Reader
    labels: tuple[str, ...] = ()
    """Names of labels in addition to ``log``."""
    merge: Merge = Merge.SUM
    scope: Scope = Scope.LOG

    @property
    def full_name(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of all its labels."""
        return self.labels if self.scope is Scope.PROCESS else ("log", *self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class HistogramMetric:
    """A histogram with one sample for each commit or sync."""

    name: str
    help: str
    bounds: Sequence[float]


def _metric(
    kind: MetricKind, name: str, text: str, read: Reader | str = "", **options: Any
) -> Metric:
    """``read`` may be a function, or a field of the statistics; by default the one with this name."""
    reader = read if callable(read) else _field(read or name)
    return Metric(f"walstore_{name}", kind, text, reader, **options)


_counter = partial(_metric, MetricKind.COUNTER)
_gauge = partial(_metric, MetricKind.GAUGE)


def _field(name: str) -> Reader:
    get = attrgetter(name)
    return lambda statistics: {(): get(statistics)}


def _fields(**names: str) -> Reader:
    """Read several fields of the statistics, each by the value of the metric's one label."""
    get = attrgetter(*names.values())
    keys = [(label,) for label in names]
    return lambda statistics: dict(zip(keys, get(statistics), strict=True))


def _by_name(field: str) -> Reader:
    """Read a field of the statistics that contains numbers by name; the name is the metric's one label."""
    get = attrgetter(field)
    return lambda statistics: {(name,): count for name, count in get(statistics).items()}


def _offset(field: str, text: str) -> Metric:
    return _gauge(f"{field}_offset", text, field, merge=Merge.LEAVE_OUT)


HISTOGRAMS: Final = (
    HistogramMetric(
        "walstore_append_seconds",
        "From acceptance to the end of the commit, of the oldest record of each commit.",
        SECONDS,
    ),
    HistogramMetric(
        "walstore_commit_seconds",
        "Laying out, writing and syncing one commit, with the way to the writer thread and back.",
        SECONDS,
    ),
    HistogramMetric(
        "walstore_sync_seconds",
        "One sync of the active segment, as part of a commit or by itself.",
        SECONDS,
    ),
    HistogramMetric("walstore_commit_records", "Records of one commit.", RECORDS),
    HistogramMetric("walstore_commit_bytes", "Bytes of one commit, as written.", BYTES),
)
"""In the order of ``Observation``, which feeds them."""

METRICS: Final = (
    _gauge("logs", "Logs open now.", lambda _: {(): 1}, scope=Scope.PROCESS),
    _counter("openings", "Logs opened.", lambda _: {(): 1}, scope=Scope.PROCESS),
    _counter(
        "recovery_truncations",
        "Openings that cut an unfinished batch off.",
        lambda statistics: {(): int(statistics.recovery_truncated_bytes > 0)},
        scope=Scope.PROCESS,
    ),
    _counter(
        "recovery_truncated_bytes",
        "Bytes of unfinished batches cut off by openings.",
        scope=Scope.PROCESS,
    ),
    _counter(
        "errors",
        "Errors by type: failures of logs and tiers, refused records, failed reads.",
        _by_name("errors"),
        labels=("type",),
        scope=Scope.PROCESS,
    ),
    _gauge(
        "failed",
        "1 if the log has failed and must be opened again, else 0.",
        lambda statistics: {(): int(statistics.failure is not None)},
    ),
    _gauge(
        "tier_failed",
        "1 if shipping to the cloud has ended while the log continues, else 0.",
        lambda statistics: {(): int(statistics.tier_failure is not None)},
    ),
    _counter("appended_records", "Records written by commits."),
    _counter("appended_bytes", "Bytes of frames written by commits."),
    _counter("commits", "Commits: writes, each with a sync unless the log's policy syncs later."),
    _counter("rotations", "Segments sealed."),
    _gauge("waiting_records", "Records accepted and not yet written."),
    _gauge(
        "durable_lag_records",
        "Records accepted and not yet synced.",
        lambda statistics: {(): max(statistics.tail - statistics.durable_limit, 0)},
    ),
    _gauge("waiting_bytes", "Bytes accepted and not yet written."),
    _gauge(
        "durable_lag_seconds",
        "Time since the oldest record not yet synced was accepted; 0 if there is none.",
        merge=Merge.MAX,
    ),
    _gauge("blocked_appends", "Callers that wait for room in the channel."),
    _offset("head", "First offset that can be read from any tier."),
    _offset("local_head", "First offset on local disk."),
    _offset("tail", "Next offset to be assigned."),
    _offset("durable_limit", "Every offset below it is on disk."),
    _offset("uploaded_limit", "Every offset below it is named by the cloud tier's manifest."),
    _gauge("segments", "Segment files on local disk, the active one included."),
    _gauge("cache_bytes", "Bytes of batches in memory."),
    _counter("cache_evictions", "Batches that left memory."),
    _counter(
        "reads",
        "Reads by readers and by the uploader, by where the bytes were; `cache` counts its hits.",
        _fields(cache="cache_hits", file="file_reads", cloud="tier_reads"),
        labels=("tier",),
    ),
    _counter(
        "read_bytes",
        "Bytes of batches that reads returned, by where they were.",
        _fields(cache="cache_read_bytes", file="file_read_bytes", cloud="tier_read_bytes"),
        labels=("tier",),
    ),
    _counter(
        "healed_reads",
        "Reads served from the cloud tier because a segment file is damaged, missing or unreadable.",
    ),
    _gauge("readers", "Live readers that follow the log."),
    _gauge(
        "reader_lag_records",
        "Durable records that the slowest live reader has not delivered yet.",
        merge=Merge.MAX,
    ),
    _gauge(
        "cursor_lag_records",
        "Records that readers see and a cursor has not passed; for cursors with a handle in this process.",
        _by_name("cursor_lag_records"),
        labels=("cursor",),
        merge=Merge.MAX,
    ),
    _counter(
        "transactions",
        "Transactions by how they ended: `committed` or `rolled_back`.",
        _fields(committed="transactions_committed", rolled_back="transactions_rolled_back"),
        labels=("outcome",),
    ),
    _counter(
        "transaction_spilled_bytes",
        "Bytes that transactions wrote to files of their own because they exceeded their memory.",
        "spilled_bytes",
    ),
)
"""All but the histograms; those about the process come first."""
