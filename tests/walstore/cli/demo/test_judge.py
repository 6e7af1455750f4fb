"""The verdict: any account that disagrees makes the demo fail, and says why."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from walstore import Wal
from walstore.cli.demo import messages
from walstore.cli.demo.checks import ReadTally
from walstore.cli.demo.identity import KEY, digest
from walstore.cli.demo.judge import SparkPart, judge
from walstore.cli.demo.messages import pack_latencies
from walstore.cli.demo.plan import DemoRun
from walstore.cli.demo.reading import ReadBack
from walstore.cli.demo.report import Result, show
from walstore.cli.demo.spark_part import Aggregate
from walstore.cli.demo.story import Story
from walstore.files.log_snapshot import LogSnapshot

VALUES = [b"one", b"", b"three"]
PLAN = DemoRun(directory="/log", store_url="s3://bucket/x?region=r")


class Case:
    """Accounts that agree, to be spoilt by a test."""

    def __init__(self, path: Path) -> None:
        asyncio.run(self._append(path))
        self.story = Story(lambda: 0.0)
        counters = {"rotations": 3, "commits": 4, "appended_bytes": 100, "tier_reads": 0}
        status = counters | {"uploaded_limit": 4, "tier_failure": None}
        for message in (
            [messages.OPENED, {"tail": 1, "missing_from": None, "truncated_bytes": 0}],
            [messages.PRODUCER, 1, "cpu"],
            [messages.ACK, 1, 3, digest(VALUES, 0)],
            [messages.OPENED, {"tail": 4, "missing_from": None, "truncated_bytes": 7}],
            [messages.STATUS, status, *(pack_latencies(array("I", [1500])) for _ in range(2))],
            [messages.STOPPED, {"history_read": 4}],
            [messages.CLOSED, {"fragments": 2}],
        ):
            self.story.take(message)
        self.read = ReadBack(self._ledger(path, final=True), 1, 4, 2, 4, 2, 500, "ab" * 32)
        self.outside = self._ledger(path)
        self.spark = SparkPart(found=Aggregate("4.3.0", {"cpu": (3, 8)}, 1, 4))

    async def _append(self, path: Path) -> None:
        async with Wal.open(path) as wal:
            await wal.append_many(VALUES, key=KEY.pack(1, 0, 3), stream="cpu")

    def _ledger(self, path: Path, *, final: bool = False) -> ReadTally:
        ledger = ReadTally(self.story.claims if final else None)
        for batch in LogSnapshot.open(path).batches():
            ledger.take(batch)
        return ledger

    def judge(self) -> Result:
        return judge(PLAN, self.story, self.read, self.outside, self.spark, seconds=1.0)


@pytest.fixture
def case(log_directory: Path) -> Case:
    return Case(log_directory)


def test_all_agree(case: Case) -> None:
    result = case.judge()
    assert result.problems == []
    assert result.ok
    assert (result.records, result.acknowledged, result.lost, result.duplicated) == (3, 3, 0, 0)
    assert (result.append_p50_ms, result.tail_p99_ms) == (1.5, 1.5)
    assert (result.kills, result.recovered_tail, result.truncated_bytes) == (1, 4, 7)
    assert (result.fragments, result.segments, result.commits) == (2, 3, 4)
    assert result.streams == {"cpu": (3, 8)}
    assert result.spark_ok
    assert result.store_url == "s3://bucket/x"


def test_spark_may_be_left_out(case: Case) -> None:
    case.spark = SparkPart(left_out="no Java")
    result = case.judge()
    assert result.ok
    assert (result.spark_ok, result.spark) == (None, "no Java")


def _lose_a_record(case: Case) -> None:
    case.story.claims[1].acknowledged = 4


def _double(case: Case) -> None:
    case.read.ledger.duplicated = 1


def _other_values(case: Case) -> None:
    case.story.claims[1].checksum += 1


def _outside_stopped_early(case: Case) -> None:
    case.outside.position = 3


def _outside_saw_another_value(case: Case) -> None:
    case.outside.producers[1].checksum += 1


def _spark_counts_less(case: Case) -> None:
    case.spark = SparkPart(found=Aggregate("4.3.0", {"cpu": (2, 8)}, 1, 4))


def _spark_sees_less(case: Case) -> None:
    case.spark = SparkPart(found=Aggregate("4.3.0", {"cpu": (3, 8)}, 2, 4))


def _spark_fails(case: Case) -> None:
    case.spark = SparkPart(failure="Spark failed with exit code 1")


def _not_closed(case: Case) -> None:
    case.story.is_closed = False


def _restart_misses_records(case: Case) -> None:
    case.story.opened[-1]["missing_from"] = 2


def _history_incomplete(case: Case) -> None:
    case.story.stopped = {"history_read": 3}


def _shipping_failed(case: Case) -> None:
    case.story.status["tier_failure"] = "no bucket"


def _nothing_appended(case: Case) -> None:
    case.story.claims[1].acknowledged = 0


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_lose_a_record, "had 4 records acknowledged, 3 are there"),
        (_double, ""),
        (_other_values, "not those that it appended"),
        (_outside_stopped_early, "the consumer outside ended at 3, not 4"),
        (_outside_saw_another_value, "two readers saw different records of producer 1"),
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
    assert not result.ok
    assert reason in " ".join(result.problems)
    if spoil is _lose_a_record:
        assert result.lost == 1


def test_the_table(case: Case) -> None:
    text = StringIO()
    show(case.judge(), Console(file=text, width=100))
    lines = text.getvalue().splitlines()
    found = {line.split("  ")[0]: line.split() for line in lines}
    for name in ("records", "MB", "appends/s", "durable append", "append to tail", "fragments"):
        assert name in found
    assert found["lost"][1] == "0"
    assert found["duplicated"][1] == "0"
    assert len(lines) < 16
