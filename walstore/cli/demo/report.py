"""The result of the demo: figures, what did not agree, and how both are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from walstore.cli.output import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run of the demo found. The fields are those of ``walstore demo --json``."""

    ok: bool
    records: int
    """Records in the log, all of them read back."""
    acknowledged: int
    """Records whose append had returned; each must be there."""
    megabytes: float
    """Bytes of values, in units of 1 000 000."""
    appends_per_second: float
    """Acknowledged records by the time in which the producers ran."""
    append_p50_ms: float | None
    """Durable append: from the call to its return, for the samples' appends."""
    append_p99_ms: float | None
    tail_p50_ms: float | None
    """From the call of append to the record's arrival at a reader that tails the log."""
    tail_p99_ms: float | None
    commits: int
    segments: int
    """Segments that were sealed."""
    fragments: int
    lost: int
    """Acknowledged records that were not found."""
    duplicated: int
    disk_head: int
    """First offset still on local disk; what lies before was uploaded and deleted there."""
    setsum: str
    kills: int
    recovered_tail: int
    """Offset at which the log went on after the kill."""
    truncated_bytes: int
    """Bytes of an unfinished batch that the restart cut off."""
    streams: dict[str, tuple[int, int]]
    """Records and bytes of values by stream."""
    spark: str
    """The version whose totals agree, or why Spark was left out."""
    spark_ok: bool | None
    """None if Spark was left out."""
    seconds: float
    """How long all of it took."""
    directory: str
    store_url: str
    problems: list[str]
    """What does not agree; empty if all is well."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def show(result: Result, console: Console) -> None:
    """Print the figures as a short table."""
    show_figures(_rows(result), console)


def show_figures(rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Print rows of a name, a figure and a remark."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left", style="bold")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")
    for name, value, remark in rows:
        table.add_row(name, value, remark)
    console.print(table)


def _rows(result: Result) -> list[tuple[str, str, str]]:
    return [
        ("records", format_count(result.records), "read back from the cloud, one by one"),
        ("MB", f"{result.megabytes:.1f}", "values alone"),
        ("appends/s", format_count(result.appends_per_second), "acknowledged on disk"),
        ("durable append", format_times(result.append_p50_ms, result.append_p99_ms), "p50 / p99"),
        ("append to tail", format_times(result.tail_p50_ms, result.tail_p99_ms), "p50 / p99"),
        ("commits", format_count(result.commits), "one write and one sync each"),
        ("segments", format_count(result.segments), f"sealed; disk begins at {result.disk_head}"),
        ("fragments", format_count(result.fragments), f"setsum {result.setsum[:16]}… verified"),
        (
            "kill -9",
            str(result.kills),
            f"went on at offset {result.recovered_tail}, {result.truncated_bytes} bytes cut off",
        ),
        ("Spark", _spark(result), result.spark),
        ("lost", str(result.lost), f"of {format_count(result.acknowledged)} acknowledged"),
        ("duplicated", str(result.duplicated), ""),
    ]


def _spark(result: Result) -> str:
    if result.spark_ok is None:
        return "left out"
    return "agrees" if result.spark_ok else "disagrees"


def format_times(p50_ms: float | None, p99_ms: float | None) -> str:
    """Return two latencies for people."""
    if p50_ms is None or p99_ms is None:
        return "none"
    return f"{p50_ms:.2f} / {p99_ms:.2f} ms"
