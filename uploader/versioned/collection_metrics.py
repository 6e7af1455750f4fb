"""CollectionMetrics: what collections consist of, for Prometheus. Needs prometheus_client, when it is made.

A look at a collection costs a read of its head and a listing, so a task of the user's looks from time to
time, and a scrape shows what the last look found.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from uploader.versioned.collection import Collection, CollectionStatus
from uploader.versioned.controller import Compacted
from uploader.versioned.sweep import Purged
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.extras import needs_extra
from walstore.core.validation.arguments import as_seconds
from walstore.errors import CollectionNotFoundError, InvalidSettingsError, WalClosedError, WalError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as Family

LOOK_SECONDS: Final = 30.0
_Values = Mapping[str, float]
"""Values by that of the metric's own label; by an empty text if it has none."""


class _Look(NamedTuple):
    """What is known of a collection at a scrape."""

    status: CollectionStatus
    at_us: int
    """When it was so, in microseconds since 1970."""
    now_us: int


@dataclass(frozen=True, slots=True)
class CollectionMetric:
    """One metric."""

    name: str
    help: str
    read: Callable[[_Look], _Values] | None = None
    """Reads a gauge; None for a counter."""
    label: str = ""
    """Name of a label in addition to ``collection``."""

    @property
    def full_name(self) -> str:
        """The name of its samples."""
        return f"walstore_collection_{self.name}{'' if self.read else '_total'}"

    @property
    def kind(self) -> str:
        """``gauge`` or ``counter``."""
        return "gauge" if self.read else "counter"

    @property
    def labels(self) -> list[str]:
        """Names of all its labels."""
        return ["collection", self.label] if self.label else ["collection"]

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        """Return its family without samples."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        make = GaugeMetricFamily if self.read else CounterMetricFamily
        return make(self.full_name, self.help, labels=self.labels)


def _of(name: str, text: str, read: Callable[[CollectionStatus], float]) -> CollectionMetric:
    """Return a gauge of a collection as a whole."""
    return CollectionMetric(name, text, lambda look: {"": read(look.status)})


def _latest(status: CollectionStatus) -> int:
    return max(status.upper - 1, 0)


def _layers(look: _Look) -> _Values:
    return Counter(str(batch.layer) for batch in look.status.batches)


def _behind(look: _Look) -> _Values:
    latest = _latest(look.status)
    return {name: max(latest - hold.frontier, 0) for name, hold in look.status.readers.items()}


def _versions(look: _Look) -> _Values:
    return {
        name: look.status.version - hold.version
        for name, hold in look.status.readers.items()
        if hold.version is not None
    }


def _leases(look: _Look) -> _Values:
    return {
        name: max(hold.expires_us - look.now_us, 0) / 1e6
        for name, hold in look.status.readers.items()
        if hold.expires_us is not None
    }


METRICS: Final = (
    _of("upper", "The upper frontier of what can be read.", lambda s: s.upper),
    _of("merged_upper", "The upper frontier of what is merged.", lambda s: s.merged_upper),
    _of("since", "Earliest time as of which it can be read.", lambda s: s.since),
    _of(
        "behind",
        "Times from `since` to the latest one, which are all still distinguished.",
        lambda s: max(_latest(s) - s.since, 0),
    ),
    CollectionMetric("batches", "Merged batches, by the layer of their size.", _layers, "layer"),
    _of("rows", "Updates in merged batches.", lambda s: sum(b.rows for b in s.batches)),
    _of("bytes", "Size of merged batches.", lambda s: sum(b.size_bytes for b in s.batches)),
    _of("pending_batches", "Batches that are not merged.", lambda s: s.pending_batches),
    _of("pending_rows", "Updates that are not merged.", lambda s: s.pending_rows),
    _of("pending_bytes", "Size of batches that are not merged.", lambda s: s.pending_bytes),
    _of("version", "Number of the newest version.", lambda s: s.version),
    _of(
        "kept_versions",
        "Versions before the newest whose objects are kept.",
        lambda s: max(s.version - s.gc_floor, 0),
    ),
    _of("epoch", "How many controllers there were.", lambda s: s.epoch),
    _of(
        "controlled",
        "1 if a controller is at work, or died without a word; else 0.",
        lambda s: s.holder is not None,
    ),
    _of("readers", "Registered readers.", lambda s: len(s.readers)),
    CollectionMetric(
        "reader_behind", "Times that a reader holds before the latest one.", _behind, "reader"
    ),
    CollectionMetric(
        "reader_versions",
        "Versions that a leased reader holds before the newest.",
        _versions,
        "reader",
    ),
    CollectionMetric(
        "reader_lease_seconds", "What is left of the lease of a leased reader.", _leases, "reader"
    ),
    CollectionMetric(
        "look_timestamp_seconds",
        "When these values were looked up, since 1970.",
        lambda look: {"": look.at_us / 1e6},
    ),
    CollectionMetric("look_failures", "Looks that failed; the values before them stay."),
    CollectionMetric("compaction_passes", "New versions made by compactions."),
    CollectionMetric("compaction_read_rows", "Updates that compactions read."),
    CollectionMetric("compaction_written_rows", "Updates that compactions wrote."),
    CollectionMetric("compaction_read_bytes", "Size of what compactions read."),
    CollectionMetric("compaction_written_bytes", "Size of what compactions wrote."),
    CollectionMetric("compaction_seconds", "Time that compactions took."),
    CollectionMetric(
        "removed_objects",
        "Garbage removed: `pending` and `merged` batches, `versions`.",
        None,
        "kind",
    ),
    CollectionMetric("removed_bytes", "Size of the garbage removed."),
)
"""All of them; docs/metrics.md has a table."""


class CollectionMetrics:
    """Exports any number of collections to Prometheus, each with the label ``collection``.

    One object for a registry. A task of the caller's runs :meth:`watch`; who controls a collection reports
    with :meth:`compacted` and :meth:`removed`. Each collection has one series for each of its layers and
    three for each of its readers, at most a hundred; name the readers, since random names make new series.
    Values above 2^53 are rounded.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, clock: Clock | None = None
    ) -> None:
        """Register with ``registry``, by default the one that prometheus_client serves.

        MissingExtraError without prometheus_client, InvalidSettingsError if the registry has collections
        already. ``clock`` is for tests.
        """
        with needs_extra("metrics", "CollectionMetrics"):
            import prometheus_client
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[CollectionStatus, int]] = {}
        self._counted: dict[str, Counter[tuple[str, str]]] = {}
        try:
            (registry or prometheus_client.REGISTRY).register(self)
        except ValueError:
            raise InvalidSettingsError(
                "the registry has metrics of collections already; use that CollectionMetrics for all of them"
            ) from None

    async def watch(
        self, collection: Collection, *, name: str | None = None, seconds: float = LOOK_SECONDS
    ) -> None:
        """Look at a collection now and every ``seconds``, until cancelled; its values then disappear.

        A look costs what :meth:`Collection.status` does. One that fails is counted, and the values before it
        stay; but WalClosedError and CollectionNotFoundError end this. InvalidSettingsError unless ``seconds``
        is positive.

        Args:
            collection: An open collection; stays open.
            name: Its label, of no other collection. Default: the last part of its URL.
            seconds: From the end of a look to the next one.
        """
        if (pause := as_seconds(seconds, "seconds")) <= 0:
            raise InvalidSettingsError(f"seconds must be positive, not {seconds!r}")
        label = label_of(collection) if name is None else name
        try:
            while True:
                try:
                    self.show(label, await collection.status())
                except (CollectionNotFoundError, WalClosedError):
                    raise
                except WalError:
                    self._count(label, {"look_failures": 1})
                await self._clock.sleep(pause)
        finally:
            with self._lock:
                self._seen.pop(label, None)

    def show(self, name: str, status: CollectionStatus) -> None:
        """Show a status as that of the collection ``name``; for callers that look by themselves."""
        with self._lock:
            self._seen[name] = status, self._clock.now_us()

    def compacted(self, name: str, done: Compacted) -> None:
        """Count what a compaction of the collection ``name`` did."""
        self._count(
            name,
            {
                "compaction_passes": done.passes,
                "compaction_read_rows": done.rows_read,
                "compaction_written_rows": done.rows_written,
                "compaction_read_bytes": done.bytes_read,
                "compaction_written_bytes": done.bytes_written,
                "compaction_seconds": done.seconds,
            },
        )

    def removed(self, name: str, swept: Purged) -> None:
        """Count what a collection of garbage removed from the collection ``name``; not that of a dry run."""
        kinds = {"pending": swept.pending, "merged": swept.merged, "versions": swept.versions}
        self._count(name, {"removed_bytes": swept.size_bytes})
        for kind, count in kinds.items():
            self._count(name, {"removed_objects": count}, kind)

    def describe(self) -> Iterator[Family]:
        """Yield the families without samples, for the registry's check for duplicate names."""
        return (metric.family() for metric in METRICS)

    def collect(self) -> Iterator[Family]:
        """Yield the families of metrics; a registry calls it, on any thread."""
        with self._lock:
            seen = dict(self._seen)
            counted = {name: counts.copy() for name, counts in self._counted.items()}
        now_us = self._clock.now_us()
        for metric in METRICS:
            values: dict[str, _Values]
            if metric.read is not None:
                values = {
                    name: metric.read(_Look(status, at_us, now_us))
                    for name, (status, at_us) in seen.items()
                }
            else:
                values = {
                    name: {
                        of: figure for (what, of), figure in counts.items() if what == metric.name
                    }
                    for name, counts in counted.items()
                }
            family = metric.family()
            for name, found in values.items():
                for of, value in found.items():
                    family.add_metric([name, of] if metric.label else [name], value)
            yield family

    def _count(self, name: str, figures: Mapping[str, float], of: str = "") -> None:
        with self._lock:
            counts = self._counted.setdefault(name, Counter())
            for what, figure in figures.items():
                counts[what, of] += figure  # type: ignore[assignment]


def label_of(collection: Collection) -> str:
    """Return the last part of a collection's URL, as valid text."""
    last = collection.url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return last.encode(errors="replace").decode()
