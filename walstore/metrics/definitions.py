"""Definitions of the metrics: the adapter exports these, and docs/metrics.md is generated from them.

Names lack the suffix ``_total`` that Prometheus adds to counters; see :attr:`Metric.full_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

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


@dataclass(frozen=True, slots=True, eq=False)
class HistogramMetric:
    """A histogram with one sample for each commit or sync."""

    name: str
    help: str
    bounds: Sequence[float]


def _field(name: str) -> Reader:
    get = attrgetter(name)
    return lambda statistics: {(): get(statistics)}


def _by_tier(cache: str, file: str, cloud: str) -> Reader:
    get = attrgetter(cache, file, cloud)
    keys = (("cache",), ("file",), ("cloud",))
    return lambda statistics: dict(zip(keys, get(statistics), strict=True))


def _errors(statistics: Statistics) -> Mapping[Labels, float]:
    return {(name,): count for name, count in statistics.errors.items()}


def _counter(name: str, text: str, field: str) -> Metric:
    return Metric(f"walstore_{name}", MetricKind.COUNTER, text, _field(field))


def _gauge(name: str, text: str, field: str, merge: Merge = Merge.SUM) -> Metric:
    return Metric(f"walstore_{name}", MetricKind.GAUGE, text, _field(field), merge=merge)


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

_PROCESS: Final = (
    Metric(
        "walstore_logs",
        MetricKind.GAUGE,
        "Logs open now.",
        lambda _: {(): 1},
        scope=Scope.PROCESS,
    ),
    Metric(
        "walstore_openings",
        MetricKind.COUNTER,
        "Logs opened.",
        lambda _: {(): 1},
        scope=Scope.PROCESS,
    ),
    Metric(
        "walstore_recovery_truncations",
        MetricKind.COUNTER,
        "Openings that cut an unfinished batch off.",
        lambda statistics: {(): int(statistics.recovery_truncated_bytes > 0)},
        scope=Scope.PROCESS,
    ),
    Metric(
        "walstore_recovery_truncated_bytes",
        MetricKind.COUNTER,
        "Bytes of unfinished batches cut off by openings.",
        _field("recovery_truncated_bytes"),
        scope=Scope.PROCESS,
    ),
    Metric(
        "walstore_errors",
        MetricKind.COUNTER,
        "Errors by type: failures of logs and tiers, refused records, failed reads.",
        _errors,
        labels=("type",),
        scope=Scope.PROCESS,
    ),
)

_LOG: Final = (
    Metric(
        "walstore_failed",
        MetricKind.GAUGE,
        "1 if the log has failed and must be opened again, else 0.",
        lambda statistics: {(): int(statistics.failure is not None)},
    ),
    Metric(
        "walstore_tier_failed",
        MetricKind.GAUGE,
        "1 if shipping to the cloud has ended while the log goes on, else 0.",
        lambda statistics: {(): int(statistics.tier_failure is not None)},
    ),
    _counter("appended_records", "Records written by commits.", "appended_records"),
    _counter("appended_bytes", "Bytes of frames written by commits.", "appended_bytes"),
    _counter(
        "commits",
        "Commits: writes, each with a sync unless the log's policy syncs later.",
        "commits",
    ),
    _counter("rotations", "Segments sealed.", "rotations"),
    _gauge("waiting_records", "Records accepted and not yet written.", "waiting_records"),
    Metric(
        "walstore_durable_lag_records",
        MetricKind.GAUGE,
        "Records accepted and not yet synced.",
        lambda statistics: {(): max(statistics.tail - statistics.durable_limit, 0)},
    ),
    _gauge("waiting_bytes", "Bytes accepted and not yet written.", "waiting_bytes"),
    _gauge(
        "durable_lag_seconds",
        "Time since the oldest record not yet synced was accepted; 0 if there is none.",
        "durable_lag_seconds",
        Merge.MAX,
    ),
    _gauge("blocked_appends", "Callers that wait for room in the channel.", "blocked_appends"),
    _gauge("head_offset", "First offset that can be read from any tier.", "head", Merge.LEAVE_OUT),
    _gauge("local_head_offset", "First offset on local disk.", "local_head", Merge.LEAVE_OUT),
    _gauge("tail_offset", "Next offset to be assigned.", "tail", Merge.LEAVE_OUT),
    _gauge(
        "durable_limit_offset",
        "Every offset below it is on disk.",
        "durable_limit",
        Merge.LEAVE_OUT,
    ),
    _gauge(
        "uploaded_limit_offset",
        "Every offset below it is named by the cloud tier's manifest.",
        "uploaded_limit",
        Merge.LEAVE_OUT,
    ),
    _gauge("segments", "Segment files on local disk, the active one included.", "segments"),
    _gauge("cache_bytes", "Bytes of batches in memory.", "cache_bytes"),
    _counter("cache_evictions", "Batches that left memory.", "cache_evictions"),
    Metric(
        "walstore_reads",
        MetricKind.COUNTER,
        "Reads by readers and by the uploader, by where the bytes were; `cache` counts its hits.",
        _by_tier("cache_hits", "file_reads", "tier_reads"),
        labels=("tier",),
    ),
    Metric(
        "walstore_read_bytes",
        MetricKind.COUNTER,
        "Bytes of batches that reads returned, by where they were.",
        _by_tier("cache_read_bytes", "file_read_bytes", "tier_read_bytes"),
        labels=("tier",),
    ),
    _counter(
        "healed_reads",
        "Reads served from the cloud tier because a segment file is damaged, missing or unreadable.",
        "healed_reads",
    ),
    _gauge("readers", "Live readers that follow the log.", "readers"),
    _gauge(
        "reader_lag_records",
        "Durable records that the slowest live reader has not delivered yet.",
        "reader_lag_records",
        Merge.MAX,
    ),
    Metric(
        "walstore_cursor_lag_records",
        MetricKind.GAUGE,
        "Records that readers see and a cursor has not passed; for cursors with a handle in this process.",
        lambda statistics: {(name,): lag for name, lag in statistics.cursor_lag_records.items()},
        labels=("cursor",),
        merge=Merge.MAX,
    ),
    Metric(
        "walstore_transactions",
        MetricKind.COUNTER,
        "Transactions by how they ended: `committed` or `rolled_back`.",
        lambda statistics: {
            ("committed",): statistics.transactions_committed,
            ("rolled_back",): statistics.transactions_rolled_back,
        },
        labels=("outcome",),
    ),
    _counter(
        "transaction_spilled_bytes",
        "Bytes that transactions wrote to files of their own because they exceeded their memory.",
        "spilled_bytes",
    ),
)

METRICS: Final[tuple[Metric, ...]] = (*_PROCESS, *_LOG)
"""All but the histograms; those about the process come first."""
