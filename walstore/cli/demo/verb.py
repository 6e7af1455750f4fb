"""walstore demo: the whole path once, with a kill in the middle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from walstore.cli.demo import samples
from walstore.cli.demo.plan import DemoRun
from walstore.cli.errors import FAILED, UsageError
from walstore.cli.location import fresh_prefix, own_directory, to_url
from walstore.cli.options import AsJson
from walstore.cli.output import complain, print_json, terminal
from walstore.cli.running import run_async

if TYPE_CHECKING:
    from walstore.cli.demo.show import Show

EXAMPLES = """\b
Examples:
  walstore demo
  walstore demo --seconds 30 --directory /var/tmp/demo
  walstore demo --store 's3://bucket/try?endpoint_url=http://127.0.0.1:9000' --no-spark
"""


def demo(
    *,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            help="Keep everything here; it must be empty. Otherwise a temporary directory is used.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Ship to a fresh prefix below this URL, and leave it there.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=2, max=86400, help="How long to append.")
    ] = 12,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave Spark out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the whole path once: append, tail, rotate, ship, kill -9, restart, read back, Spark.

    Producers append samples of this machine from /proc and the source files of the installed Python
    packages, while consumers tail the log. The writing process is killed half-way and restarted once.
    Then the log is read from disk and from the store alone: every acknowledged record must be there
    exactly once, setsums must add up, and Spark's totals must agree. The last line is 'demo: ok'; if
    anything disagrees, the reason goes to stderr and the exit code is 1.
    """
    if not samples.is_available():
        raise UsageError("the demo reads samples of this machine from /proc, which is not there")
    from walstore.cli.demo.show import Show  # a missing extra is told before anything is made

    place = own_directory(directory, "demo")
    url = (place / "store").as_uri()
    if store is not None:
        url = fresh_prefix(to_url(store, "--store"), "demo")
    plan = DemoRun(directory=str(place / "log"), store_url=url, life_seconds=seconds / 2)
    is_ok = False
    try:
        is_ok = _run(Show(plan, terminal(), with_spark=not no_spark), as_json=as_json)
    finally:
        if directory is None and (is_ok or not plan.log_path.exists()):
            shutil.rmtree(place, ignore_errors=True)
        else:
            complain(f"the log is kept in {plan.directory}")
        if store is not None:
            complain(f"the objects are kept under {url.partition('?')[0]}")
    if not is_ok:
        raise typer.Exit(FAILED)


def _run(run: Show, *, as_json: bool) -> bool:
    """Run the demo, print what came of it, and return whether all agreed."""
    from walstore.cli.demo.report import show

    try:
        result = run_async(run.run())
    except Exception:
        if not as_json:
            print("demo: failed", flush=True)
        raise
    if as_json:
        print_json(result.to_json())
    else:
        show(result, Console(highlight=False))
    for problem in result.problems:
        complain(f"demo: {problem}")
    verdict = "demo: ok" if result.ok else "demo: failed"
    if as_json:
        complain(verdict)
    else:
        print(verdict, flush=True)
    return result.ok
