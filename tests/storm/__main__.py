"""Kills writers by the thousand.

    python -m tests.storm --kills 1500 --seed 1

What a seed decides is the work and how each writer is killed; the exact moment is the system's. A directory
in which a promise was broken is kept. Exit status: 0 if every promise was kept, 1 if not.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import count
from pathlib import Path

from walstore.cli.prove.kills import WRITERS, KillRound
from walstore.cli.prove.writers import SCENES, Scene


def run_round(
    seed: int, base: str | None, keep: Path | None, writers: int
) -> tuple[Counter[str], str | None]:
    """Run one round in a directory of its own; return its counts, and what was wrong."""
    logging.getLogger("walstore").setLevel(logging.CRITICAL)  # tells of each torn tail
    kind = SCENES[seed % len(SCENES)]
    directory = Path(tempfile.mkdtemp(prefix="walstore-storm-", dir=base))
    counts: Counter[str] = Counter()
    try:
        KillRound(Scene(kind, directory, seed), counts).run(writers)
    except Exception:  # noqa: BLE001 - whatever it is, it is what was looked for
        where = "its directory was removed"
        if keep is not None:
            where = str(keep / f"{kind}-{seed}")
            shutil.copytree(directory, where, dirs_exist_ok=True)
        place = f"{kind}, seed {seed}, after {counts['kills']} kills; {where}\n"
        return counts, place + traceback.format_exc()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return counts, None


def describe(counts: Counter[str], failures: int, seconds: float) -> str:
    """Return the counts as a line."""
    return (
        f"{counts['kills']} x kill -9 ({counts['kills_opening']} while opening, {counts['kills_closing']} "
        f"while closing), {counts['acknowledged']} acknowledged appends, {counts['followed']} records seen "
        f"by followers, {counts['checks']} times checked: {failures} broke a promise; {seconds:.0f} s, "
        f"{counts['kills'] / max(seconds, 0.001):.1f} kills a second"
    )


def main() -> int:
    """Run rounds until there were enough kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    parser.add_argument("--kills", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=WRITERS, help="kills of each directory")
    parser.add_argument("--directory", help="where the logs are made; default: in memory")
    parser.add_argument("--keep", type=Path, default=Path("build/storm-failures"))
    found = parser.parse_args()
    base = found.directory or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    began, waiting = time.monotonic(), []
    total: Counter[str] = Counter()
    failures = 0
    with multiprocessing.Pool(found.processes) as pool:
        for seed in count(found.seed):
            if total["kills"] < found.kills:
                waiting.append(pool.apply_async(run_round, (seed, base, found.keep, found.rounds)))
            if len(waiting) < 2 * found.processes and total["kills"] < found.kills:
                continue
            if not waiting:
                break
            counts, failure = waiting.pop(0).get()
            total.update(counts)
            if failure is not None:
                failures += 1
                print(f"\n{failure}", end="", flush=True)
            print(f"… {describe(total, failures, time.monotonic() - began)}", flush=True)
    print(f"storm: seed {found.seed}: {describe(total, failures, time.monotonic() - began)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
