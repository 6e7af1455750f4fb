"""walstore demo: the whole path once, with a kill in the middle.

``run`` is the parent, which starts and kills the writing process (``writer``) and reads everything back;
``checks`` compares what was read with what was appended. docs/cli.md ("Demo") describes the steps.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from walstore.cli.errors import FAILED, UsageError
from walstore.cli.location import fresh_prefix, own_directory, to_url
from walstore.cli.options import AsJson, option
from walstore.cli.output import complain, format_count, print_verdict, terminal
from walstore.cli.running import run_async

PROC: Final = Path("/proc")
DEMO_EXAMPLES = """\
  walstore demo
  walstore demo --seconds 30 --directory /var/tmp/demo
  walstore demo --store 's3://bucket/try?endpoint_url=http://127.0.0.1:9000' --no-spark
"""


def demo(
    *,
    directory: Annotated[
        Path | None,
        option(
            "--directory DIR",
            "Keep everything here; it must be empty. Otherwise a temporary directory is used.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        option("--store URL", "Ship to a fresh prefix below this URL, and leave it there."),
    ] = None,
    seconds: Annotated[float, option("--seconds", "How long to append.", min=2, max=86400)] = 12,
    no_spark: Annotated[bool, option("--no-spark", "Skip the Spark part.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the whole path once: append, tail, rotate, ship, kill -9, restart, read back, Spark.

    Producers append samples of this machine from /proc and the source files of the installed Python
    packages, while consumers tail the log. The writing process is killed half-way and restarted once.
    Then the log is read from disk and from the store alone: every acknowledged record must be there
    exactly once, setsums must add up, and Spark's totals must agree. The last line is 'demo: ok'; if
    anything disagrees, the reason goes to stderr and the exit code is 1.
    """
    if not (PROC / "stat").exists():
        raise UsageError("the demo reads samples of this machine from /proc, which is not there")
    from walstore.cli.demo.run import Demo  # a missing extra is reported before anything is made
    from walstore.cli.demo.writer import DemoJob

    place = own_directory(directory, "demo")
    url = (place / "store").as_uri()
    if store is not None:
        url = fresh_prefix(to_url(store, "--store"), "demo")
    log = place / "log"
    job = DemoJob(directory=str(log), store_url=url, seconds=seconds / 2)
    is_ok = False
    try:
        try:
            result = run_async(Demo(job, terminal(), with_spark=not no_spark).run())
        except Exception:
            if not as_json:
                print("demo: failed", flush=True)
            raise
        is_ok = print_verdict("demo", result, rows(result), as_json=as_json)
    finally:
        if directory is None and (is_ok or not log.exists()):
            shutil.rmtree(place, ignore_errors=True)
        else:
            complain(f"the log is kept in {log}")
        if store is not None:
            complain(f"the objects are kept under {url.partition('?')[0]}")
    if not is_ok:
        raise typer.Exit(FAILED)


def rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the table: a name, a figure and a remark in each row."""

    def count(name: str) -> str:
        return format_count(result[name])

    def times(what: str) -> str:
        p50, p99 = (result[f"{what}_{percentile}_ms"] for percentile in ("p50", "p99"))
        return "none" if p50 is None else f"{p50:.2f} / {p99:.2f} ms"

    recovered, cut = result["recovered_tail"], result["truncated_bytes"]
    spark = {None: "left out", True: "agrees", False: "disagrees"}[result["spark_ok"]]
    return [
        ("records", count("records"), "read back from the cloud, one by one"),
        ("MB", f"{result['megabytes']:.1f}", "values alone"),
        ("appends/s", count("appends_per_second"), "acknowledged on disk"),
        ("durable append", times("append"), "p50 / p99"),
        ("append to tail", times("tail"), "p50 / p99"),
        ("commits", count("commits"), "one write and one sync each"),
        ("segments", count("segments"), f"sealed; disk begins at {result['disk_head']}"),
        ("fragments", count("fragments"), f"setsum {result['setsum'][:16]}… verified"),
        ("kill -9", count("kills"), f"went on at offset {recovered}, {cut} bytes cut off"),
        ("Spark", spark, result["spark"]),
        ("lost", count("lost"), f"of {count('acknowledged')} acknowledged"),
        ("duplicated", count("duplicated"), ""),
    ]
