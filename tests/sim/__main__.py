"""Runs histories: ``python -m tests.sim --seeds 2000`` many, ``--seed 7`` one with its trace.

Of local logs; with ``--cloud`` of logs in object storage, of which even seeds have the layout ``swap``; with
``--collections`` of versioned collections, of which odd seeds have the kind ``upsert``; with ``--groups`` of
groups whose members share an object in a store; with ``--replicas`` of a log on several machines.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from tests.sim import events, plan
from tests.sim.cloud import events as cloud_events
from tests.sim.cloud import plan as cloud_plan
from tests.sim.cloud.history import CloudHistory
from tests.sim.cloud.ledger import CLOUD_RULES
from tests.sim.collections import plan as collection_plan
from tests.sim.collections.history import CollectionHistory, happenings
from tests.sim.collections.truth import COLLECTION_RULES
from tests.sim.groups import history as group_history
from tests.sim.groups import plan as group_plan
from tests.sim.groups.truth import GROUP_RULES
from tests.sim.history import History
from tests.sim.replicas import history as replica_history
from tests.sim.replicas import plan as replica_plan
from tests.sim.replicas.rules import REPLICA_RULES
from tests.sim.rules import RULES, ViolationError
from tests.sim.shrink import shrink

_CHUNK: Final = 10
_TRACE_LINES: Final = 150
_ENOUGH: Final = 500
"""In so many histories everything happens."""


class Kind(NamedTuple):
    """What is simulated."""

    option: str
    """What the command line says."""
    draw: Any
    history: Any
    events: Any
    rules: dict[str, str]


LOCAL: Final = Kind("", plan.draw, History, events.events, RULES)
COLLECTIONS: Final = Kind(
    " --collections",
    collection_plan.draw,
    CollectionHistory,
    happenings,
    COLLECTION_RULES,
)
GROUPS: Final = Kind(
    " --groups",
    group_plan.draw,
    group_history.GroupHistory,
    group_history.happenings,
    GROUP_RULES,
)
REPLICAS: Final = Kind(
    " --replicas",
    replica_plan.draw,
    replica_history.ReplicaHistory,
    replica_history.happenings,
    REPLICA_RULES,
)
CLOUD: Final = Kind(" --cloud", cloud_plan.draw, CloudHistory, cloud_events.events, CLOUD_RULES)


class Failure(NamedTuple):
    """A seed that broke a rule."""

    seed: int
    rule: str
    story: str


def run(kind: Kind, plan: Any) -> tuple[Any, Exception | None]:
    """Run a history; return it and what was found."""
    history = kind.history(plan)
    try:
        history.run()
    except Exception as error:  # noqa: BLE001 - a defect of the simulation is reported, too
        return history, error
    return history, None


def rule_of(error: Exception) -> str:
    return error.rule if isinstance(error, ViolationError) else f"defect: {type(error).__name__}"


def rule_broken(kind: Kind, plan: Any) -> str | None:
    """Return what a history breaks."""
    _, error = run(kind, plan)
    return None if error is None else rule_of(error)


def run_chunk(
    seeds: Iterable[int],
    without: Collection[str] = (),
    ignored: tuple[str, ...] = (),
    *,
    kind: Kind = LOCAL,
) -> tuple[Counter[str], list[Failure]]:
    """Run some seeds; return what happened and what was found."""
    happened: Counter[str] = Counter()
    found = []
    for seed in seeds:
        history, error = run(kind, kind.draw(seed).without(without).replace(ignored=ignored))
        happened.update(kind.events(history))
        if error is not None:
            found.append(Failure(seed, rule_of(error), str(error)))
    return happened, found


def run_many(
    kind: Kind,
    first: int,
    count: int,
    workers: int,
    without: Collection[str],
    ignored: tuple[str, ...],
    *,
    goes_on: bool,
) -> bool:
    """Run seeds in several processes; return whether no rule was broken and everything happened."""
    begun = time.monotonic()
    limit = first + count
    chunks = [range(at, min(at + _CHUNK, limit)) for at in range(first, limit, _CHUNK)]
    happened: Counter[str] = Counter()
    found: list[Failure] = []
    done = 0
    chunk = partial(run_chunk, without=without, ignored=ignored, kind=kind)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for events_of, failures in pool.imap_unordered(chunk, chunks):
            done += 1
            happened.update(events_of)
            for failure in failures:
                print(f"seed {failure.seed}: {failure.story[:600]}")
                print(f"    replay: {replay(kind, failure.seed, without, ignored)}", flush=True)
            found += failures
            if found and not goes_on:
                pool.terminate()
                break
            if done % 20 == 0:
                print(f"{done * _CHUNK} histories, {time.monotonic() - begun:.0f} s", flush=True)
    for name, times in happened.items():
        print(f"{times:9} {name}")
    seconds = time.monotonic() - begun
    print(f"{min(done * _CHUNK, count)} histories in {seconds:.0f} s, {len(found)} broke a rule")
    for rule, times in Counter(failure.rule for failure in found).most_common():
        print(f"{times:6} x {rule}: {kind.rules.get(rule, '')}")
    never = [name for name, times in happened.items() if not times]
    if never and count >= _ENOUGH and not found:
        print(f"this never happened, so nothing is known of it: {', '.join(never)}")
        return False
    return not found


def replay(kind: Kind, seed: int, without: Collection[str], ignored: Collection[str]) -> str:
    """Return the command that runs a seed again."""
    rest = f" --without {','.join(without)}" if without else ""
    rest += f" --ignore {','.join(ignored)}" if ignored else ""
    return f"{os.path.relpath(sys.executable)} -m tests.sim{kind.option} --seed {seed}{rest}"


def show(kind: Kind, plan: Any, lines: int, without: Collection[str] = ()) -> int:
    """Run one history and print what happened in it."""
    history, error = run(kind, plan)
    shown = history.trace[-lines:] if lines else history.trace
    print(plan)
    for seconds, who, text in shown:
        print(f"{seconds:12.6f} {who:8} {text}")
    if error is None:
        groups = kind.events(history).get("groups appended", 0)
        print(f"seed {plan.seed} breaks no rule: {len(history.trace)} lines, {groups} groups")
        return 0
    cause = error.__cause__
    if cause is not None:
        traceback.print_exception(cause)
    elif not isinstance(error, ViolationError):
        traceback.print_exception(error)
    again = replay(kind, plan.seed, without, plan.ignored)
    print(f"\nseed {plan.seed} breaks {error}\nreplay: {again}")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--cloud", action="store_true", help="simulate logs in object storage")
    parser.add_argument("--collections", action="store_true", help="simulate collections")
    parser.add_argument("--groups", action="store_true", help="simulate groups in a store")
    parser.add_argument("--replicas", action="store_true", help="simulate a replicated log")
    parser.add_argument("--seed", type=int, help="run this one and print its trace")
    parser.add_argument("--seeds", type=int, default=2000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--lines", type=int, default=_TRACE_LINES, help="lines of the trace; 0 for all"
    )
    parser.add_argument("--shrink", action="store_true", help="look for a shorter story first")
    parser.add_argument("--goes-on", action="store_true", help="do not stop at the first failure")
    parser.add_argument(
        "--without", default="", help="acts, followers, ends to leave out: cancel,trim"
    )
    parser.add_argument("--ignore", default="", help="rules not to look at: releases,one-writer")
    options = parser.parse_args()
    ignored = tuple(filter(None, options.ignore.split(",")))
    without = tuple(filter(None, options.without.split(",")))
    chosen = [
        (options.collections, COLLECTIONS),
        (options.cloud, CLOUD),
        (options.groups, GROUPS),
        (options.replicas, REPLICAS),
    ]
    kind = next((kind for is_chosen, kind in chosen if is_chosen), LOCAL)
    if options.seed is None:
        holds = run_many(
            kind,
            options.first,
            options.seeds,
            options.workers,
            without,
            ignored,
            goes_on=options.goes_on,
        )
        return 0 if holds else 1
    drawn = kind.draw(options.seed).without(without).replace(ignored=ignored)
    if options.shrink:
        drawn = shrink(drawn, partial(rule_broken, kind))
    return show(kind, drawn, options.lines, without)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of names is part of a history
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], environment)
    sys.exit(main())
