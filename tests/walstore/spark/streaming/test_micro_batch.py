"""Where a micro-batch ends: exact limits, fairness, and nobody left out for good."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.walstore.spark.versions import needs_limits
from walstore.errors import InvalidSettingsError
from walstore.spark.features import HAS_LIMITS, ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from walstore.spark.options import Budget, parse_stream_options
from walstore.spark.partitions import Span
from walstore.spark.streaming.admission import (
    StoredTimes,
    budget_of,
    by_bytes,
    by_rows,
    check_limits,
    end_of,
    share,
)

A, B, C = ("a", 0), ("b", 0), ("c", 0)
amounts = st.lists(st.integers(0, 1000), max_size=8)


def spans(*sizes: int, start: int = 1, rows: int = 10) -> list[Span]:
    return [Span(start + at * rows, start + (at + 1) * rows, size) for at, size in enumerate(sizes)]


@given(amounts, st.integers(0, 5000), st.integers(0, 10_000))
def test_a_share_is_exact_and_fair(wanted, total, first):
    given_out = share(wanted, total, first)
    assert sum(given_out) == min(total, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))
    hungry = [got for got, want in zip(given_out, wanted, strict=True) if got < want]
    assert not hungry or max(given_out) <= min(hungry) + 1


def test_rows_are_divided_between_logs():
    start, tail = {A: 1, B: 1, C: 1}, {A: 1001, B: 11, C: 1001}
    assert by_rows(start, tail, 210) == {A: 101, B: 11, C: 101}
    assert by_rows(start, tail, 10_000) == tail


def test_the_logs_take_turns_if_there_are_more_than_rows():
    """Each is read however little a batch may take and however much the others have."""
    offsets, tail = {A: 1, B: 1, C: 1}, {A: 10_000, B: 10_000, C: 10_000}
    for _ in range(30):
        after = by_rows(offsets, tail, 1)
        assert sum(after.values()) == sum(offsets.values()) + 1
        offsets = after
    assert offsets == {A: 11, B: 11, C: 11}


def test_bytes_end_a_batch_between_spans():
    assert by_bytes({A: 1}, {A: spans(100, 100, 100)}, 250) == {A: 21}
    assert by_bytes({A: 1}, {A: spans(100, 100, 100)}, 300) == {A: 31}


def test_a_span_that_is_too_large_is_cut():
    assert by_bytes({A: 1}, {A: spans(1000)}, 500) == {A: 6}
    assert by_bytes({A: 1}, {A: spans(1000)}, 1) == {A: 2}  # a record at least


def test_bytes_are_divided_between_logs():
    ends = by_bytes({A: 1, B: 1, C: 5}, {A: spans(*[100] * 50), B: spans(50), C: []}, 450)
    assert ends == {A: 41, B: 11, C: 5}


def test_records_larger_than_the_limit_are_read_one_by_one_from_all_logs():
    offsets = {A: 1, B: 1}
    for _ in range(4):
        there = {name: [Span(at, at + 100, 10**9)] for name, at in offsets.items()}
        offsets = by_bytes(offsets, there, 1)
    assert offsets == {A: 3, B: 3}


def test_nothing_to_take():
    assert by_bytes({A: 7}, {A: []}, 100) == {A: 7}
    assert by_rows({A: 7}, {A: 7}, 100) == {A: 7}
    assert by_rows({}, {}, 100) == {}


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), min_size=1, max_size=10),
    st.integers(1, 20_000),
)
def test_batches_by_bytes_reach_the_end(sizes, most_bytes):
    """Whatever the spans and the limit, each batch goes on and the last one ends at the tail."""
    edges = [1]
    for rows, _ in sizes:
        edges.append(edges[-1] + rows)
    position, batches = 1, 0
    while position < edges[-1]:
        there = [
            Span(
                max(position, low), high, max(1, size * (high - max(position, low)) // (high - low))
            )
            for low, high, (_, size) in zip(edges, edges[1:], sizes, strict=False)
            if high > position
        ]
        (after,) = by_bytes({A: position}, {A: there}, most_bytes).values()
        assert position < after <= edges[-1]
        position = after
        batches += 1
    assert batches <= edges[-1]


def options(**given: str) -> Budget:
    return parse_stream_options({"path": "s3://bucket/orders"} | given).most


@needs_limits
def test_the_stricter_limit_holds():
    from pyspark.sql.streaming.datasource import ReadMaxFiles

    rows = options(maxOffsetsPerTrigger="10")
    both = options(maxOffsetsPerTrigger="10", maxBytesPerTrigger="100")
    assert budget_of(ReadMaxRows(5), rows) == Budget(5, None)
    assert budget_of(ReadMaxRows(50), both) == Budget(10, 100)
    assert budget_of(ReadMaxBytes(50), both) == Budget(10, 50)
    assert budget_of(ReadMaxBytes(50), options()) == Budget(None, 50)
    assert budget_of(ReadMaxFiles(1), both) == Budget(10, 100)


def test_all_means_all():
    both = options(maxOffsetsPerTrigger="10", maxBytesPerTrigger="100")
    assert budget_of(ReadAllAvailable(), both) == budget_of(None, both) == Budget()


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"]
)
def test_limits_need_a_spark_that_says_where_a_batch_begins(name):
    check_limits(options(**{name: "10"}), "they", has_limits=True)
    with pytest.raises(InvalidSettingsError, match=r"need Spark 4\.2 or newer"):
        check_limits(options(**{name: "10"}), "they", has_limits=False)
    check_limits(options(), "they", has_limits=False)
    if not HAS_LIMITS:
        with pytest.raises(InvalidSettingsError, match=r"need Spark 4\.2 or newer"):
            check_limits(options(**{name: "10"}), "they")


STORED = [
    StoredTimes(0, 10, 100, 1000),
    StoredTimes(10, 20, 0, 300),
    StoredTimes(20, 21, 50, 500),
    StoredTimes(21, 30, 9, 90),
]


@pytest.mark.parametrize(
    ("start", "end", "budget", "found"),
    [
        (0, 30, Budget(), 30),
        (0, 30, Budget(rows=1000), 30),
        (0, 30, Budget(rows=100), 20),
        (0, 30, Budget(rows=50), 5),
        (0, 30, Budget(rows=1), 1),
        (5, 30, Budget(rows=50), 20),
        (5, 30, Budget(rows=100), 21),
        (20, 30, Budget(rows=1), 21),
        (0, 30, Budget(size_bytes=1000), 10),
        (0, 30, Budget(size_bytes=1150), 15),
        (0, 30, Budget(rows=100, size_bytes=500), 5),
        (0, 4, Budget(rows=100), 4),
    ],
)
def test_the_end(start: int, end: int, budget: Budget, found: int) -> None:
    assert end_of(STORED, start, end, budget) == found
    assert end_of(reversed(STORED), start, end, budget) == found


def test_every_budget_goes_on() -> None:
    """From the start to the end, whatever the limit is."""
    for rows in (1, 3, 7, 60, 1000):
        at, steps = 0, 0
        while at < 30:
            later = end_of(STORED, at, 30, Budget(rows=rows))
            assert at < later <= 30
            at, steps = later, steps + 1
        assert steps <= 30


OLDER = """
import sys
import pyspark.sql.datasource  # this version's needs them itself
sys.modules["pyspark.sql.streaming.datasource"] = None  # as before Spark 4.2
from walstore.spark.source import WalstoreSource
from walstore.spark.rows import spark_schema
schema = spark_schema(include_headers=False)
reader = WalstoreSource({"path": "/tmp/none"}).streamReader(schema)
assert not hasattr(reader, "pushFilters")
try:
    WalstoreSource({"path": "/tmp/none", "maxOffsetsPerTrigger": "5"}).streamReader(schema)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_an_older_spark_without_the_classes():
    """Everything is there but limits; the import does not fail."""
    done = subprocess.run(
        [sys.executable, "-c", OLDER], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(
        "maxOffsetsPerTrigger, maxBytesPerTrigger and minOffsetsPerTrigger need Spark 4.2"
    )
