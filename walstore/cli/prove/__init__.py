"""walstore prove: kills, pauses, full disks, flipped bits and lost answers, and every history checked."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from walstore.cli.errors import CORRUPTION, UsageError
from walstore.cli.location import fresh_prefix, to_directory, to_url
from walstore.cli.machine import describe_machine
from walstore.cli.measurement import MeasurePlan, measure_disk
from walstore.cli.options import AsJson, argument, option
from walstore.cli.output import (
    complain,
    format_count,
    format_time,
    print_verdict,
    replaced_file,
    terminal,
)
from walstore.cli.prove.page import prove_page
from walstore.cli.running import run_async, stop_on_signal
from walstore.core.runtime.clock import SystemClock
from walstore.errors import LogNotFoundError, WalError
from walstore.location import is_url

if TYPE_CHECKING:
    from walstore.cli.prove.run import ProvePlan, Tried

PROVE_EXAMPLES = """\
  walstore prove /var/lib/app
  walstore prove /mnt/disk --minutes 60 --page prove.html
  walstore prove /mnt/disk --only kills,power --seed 4711
  walstore prove 's3://bucket/try?endpoint_url=http://127.0.0.1:9000' --json
"""
_NOT_TRIED_ON_DISK: Final = (
    (
        "cutting the power of this machine",
        "no program can; 'power' tries what may be left if the disk keeps what it has synced",
    ),
    (
        "a file system that is really full",
        "needs root, to mount a small one; 'full' fails calls with ENOSPC at a random byte",
    ),
    ("a disk that fails to read or to sync", "needs root, to put a failing device below the log"),
)
_NOT_TRIED_IN_STORE: Final = (
    ("a store that loses or alters objects by itself", "only its operator can make it do so"),
    ("an outage of a region, expired credentials", "they belong to the provider"),
    ("requests that arrive after minutes or hours", "late ones arrive within a second here"),
)
_NOT_TRIED: Final = (("machines of a cluster", "there are no rounds for clusters"),)
_PREFIX: Final = "walstore-prove-"
_DISK_SECONDS: Final = 1.0
"""How long the disk alone is measured, before the rounds."""


def prove(
    place: Annotated[str, argument("PLACE", "A directory, or a store URL, to make logs below.")],
    *,
    minutes: Annotated[float, option("--minutes", "How long to try.", min=0.001, max=100_000)] = 10,
    seed: Annotated[
        int | None,
        option("--seed N", "Of the first round. Default: a random one.", min=0, max=2**53),
    ] = None,
    only: Annotated[
        str | None,
        option(
            "--only KINDS",
            "Of a directory: kills, pauses, full, flips, power; of a store: kills, pauses, faults.",
        ),
    ] = None,
    page: Annotated[
        str | None, option("--page FILE", "Also write what was tried and found as an HTML page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try to break logs on your own disk or bucket for minutes, and check every history.

    Rounds make logs in a directory, or below a prefix, of their own in PLACE, and touch nothing else.
    Writers are killed and paused, disks are full, bits flip, answers of the store are lost. After each,
    every acknowledged record must be there once, in order, with its value. What a round made is removed
    unless a rule was broken: then the exit code is 2, and a line gives the command that repeats the round.
    SIGINT and SIGTERM end it early, with what was tried so far.
    """
    from walstore.cli.prove.run import Prove

    plan, environment = _plan(place, minutes, seed, only)
    proving = Prove(plan)

    async def run() -> None:
        with terminal().status("proving") as status, stop_on_signal() as stop:
            await proving.prepare()
            await proving.run(stop, status.update)

    try:
        with nullcontext() if page is None else replaced_file(Path(page)) as file:
            environment |= _measured(plan)
            run_async(run())
            if not proving.tried.counts:
                raise WalError("interrupted before the first round was complete")
            report = _report(plan, proving.tried, environment)
            if file is not None:
                trials = {name: (one.about, one.rule) for name, one in plan.trials.items()}
                file.write(prove_page(report, trials).encode(errors="backslashreplace"))
    except BaseException:
        if plan.url is not None and proving.tried.has_objects:
            complain(f"objects may be left under {plan.url.partition('?')[0]}")
        raise
    finally:
        if not proving.tried.problems:
            shutil.rmtree(plan.place, ignore_errors=True)
    is_ok = print_verdict("prove", report, _rows(report), as_json=as_json)
    if not is_ok:
        for name in ("rule", "repeat", "evidence"):
            complain(f"{name}: {report[name]}")
        raise typer.Exit(CORRUPTION)


def _plan(
    location: str, minutes: float, seed: int | None, only: str | None
) -> tuple[ProvePlan, dict[str, str]]:
    """Return what to do, and what is known of the place. Makes the directory of the rounds."""
    from walstore.cli.prove.run import ProvePlan
    from walstore.cli.prove.trials import BUCKET_TRIALS, DIRECTORY_TRIALS

    is_stored = is_url(location)
    below = to_url(location, "prove") if is_stored else None
    kinds = _kinds(only, list(BUCKET_TRIALS if is_stored else DIRECTORY_TRIALS))
    if below is not None:
        place, url = Path(tempfile.mkdtemp(prefix=_PREFIX)), fresh_prefix(below, "prove")
    else:
        directory = to_directory(location, "prove")
        if not directory.is_dir():
            raise LogNotFoundError(f"there is no directory {directory}", location=str(directory))
        place, url = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory.absolute())), None
    if seed is None:
        seed = random.SystemRandom().getrandbits(32)
    plan = ProvePlan(location, place, url, seed, 60 * minutes, kinds)
    now = format_time(SystemClock().now_us())
    return plan, {"time": f"{now} UTC", **describe_machine(place)}


def _kinds(only: str | None, known: list[str]) -> tuple[str, ...]:
    if only is None:
        return tuple(known)
    given = [name.strip() for name in only.split(",")]
    wrong = [name for name in given if name not in known]
    if wrong:
        raise UsageError(
            f"there are no rounds of {wrong[0]!r} here; --only takes {','.join(known)}"
        )
    return tuple(dict.fromkeys(given))


def _measured(plan: ProvePlan) -> dict[str, str]:
    """Return how long a sync of the disk takes, where the rounds are on one."""
    if plan.url is not None:
        return {}
    seconds = min(_DISK_SECONDS, plan.seconds / 10)
    place = plan.place / "disk"
    place.mkdir()
    (disk, *_) = measure_disk(
        MeasurePlan(place=place, seconds=4 * seconds, producers=1, record_bytes=100)
    )
    shutil.rmtree(place)
    return {"write + fdatasync": f"p50 {disk.p50_ms:.2f} ms, p99 {disk.p99_ms:.2f} ms"}


def _report(plan: ProvePlan, tried: Tried, environment: dict[str, str]) -> dict[str, Any]:
    """Return the fields of ``walstore prove --json``; docs/cli.md describes them."""
    is_stored = plan.url is not None
    return {
        "ok": not tried.problems,
        "location": plan.location.partition("?")[0] if is_stored else plan.location,
        "seed": plan.seed,
        "last_seed": tried.last_seed,
        "kinds": list(plan.kinds),
        "seconds": round(tried.seconds, 3),
        "interrupted": tried.is_interrupted,
        "rounds": dict(tried.rounds),
        "counts": {kind: dict(counts) for kind, counts in tried.counts.items()},
        "environment": environment,
        "not_tried": [
            *(
                {
                    "what": f"rounds of {kind}",
                    "why": "left out" if kind not in plan.kinds else "no time",
                }
                for kind in plan.trials
                if not tried.rounds[kind]
            ),
            *(
                {"what": what, "why": why}
                for what, why in (
                    *(_NOT_TRIED_IN_STORE if is_stored else _NOT_TRIED_ON_DISK),
                    *_NOT_TRIED,
                )
            ),
        ],
        "rule": tried.rule,
        "repeat": tried.repeat,
        "evidence": tried.evidence,
        "problems": tried.problems,
    }


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    rounds = report["rounds"]
    by_kind = ", ".join(f"{kind} {count}" for kind, count in rounds.items())
    yield "rounds", format_count(sum(rounds.values())), by_kind
    total: Counter[str] = Counter()
    for counts in report["counts"].values():
        total.update(counts)
    for name, count in total.items():
        yield name.replace("_", " "), format_count(count), ""
    last = "" if report["last_seed"] is None else f"to {report['last_seed']}"
    yield "seed", str(report["seed"]), last
    for name, value in report["environment"].items():
        yield name, "", value
    for one in report["not_tried"]:
        yield "not tried here", "", f"{one['what']}: {one['why']}"
