"""walstore soak: a load on a log whose processes are killed, and every record of it checked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from walstore.cli.append import Level
from walstore.cli.errors import CORRUPTION, UsageError
from walstore.cli.location import fresh_prefix, own_directory, to_directory, to_url
from walstore.cli.options import AsJson, LayoutName, argument, option
from walstore.cli.output import complain, format_count, print_verdict, terminal
from walstore.cli.running import run_async, stop_on_signal
from walstore.location import is_url

SOAK_EXAMPLES = """\
  walstore soak
  walstore soak /var/tmp/soak --minutes 60 --layout chain --tier s3://bucket/soak
  walstore soak 's3://bucket/soak?endpoint_url=http://127.0.0.1:9000' --rate 200 --json
"""


def soak(
    location: Annotated[
        str | None,
        argument(
            "LOCATION",
            "An empty directory, or a store URL to append to directly. Default: a temporary directory.",
        ),
    ] = None,
    *,
    minutes: Annotated[
        float, option("--minutes", "How long to append.", min=0.01, max=100_000)
    ] = 5,
    tier: Annotated[str | None, option("--tier URL", "Ship a directory's log below this.")] = None,
    layout: Annotated[LayoutName, option("--layout", "Layout of the stored log.")] = "swap",
    durability: Annotated[
        Level | None, option("--durability", "What appends wait for; default disk.")
    ] = None,
    rate: Annotated[
        float, option("--rate", "Records a second in all streams.", min=1, max=1e6)
    ] = 1000,
    kill_seconds: Annotated[
        float, option("--kill-seconds", "Mean time between kills; 0: none.", min=0, max=1e6)
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Append for minutes while processes are killed, and check that each record is read once, in order.

    Writers append to streams of very different rates, readers follow, and a collector removes read
    records. Writers, readers and the collector are processes that are killed with SIGKILL and restarted.
    At the end all stored data is verified. The exit code is 2 if a record is not 1:1, data is damaged, or a
    process failed; stderr gives the reason. SIGINT and SIGTERM end the load early; the check follows.
    """
    from walstore.cli.soak.child import SoakJob
    from walstore.cli.soak.run import Soak

    async def run() -> dict[str, Any]:
        with terminal().status("soaking") as status, stop_on_signal() as stop:
            soaking = Soak(plan, place, seconds=60 * minutes, kill_seconds=kill_seconds)
            return await soaking.run(stop, status.update)

    is_stored = location is not None and is_url(location)
    if is_stored and (tier is not None or durability not in {None, "cloud"}):
        raise UsageError("--tier and --durability memory or disk are for directories")
    given = None if location is None or is_stored else to_directory(location, "soak")
    target = location if is_stored else tier
    below = to_url(target, "soak" if is_stored else "--tier") if target is not None else None
    place = own_directory(given, "soak")
    url = (place / "store").as_uri() if below is None else fresh_prefix(below, "soak")
    plan = SoakJob(
        url=url,
        directory=None if is_stored else str(place / "log"),
        layout=layout,
        durability=durability or ("cloud" if is_stored else "disk"),
        seed=random.SystemRandom().getrandbits(32),
        rate=rate,
        collect_seconds=min(5.0, 6 * minutes),
    )
    is_ok = False
    try:
        report = run_async(run())
        is_ok = print_verdict("soak", report, _rows(report), as_json=as_json)
    finally:
        has_begun = any(place.iterdir())
        if has_begun and (given is not None or not is_ok):
            complain(f"logs of the processes, and what else is on disk, are kept in {place}")
        elif given is None:
            shutil.rmtree(place, ignore_errors=True)
        if has_begun and below is not None:
            complain(f"the objects are kept under {url.partition('?')[0]}")
    if not is_ok:
        raise typer.Exit(CORRUPTION)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, found in report.items():
        by_role = found if isinstance(found, dict) else {"": found}
        for role, one in by_role.items():
            figure = len(one) if isinstance(one, list) else one
            is_count = isinstance(figure, int) and not isinstance(figure, bool)
            text = format_count(figure) if is_count else str(figure)
            yield f"{name.replace('_', ' ')} {role}".rstrip(), text, ""
