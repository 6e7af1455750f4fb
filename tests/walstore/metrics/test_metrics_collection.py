"""Logs come and go, with and without company under their label; what was counted is not lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.observed import NumbersLog
from walstore.metrics.definitions import (
    BYTES,
    METRICS,
    RECORDS,
    SECONDS,
    Labels,
    Metric,
    MetricKind,
    Scope,
)
from walstore.metrics.metrics_collection import Histogram, MetricsCollection, Observation

BY_NAME = {metric.full_name: metric for metric in METRICS}


def value(
    collection: MetricsCollection, name: str, log: str | None = None, *labels: str
) -> float | None:
    """Return one value as a look shows it."""
    metric = BY_NAME[name]
    look = collection.look()
    values = look.process if log is None else look.logs[log].values
    return values.get(metric, {}).get(labels)


def test_a_log_is_shown_as_it_is_now() -> None:
    collection = MetricsCollection()
    log = NumbersLog()
    collection.attach("orders", log)
    log.set(waiting_bytes=10, commits=3, cache_read_bytes=5, head=4)
    assert value(collection, "walstore_waiting_bytes", "orders") == 10
    assert value(collection, "walstore_commits_total", "orders") == 3
    assert value(collection, "walstore_read_bytes_total", "orders", "cache") == 5
    assert value(collection, "walstore_head_offset", "orders") == 4
    assert value(collection, "walstore_logs") == 1


def test_commits_and_syncs_feed_the_histograms() -> None:
    collection = MetricsCollection()
    observer = collection.attach("orders", NumbersLog())
    observer.on_commit(100, 4096, 0.003, 0.002)
    observer.on_sync(0.001)
    observer.on_commit(1, 200, 0.0001, 0.0001)
    histograms = collection.look().logs["orders"].histograms
    assert [histogram.total for histogram in histograms] == [0.0031, 0.0021, 0.001, 101, 4296]
    assert [sum(histogram.counts) for histogram in histograms] == [2, 2, 1, 2, 2]


def test_closing_leaves_nothing_but_the_counters_of_the_process() -> None:
    collection = MetricsCollection()
    log = NumbersLog(errors={"DiskFullError": 2}, recovery_truncated_bytes=30)
    observer = collection.attach("orders", log)
    observer.close()
    observer.close()
    assert collection.look().logs == {}
    assert collection._groups == {}
    assert value(collection, "walstore_logs") is None
    assert value(collection, "walstore_openings_total") == 1
    assert value(collection, "walstore_errors_total", None, "DiskFullError") == 2
    assert value(collection, "walstore_recovery_truncations_total") == 1
    assert value(collection, "walstore_recovery_truncated_bytes_total") == 30


def test_a_log_that_is_opened_again_begins_anew() -> None:
    collection = MetricsCollection()
    collection.attach("orders", NumbersLog(commits=9)).close()
    collection.attach("orders", NumbersLog(commits=1))
    assert value(collection, "walstore_commits_total", "orders") == 1
    assert value(collection, "walstore_openings_total") == 2


def test_logs_with_one_label_are_shown_as_one() -> None:
    """Sizes are added, of lags the largest is shown, and offsets are nobody's."""
    collection = MetricsCollection()
    facts = {"cache_bytes": 10, "reader_lag_records": 3, "tail": 8, "commits": 1}
    collection.attach("all", NumbersLog(**facts))
    other = collection.attach("all", NumbersLog(**facts | {"reader_lag_records": 5}))
    assert value(collection, "walstore_cache_bytes", "all") == 20
    assert value(collection, "walstore_reader_lag_records", "all") == 5
    assert value(collection, "walstore_tail_offset", "all") is None
    assert value(collection, "walstore_logs") == 2
    other.close()
    assert value(collection, "walstore_cache_bytes", "all") == 10
    assert value(collection, "walstore_tail_offset", "all") == 8
    assert value(collection, "walstore_commits_total", "all") == 2, "a counter went back"


def test_histograms_of_one_label_are_added_and_kept() -> None:
    collection = MetricsCollection()
    first = collection.attach("all", NumbersLog())
    second = collection.attach("all", NumbersLog())
    for observer in (first, second, second):
        observer.on_commit(1, 100, 0.1, 0.1)
    second.close()
    assert sum(collection.look().logs["all"].histograms[0].counts) == 3


class Counting(RuleBasedStateMachine):
    """Logs open, work and close in any order; counters never go back (M1, M2), nothing is left (M3)."""

    def __init__(self) -> None:
        super().__init__()
        self.collection = MetricsCollection()
        self.open: list[tuple[NumbersLog, Observation]] = []
        self.seen: dict[tuple[str | None, Metric, Labels], float] = {}

    @rule(label=st.sampled_from(["a", "b"]))
    def attach(self, label: str) -> None:
        log = NumbersLog()
        self.open.append((log, self.collection.attach(label, log)))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.integers(1, 100))
    def work(self, data: st.DataObject, more: int) -> None:
        log, _ = data.draw(st.sampled_from(self.open))
        done = log.statistics().commits + more
        log.set(commits=done, errors={"DiskFullError": done}, waiting_bytes=more)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        _, observer = self.open.pop(at)
        observer.close()
        label = observer.label
        if label not in {other.label for _, other in self.open}:
            self.seen = {key: value for key, value in self.seen.items() if key[0] != label}

    @invariant()
    def counters_never_go_back(self) -> None:
        look = self.collection.look()
        found = {None: look.process} | {log: reading.values for log, reading in look.logs.items()}
        assert set(look.logs) == {observer.label for _, observer in self.open}
        for label, values in found.items():
            for metric, by_labels in values.items():
                if metric.kind is not MetricKind.COUNTER or (
                    label is not None and metric.scope is Scope.PROCESS
                ):
                    continue
                for labels, now in by_labels.items():
                    assert now >= self.seen.get((label, metric, labels), 0), metric.name
                    self.seen[label, metric, labels] = now


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1, 10))
    for sample in (0, 1, 1.5, 10, 11):
        histogram.observe(sample)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 23.5
    assert histogram.accumulated() == [("1.0", 2), ("10.0", 4), ("+Inf", 5)]


@given(st.lists(st.floats(0, 20)), st.lists(st.floats(0, 20)))
def test_merging_is_observing_both(first: list[float], second: list[float]) -> None:
    parts = [Histogram(SECONDS), Histogram(SECONDS)]
    whole = Histogram(SECONDS)
    for samples, part in zip((first, second), parts, strict=True):
        for sample in samples:
            part.observe(sample)
            whole.observe(sample)
    parts[0].merge([parts[1]])
    assert parts[0].counts == whole.counts
    assert parts[0].total == pytest.approx(whole.total)
    assert whole.accumulated()[-1] == ("+Inf", len(first) + len(second))


def test_a_copy_stays_as_it_is() -> None:
    histogram = Histogram(RECORDS)
    histogram.observe(3)
    copied = histogram.copy()
    histogram.observe(3)
    assert (sum(copied.counts), copied.total) == (1, 3)


@pytest.mark.parametrize("bounds", [SECONDS, RECORDS, BYTES])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert all(low < high for low, high in itertools.pairwise(bounds))


def test_durations_of_disks_are_told_apart() -> None:
    """Between 50 µs and 50 ms no bound is more than 2.5 times the one before."""
    inside = [bound for bound in SECONDS if 0.00005 <= bound <= 0.05]
    assert inside[0] == 0.00005
    assert inside[-1] == 0.05
    assert all(high / low <= 2.5001 for low, high in itertools.pairwise(inside))
