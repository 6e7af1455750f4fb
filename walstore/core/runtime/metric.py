"""Metric: what one figure is called and how it is read. Knows no system that stores metrics.

``walstore.metrics`` has those of logs and the adapters for Prometheus and OpenTelemetry. An object with
figures of its own, as a server has, names them as :class:`Watched` says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Protocol

Labels = tuple[str, ...]
"""Values of a metric's own labels, in the order of their names."""


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
    OBJECT = "object"
    """An object that is watched; with the label that is the metric's ``subject``."""


class Merge(StrEnum):
    """How to merge the values of several logs with the same label."""

    SUM = "sum"
    MAX = "max"
    LEAVE_OUT = "leave out"
    """They are left out: offsets of different logs cannot be added."""


class Histogram:
    """Samples counted by the first bound that is not below them; cheap enough for every commit.

    One thread, that of its log's event loop, writes it, and any other may read it: a read copies the
    counts in one step, so it never sees a sample counted twice or in part.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Upper bounds, inclusive and ascending; beyond the last there is one more count."""
        self.counts = [0] * (len(bounds) + 1)
        """Samples by bound, not accumulated."""
        self.total: float = 0
        """Sum of the samples."""

    def observe(self, sample: float) -> None:
        """Count a sample."""
        self.counts[bisect_left(self.bounds, sample)] += 1
        self.total += sample

    def copy(self) -> Histogram:
        """Return an independent histogram of the same samples."""
        twin = Histogram(self.bounds)
        twin.total = self.total
        twin.counts = self.counts[:]
        return twin

    def merge(self, others: Iterable[Histogram]) -> None:
        """Add the samples of others with the same bounds."""
        for other in others:
            self.total += other.total
            self.counts = [
                mine + more for mine, more in zip(self.counts, other.counts, strict=True)
            ]

    def accumulated(self) -> list[tuple[str, int]]:
        """Return each bound, as Prometheus writes it, with the number of samples not above it."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


Reader = Callable[[Any], Mapping[Labels, Any]]
"""Reads numbers, or histograms, from the statistics of a log or from the watched object."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A value, or a set of them by their labels, that is read on demand."""

    name: str
    kind: MetricKind
    help: str
    read: Reader
    labels: tuple[str, ...] = ()
    """Names of labels in addition to the subject's."""
    merge: Merge = Merge.SUM
    scope: Scope = Scope.LOG
    subject: str = "log"
    """Name of the label that says whose value it is."""

    @property
    def full_name(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of all its labels."""
        return self.labels if self.scope is Scope.PROCESS else (self.subject, *self.labels)


class Watched(Protocol):
    """An object with figures: a server, an object store that is metered, a writer."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """All its figures, each read from the object itself, on any thread."""


def figure(
    subject: str,
    name: str,
    text: str,
    read: Reader,
    *,
    kind: MetricKind = MetricKind.COUNTER,
    labels: tuple[str, ...] = (),
) -> Metric:
    """Return a metric of objects of a kind: ``walstore_``, ``subject``, ``name``."""
    return Metric(
        f"walstore_{subject}_{name}",
        kind,
        text,
        read,
        labels=labels,
        scope=Scope.OBJECT,
        subject=subject,
    )
