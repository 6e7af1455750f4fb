"""Definitions of the metrics: the adapter exports these, and docs/metrics.md is generated from them.

Names lack the suffix ``_total`` that Prometheus adds to counters; see :attr:`Metric.full_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from walstore.core.runtime.metric import Labels, Merge, Metric, MetricKind, Reader, Scope
from walstore.core.runtime.statistics import CopyScrub, CopyStatistics, ScrubRound, Statistics

SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
"""Bounds for durations: finest where disks sync, from 50 µs (flash with a safe cache) to 50 ms (disks)."""

RECORDS: Final = (1, 2, 4, 8, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Bounds for records of one commit."""

BYTES: Final = tuple(1 << bits for bits in range(8, 27, 2))
"""Bounds for bytes of one commit: 256 B to 64 MiB."""


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


def _of_groups(field: str) -> Reader:
    get = attrgetter(field)
    return lambda statistics: {(name,): get(one) for name, one in statistics.groups.items()}


def _of_copies(read: Callable[[CopyStatistics], float]) -> Reader:
    return lambda statistics: {(one.address,): read(one) for one in statistics.copies}


def _of_scrub(read: Callable[[ScrubRound], float | None], *, name: str = "last_scrub") -> Reader:
    """Read from a round of the scrub; nothing for a log that has none."""
    get = attrgetter(name)

    def look(statistics: Statistics) -> dict[Labels, float]:
        found = get(statistics)
        value = None if found is None else read(found)
        return {} if value is None else {(): value}

    return look


def _of_scrubbed(read: Callable[[CopyScrub], float]) -> Reader:
    """Read of each copy from the last round of the scrub."""

    def look(statistics: Statistics) -> dict[Labels, float]:
        last = statistics.last_scrub
        return {} if last is None else {(one.address or "own",): read(one) for one in last.copies}

    return look


def _of_upload(field: str) -> Reader:
    """Read a field of what is known of shipping; nothing for a log that is not shipped."""
    get = attrgetter(field)

    def read(statistics: Statistics) -> dict[Labels, float]:
        return {} if statistics.upload is None else {(): get(statistics.upload)}

    return read


def _group(kind: MetricKind, name: str, text: str, field: str) -> Metric:
    merge = Merge.MAX if kind is MetricKind.GAUGE else Merge.SUM
    return _metric(kind, f"group_{name}", text, _of_groups(field), labels=("group",), merge=merge)


def _replicated(statistics: Statistics) -> dict[Labels, float]:
    limit = statistics.replicated_limit
    return {} if limit is None else {(): limit}


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
    _gauge(
        "replication_failed",
        "1 if too few copies of a replicated log are there to acknowledge anything, else 0.",
        lambda statistics: {(): int(statistics.replication_trouble is not None)},
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
    _gauge("waiting_bytes", "Bytes accepted and not yet written, with what Python needs for them."),
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
    _gauge(
        "replicated_limit_offset",
        "Every offset below it is on enough machines; of a replicated log.",
        _replicated,
        merge=Merge.LEAVE_OUT,
    ),
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
    _counter(
        "mended_bytes",
        "Bytes of segment files of a replicated log that were damaged, and were replaced from a whole copy.",
    ),
    _gauge(
        "readers", "Live readers that follow the log; those of clients while they wait for records."
    ),
    _gauge(
        "reader_lag_records",
        "Durable records that the slowest live reader of this process has not delivered yet; clients that "
        "are to be seen use a consumer, or a cursor.",
        merge=Merge.MAX,
    ),
    _gauge(
        "cursor_lag_records",
        "Records that readers see and a cursor has not passed; for cursors with a handle in this process, "
        "and for those of clients, until their lease ends or they are deleted.",
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
    _counter("upload_fragments", "Fragments put.", _of_upload("fragments")),
    _counter("upload_bytes", "Bytes of the fragments put.", _of_upload("fragment_bytes")),
    _counter(
        "upload_adopted_fragments",
        "Fragments that had been put before and never published, and were published instead.",
        _of_upload("adopted_fragments"),
    ),
    _counter("upload_retries", "Requests repeated after a fault.", _of_upload("retries")),
    _counter(
        "upload_conflicts",
        "Fragments made again because another program had taken their place.",
        _of_upload("conflicts"),
    ),
    _gauge(
        "upload_put_seconds",
        "Recent time to build and put a fragment: the median of a few.",
        _of_upload("put_seconds"),
        merge=Merge.MAX,
    ),
    _gauge(
        "upload_publish_seconds",
        "Recent time to name fragments in the manifest: the median of a few.",
        _of_upload("publish_seconds"),
        merge=Merge.MAX,
    ),
    _group(MetricKind.GAUGE, "lag_records", "Records that a group has not read yet.", "lag"),
    _group(MetricKind.GAUGE, "pending_records", "Records that members of a group have.", "pending"),
    _group(
        MetricKind.GAUGE,
        "unsettled_records",
        "Records that a group has read and nobody has settled.",
        "unsettled",
    ),
    _group(MetricKind.COUNTER, "deliveries", "Records given to members of a group.", "delivered"),
    _group(
        MetricKind.COUNTER,
        "redeliveries",
        "Deliveries that were not the first of their record.",
        "redelivered",
    ),
    _group(MetricKind.COUNTER, "dead_letters", "Records that became dead letters.", "dead"),
    _gauge(
        "copy_present",
        "1 if the copy of a replicated log at a node is connected and has caught up, else 0.",
        _of_copies(lambda copy: copy.is_present),
        labels=("copy",),
        merge=Merge.MAX,
    ),
    _gauge(
        "copy_lag_records",
        "Records on the primary's disk that are not on that of a copy, as far as is known.",
        _of_copies(lambda copy: copy.lag),
        labels=("copy",),
        merge=Merge.MAX,
    ),
    _gauge(
        "scrub_end_timestamp_seconds",
        "When the last round of the scrub ended, since 1970; missing until the first one of this primary.",
        _of_scrub(lambda last: None if last.ended_us is None else last.ended_us / 1e6),
        merge=Merge.MAX,
    ),
    _gauge(
        "scrub_checked_bytes",
        "Bytes of the log's segments that the round of the scrub that runs has passed.",
        _of_scrub(lambda now: now.checked_bytes, name="scrub"),
    ),
    _gauge(
        "scrub_total_bytes",
        "Bytes of the log's segments that the round of the scrub that runs is to pass.",
        _of_scrub(lambda now: now.total_bytes, name="scrub"),
    ),
    _gauge(
        "scrub_damaged_segments",
        "Segments in which the last round of the scrub found damage, at a copy; the primary's is `own`.",
        _of_scrubbed(lambda one: one.damaged_segments),
        labels=("copy",),
    ),
    _gauge(
        "scrub_left_segments",
        "Those that stay damaged, since no copy had what was needed.",
        _of_scrubbed(lambda one: len(one.left)),
        labels=("copy",),
    ),
)
"""All but the histograms; those about the process come first."""
