"""The verdict: everything that was seen from different sides must agree. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from walstore.cli.demo.checks import ReadTally, compare
from walstore.cli.demo.latencies import LatencySamples
from walstore.cli.demo.plan import DemoRun
from walstore.cli.demo.reading import ReadBack
from walstore.cli.demo.report import Result
from walstore.cli.demo.spark_part import Aggregate
from walstore.cli.demo.story import Story


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPart:
    """What came of Spark; one of the fields is set."""

    found: Aggregate | None = None
    left_out: str | None = None
    """Why it was not run."""
    failure: str | None = None


def judge(
    plan: DemoRun,
    story: Story,
    read: ReadBack,
    outside: ReadTally,
    asked: SparkPart,
    *,
    seconds: float,
) -> Result:
    """Compare all accounts of the log and return the result."""
    ledger = read.ledger
    lost = ledger.settle(story.claims)
    problems = list(ledger.complaints)
    problems += _story_problems(story, read)
    problems += _outside_problems(story, read, outside)
    spark_problems = _spark_problems(read, asked)
    problems += spark_problems
    if not story.acknowledged:
        problems.append("nothing was appended")
    restart = story.opened[-1]
    return Result(
        ok=not problems and not lost and not ledger.duplicated,
        records=ledger.records,
        acknowledged=story.acknowledged,
        megabytes=ledger.size_bytes / 1e6,
        appends_per_second=story.acknowledged / max(story.append_seconds, 1e-9),
        append_p50_ms=_milliseconds(story.append_latencies, 50),
        append_p99_ms=_milliseconds(story.append_latencies, 99),
        tail_p50_ms=_milliseconds(story.tail_latencies, 50),
        tail_p99_ms=_milliseconds(story.tail_latencies, 99),
        commits=story.commits,
        segments=story.rotations,
        fragments=read.fragments,
        lost=lost,
        duplicated=ledger.duplicated,
        disk_head=read.disk_head,
        setsum=read.setsum,
        kills=len(story.opened) - 1,
        recovered_tail=restart["tail"],
        truncated_bytes=restart["truncated_bytes"],
        streams=ledger.by_stream(),
        spark=_spark_remark(asked, spark_problems),
        spark_ok=None if asked.left_out is not None else not spark_problems,
        seconds=seconds,
        directory=plan.directory,
        store_url=plan.store_url.partition("?")[0],
        problems=problems,
    )


def _story_problems(story: Story, read: ReadBack) -> list[str]:
    problems = []
    if not story.is_closed:
        problems.append("the writing process did not close the log")
    missing = story.opened[-1]["missing_from"]
    if missing is not None:
        problems.append(f"the restart missed records from offset {missing} on")
    if story.stopped is None or story.stopped["history_read"] != read.limit:
        found = story.stopped and story.stopped["history_read"]
        problems.append(f"the reader inside ended at {found}, the log at {read.limit}")
    failure = story.status.get("tier_failure")
    if failure:
        problems.append(f"shipping failed: {failure}")
    return problems


def _outside_problems(story: Story, read: ReadBack, outside: ReadTally) -> list[str]:
    """Compare what the consumer outside saw live with what the cloud holds now."""
    outside.settle(story.claims)
    problems = [f"the consumer outside: {text}" for text in outside.complaints]
    if outside.position != read.limit:
        problems.append(f"the consumer outside ended at {outside.position}, not {read.limit}")
    return problems + compare(outside, read.ledger)


def _spark_problems(read: ReadBack, asked: SparkPart) -> list[str]:
    if asked.failure is not None:
        return [asked.failure]
    found = asked.found
    if found is None:
        return []
    problems = []
    ours = read.ledger.by_stream()
    for stream in sorted(ours.keys() | found.by_stream.keys()):
        if ours.get(stream) != found.by_stream.get(stream):
            problems.append(
                f"Spark counts {found.by_stream.get(stream)} records and bytes in stream {stream}, "
                f"the log holds {ours.get(stream)}"
            )
    if (found.head, found.limit) != (read.head, read.limit):
        problems.append(
            f"Spark saw offsets [{found.head}, {found.limit}), the log holds "
            f"[{read.head}, {read.limit})"
        )
    return problems


def _spark_remark(asked: SparkPart, problems: list[str]) -> str:
    if asked.left_out is not None:
        return asked.left_out
    if problems or asked.found is None:
        return problems[0]
    return f"version {asked.found.version}, {len(asked.found.by_stream)} streams"


def _milliseconds(latencies: LatencySamples, percent: float) -> float | None:
    found = latencies.percentile(percent)
    return None if found is None else round(found * 1000, 3)
