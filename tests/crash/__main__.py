"""Records lives of the log under strace, makes the states a crash may leave, and tries each.

    python -m tests.crash run --states 20000 --seed 1
    python -m tests.crash rebuild LIFE MOMENT NUMBER MOST INTO     # a state that failed
    python -m tests.crash golden FILE                              # the recording for machines without strace

Exit status: 0 if every promise was kept, 1 if not, 77 if strace cannot run here, after saying why.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from functools import partial
from itertools import count
from pathlib import Path

from tests.crash import strace
from tests.crash.campaign import Tally, rebuild, save, try_life
from tests.crash.recorder import Life, record_life, record_restarts

CANNOT = 77
_TURNS = ("rename", "unlink", "size")


def choose_moments(life: Life, many: int) -> list[int]:
    """Choose moments for kills: half of them at turns of the log's life, half anywhere."""
    chance = random.Random(life.seed)
    turns = turns_of(life)
    near = [min(len(life.events), at + chance.randint(0, 3)) for at in turns]
    chosen = chance.sample(near, min(many // 2, len(near)))
    chosen += chance.sample(range(10, len(life.events) + 1), many - len(chosen))
    return sorted(set(chosen))


def turns_of(life: Life) -> list[int]:
    """Return the moments right after a segment was sealed, cut, named or removed, and not yet synced."""
    return [at + 1 for at, event in enumerate(life.events) if event[0] in _TURNS or _seals(event)]


def _seals(event: list) -> bool:
    return event[0] == "write" and event[3].startswith(b"WALIDX")


def try_seed(seed: int, *, steps: int, restarts: int, most: int, keep: Path | None) -> Tally:
    """Record a life and its restarts, and try their states."""
    logging.getLogger("walstore").setLevel(logging.CRITICAL)  # tells of each torn tail
    tally = Tally(lives=1)
    with tempfile.TemporaryDirectory() as scratch:
        life = record_life(Path(scratch), seed, steps)
        lives = record_restarts(Path(scratch), life, choose_moments(life, restarts))
    tally.restarts = len(lives)
    for one in [life, *lives]:
        try_life(one, tally, most=most, keep=keep)
    return tally


def run(arguments: argparse.Namespace) -> int:
    """Try seed after seed until there are enough states."""
    try:
        strace.prepare(install=True)
    except strace.CannotTraceError as error:
        print(f"crash: {error}", file=sys.stderr)
        return CANNOT
    began, total = time.monotonic(), Tally()
    job = partial(
        try_seed,
        steps=arguments.steps,
        restarts=arguments.restarts,
        most=arguments.most,
        keep=arguments.keep,
    )
    with multiprocessing.Pool(arguments.processes) as pool:
        waiting = []
        for seed in count(arguments.seed):
            waiting.append(pool.apply_async(job, (seed,)))
            if len(waiting) < arguments.processes:
                continue
            total.add(waiting.pop(0).get())
            print(f"… {total.describe(time.monotonic() - began)}", flush=True)
            if total.distinct >= arguments.states:
                break
        for last in waiting:
            total.add(last.get())
    for failure in sorted(total.failures.values(), key=lambda failure: -failure.count):
        print(f"\n{failure.describe()}")
    print(f"crash: seed {arguments.seed}: {total.describe(time.monotonic() - began)}")
    if total.distinct < arguments.states:
        return 1
    return 1 if total.failures else 0


def main() -> int:
    """Run a verb."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("--states", type=int, default=20_000)
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--steps", type=int, default=30, help="in each of a life's three sessions")
    running.add_argument("--restarts", type=int, default=24, help="kills of each life")
    running.add_argument("--most", type=int, default=8, help="states of each moment")
    running.add_argument("--processes", type=int, default=2)
    running.add_argument("--keep", type=Path, default=Path("build/crash-failures"))
    again = verbs.add_parser("rebuild")
    again.add_argument("life", type=Path)
    again.add_argument("moment", type=int)
    again.add_argument("number", type=int)
    again.add_argument("most", type=int)
    again.add_argument("into", type=Path)
    golden = verbs.add_parser("golden")
    golden.add_argument("file", type=Path)
    golden.add_argument("--seed", type=int, default=4)
    golden.add_argument("--steps", type=int, default=8)
    found = parser.parse_args()
    if found.verb == "run":
        return run(found)
    if found.verb == "golden":
        strace.prepare()
        with tempfile.TemporaryDirectory() as scratch:
            life = record_life(Path(scratch), found.seed, found.steps)
            (restart,) = record_restarts(Path(scratch), life, [len(life.events) * 2 // 3])
        save(life, found.file)
        save(restart, found.file.with_stem(found.file.stem + "-restart"))
        return 0
    error = rebuild(found.life, found.moment, found.number, found.most, found.into)
    if error is None:
        print(f"{found.into}: every promise is kept")
        return 0
    traceback.print_exception(error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
