"""What a run prints about itself, and ``tests/timing.json``: the seconds of the run before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.ci.record import NOT_RUN
from tests.ci.step import Result
from tests.ci.verdict import Verdict

TIMING: Final = Path(__file__).parents[1] / "timing.json"
SLOWEST: Final = 20
LEAST_SECONDS: Final = 0.5
"""Files that take less are not listed one by one."""


def timing(results: Iterable[Result], directory: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is worth comparing: for each step, its seconds, tests, started processes and slow files.

    A file that did not run, or not all of it, keeps the time of the run before.
    """
    return {
        result.step.name: {
            "seconds": round(result.seconds),
            "tests": result.record.counts().total(),
            "starts": dict(sorted(_starts(directory / f"{result.step.name}.starts").items())),
            "files": _files(result, before.get(result.step.name, {}).get("files", {})),
        }
        for result in results
    }


def _files(result: Result, before: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the files that take long."""
    unfinished = {test.file for test in result.record.tests.values() if not test.is_finished}
    kept = {name: before[name] for name in {*result.step.left_out, *unfinished} if name in before}
    measured = {
        name: round(seconds, 1)
        for name, seconds in result.record.seconds_by_file().items()
        if seconds >= LEAST_SECONDS and name not in unfinished
    }
    return dict(sorted((kept | measured).items()))


def read_timing(path: Path = TIMING) -> dict[str, Any]:
    """Return the timing of the run before; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _starts(path: Path) -> Counter[str]:
    """Return how many processes of each kind were started."""
    if not path.exists():
        return Counter()
    return Counter(line.split(" ", 1)[0] for line in path.read_text().splitlines())


def lines(
    results: Sequence[Result], verdict: Verdict, now: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the report, a line at a time."""
    yield from _slowest(results)
    yield "\n== time and started processes, and those of the run before"
    for name, figures in now.items():
        yield f"{name:12} {_figures(figures)}   before: {_figures(before.get(name))}"
    for result in results:
        yield from _lanes(result)
        yield from _not_run(result)
    if verdict.flaky:
        yield "\n== failed once, and passed alone: to be listed in tests/flaky.md and mended"
        yield from (f"flaky: {test.node}: {test.message}" for test in verdict.flaky)
    if verdict.defects:
        yield "\n== defects"
        yield from verdict.defects


def _slowest(results: Iterable[Result]) -> Iterator[str]:
    tests = [test for result in results for test in result.record.tests.values()]
    yield f"\n== the slowest {SLOWEST} tests"
    for test in sorted(tests, key=lambda one: -one.seconds)[:SLOWEST]:
        yield f"{test.seconds:7.1f} s  {test.node}"


def _figures(figures: Mapping[str, Any] | None) -> str:
    if not figures:
        return "-"
    starts = ", ".join(f"{count} {kind}" for kind, count in figures["starts"].items())
    return f"{figures['seconds']} s, {figures['tests']} tests" + (f", {starts}" if starts else "")


def _lanes(result: Result) -> Iterator[str]:
    """Yield how long each worker was busy, and with how much of a group."""
    lanes: Counter[str] = Counter()
    for test in result.record.tests.values():
        lanes[f"{test.worker} {test.group}".strip()] += test.seconds  # type: ignore[assignment]
    if len(lanes) > 1:
        busy = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(lanes.items()))
        yield f"{result.step.name:12} lanes: {busy}"


def _not_run(result: Result) -> Iterator[str]:
    nodes = [test.node for test in result.record.by_outcome(NOT_RUN)] + result.record.never_begun()
    late = sorted({node.partition("::")[0] for node in nodes})
    running = result.record.by_outcome(None)
    if result.was_stopped:
        yield f"\n== {result.step.name} was stopped after {result.seconds:.0f} s; running were"
        yield from (test.node for test in running)
    if late:
        yield f"\n== {result.step.name}: no time was left for tests of {len(late)} files"
        yield from late
    if result.step.left_out:
        total = len(result.step.left_out) + len(result.step.files or ())
        yield f"\n== {result.step.name}: {len(result.step.left_out)} of {total} files have another turn"
        yield from _by_directory(result.step.left_out)


def _by_directory(files: Iterable[str]) -> Iterator[str]:
    directories: dict[str, list[str]] = {}
    for name in files:
        directory, _, file = name.rpartition("/")
        directories.setdefault(directory, []).append(file.removeprefix("test_").removesuffix(".py"))
    for directory, names in sorted(directories.items()):
        yield f"{directory}: {' '.join(sorted(names))}"
