"""The verdict: any account that disagrees makes the demo fail, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from walstore import Wal, WalError
from walstore.cli.demo import checks, rows
from walstore.cli.demo.checks import (
    KEY,
    ReadBack,
    ReadTally,
    SparkTotals,
    Story,
    digest,
    judge,
    producer_number,
)
from walstore.cli.demo.run import progress
from walstore.cli.output import show_figures

VALUES = [b"one", b"", b"three"]
FIRST = producer_number(1, 0)


class Case:
    """Accounts that agree, to be spoilt by a test."""

    def __init__(self, path: Path) -> None:
        self.story = Story(lambda: 0.0)
        counters = {"rotations": 3, "commits": 4, "appended_bytes": 100}
        status = counters | {"uploaded_limit": 4, "tier_failure": None}
        for message in (
            [checks.OPENED, {"tail": 1, "missing_from": None, "truncated_bytes": 0}],
            [checks.ACK, FIRST, 3],
            [checks.OPENED, {"tail": 4, "missing_from": None, "truncated_bytes": 7}],
            [checks.STATUS, status, [1500], [1500]],
            [checks.STOPPED, 4],
            [checks.CLOSED],
        ):
            self.story.take(message)
        tally, self.outside = asyncio.run(self._read(path))
        self.read = ReadBack(tally, 1, 4, 2, 2, "ab" * 32)
        self.spark: SparkTotals | Exception | str = SparkTotals("4.3.0", {"cpu": (3, 8)}, 1, 4)

    async def _read(self, path: Path) -> tuple[ReadTally, ReadTally]:
        one, other = ReadTally(), ReadTally()
        async with Wal.open(path) as wal:
            key = KEY.pack(FIRST, 0, 3, digest(VALUES, 0))
            await wal.append_many(VALUES, key=key, stream="cpu")
            async for batch in wal.reader(follow=False).batches():
                one.take(batch)
                other.take(batch)
        return one, other

    def judge(self) -> dict[str, Any]:
        return judge(self.story, self.read, self.outside, self.spark)


@pytest.fixture
def case(log_directory: Path) -> Case:
    return Case(log_directory)


def test_all_agree(case: Case) -> None:
    result = case.judge()
    expected = {
        "ok": True,
        "problems": [],
        "lost": 0,
        "duplicated": 0,
        "spark_ok": True,
        "records": 3,
        "acknowledged": 3,
        "append_p50_ms": 1.5,
        "tail_p99_ms": 1.5,
        "kills": 1,
        "recovered_tail": 4,
        "truncated_bytes": 7,
        "fragments": 2,
        "segments": 3,
        "commits": 4,
        "streams": {"cpu": (3, 8)},
    }
    assert {name: result[name] for name in expected} == expected


def test_spark_may_be_left_out(case: Case) -> None:
    case.spark = "no Java"
    result = case.judge()
    assert (result["ok"], result["spark_ok"], result["spark"]) == (True, None, "no Java")


def _lose_a_record(case: Case) -> None:
    case.story.acknowledged[FIRST] = 4


def _double(case: Case) -> None:
    case.read.tally.duplicated = 1


def _other_values(case: Case) -> None:
    case.read.tally.complain("records of producer 100 are not those that it appended")


def _outside_stopped_early(case: Case) -> None:
    case.outside.position = 3


def _outside_saw_another_value(case: Case) -> None:
    case.outside.producers[FIRST].checksum += 1


def _spark_counts_less(case: Case) -> None:
    case.spark = SparkTotals("4.3.0", {"cpu": (2, 8)}, 1, 4)


def _spark_sees_less(case: Case) -> None:
    case.spark = SparkTotals("4.3.0", {"cpu": (3, 8)}, 2, 4)


def _spark_fails(case: Case) -> None:
    case.spark = WalError("Spark failed with exit code 1")


def _not_closed(case: Case) -> None:
    case.story.is_closed = False


def _restart_misses_records(case: Case) -> None:
    case.story.opened[-1]["missing_from"] = 2


def _history_incomplete(case: Case) -> None:
    case.story.history_limit = 3


def _shipping_failed(case: Case) -> None:
    case.story.status["tier_failure"] = "no bucket"


def _nothing_appended(case: Case) -> None:
    case.story.acknowledged.clear()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_lose_a_record, "had 4 records acknowledged, 3 are there"),
        (_double, ""),
        (_other_values, "not those that it appended"),
        (_outside_stopped_early, "the consumer outside ended at 3, not 4"),
        (_outside_saw_another_value, "two readers saw different records of producer 100"),
        (_spark_counts_less, "Spark counts (2, 8) records and bytes in stream cpu"),
        (_spark_sees_less, "Spark saw offsets [2, 4)"),
        (_spark_fails, "Spark failed with exit code 1"),
        (_not_closed, "did not close the log"),
        (_restart_misses_records, "missed records from offset 2 on"),
        (_history_incomplete, "the reader inside ended at 3"),
        (_shipping_failed, "shipping failed: no bucket"),
        (_nothing_appended, "nothing was appended"),
    ],
    ids=lambda argument: argument.__name__.strip("_") if callable(argument) else "",
)
def test_what_disagrees_is_said(case: Case, spoil: Callable[[Case], None], reason: str) -> None:
    spoil(case)
    result = case.judge()
    assert not result["ok"]
    assert reason in " ".join(result["problems"])
    if spoil is _lose_a_record:
        assert result["lost"] == 1


def test_the_table(case: Case) -> None:
    text = StringIO()
    show_figures(rows(case.judge()), Console(file=text, width=100))
    lines = text.getvalue().splitlines()
    found = {line.split("  ")[0]: line.split() for line in lines}
    for name in ("records", "MB", "appends/s", "durable append", "append to tail", "fragments"):
        assert name in found
    assert found["lost"][1] == "0"
    assert found["duplicated"][1] == "0"
    assert len(lines) < 16


def test_the_story_of_two_lives() -> None:
    now = 0.0
    story = Story(lambda: now)
    counters = {"rotations": 2, "commits": 10, "appended_bytes": 1_250_000}
    for life in (1, 2):
        story.take([checks.OPENED, {"tail": life}])
        story.take([checks.ACK, producer_number(life, 0), 5])
        story.take([checks.ACK, producer_number(life, 0), 7])
        for part in (1, 2):
            state = {name: part * count // 2 for name, count in counters.items()}
            story.take([checks.STATUS, state | {"uploaded_limit": 3 * life}, [1000], [2000, 3000]])
        now += 2.0
        if life == 1:
            story.end_life()
            now += 100.0
    assert story.append_seconds == 4.0
    assert progress(story) == "append 14 records  2.5 MB  4/s; 5 records uploaded"
    story.take([checks.STOPPED, 15])
    now += 50.0
    assert story.append_seconds == 4.0
    story.take([checks.CLOSED])
    assert story.is_closed
    assert [story.total(name) for name in counters] == [4, 20, 2_500_000]
    assert (story.append_latencies.count, story.tail_latencies.count) == (4, 8)
