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
from itertools import count
from pathlib import Path

from tests.storm.child import Scene
from tests.storm.story import ROUNDS, Counts, Story

KINDS = ("log", "retention", "log", "store", "log", "tier", "retention", "store")


def run_story(seed: int, base: str | None, keep: Path | None, rounds: int = ROUNDS) -> Counts:
    """Run one story in a directory of its own."""
    logging.getLogger("walstore").setLevel(logging.CRITICAL)  # tells of each torn tail
    kind = KINDS[seed % len(KINDS)]
    directory = Path(tempfile.mkdtemp(prefix="walstore-storm-", dir=base))
    story = Story(Scene(kind, directory, seed))
    try:
        story.run(rounds)
    except Exception:  # noqa: BLE001 - whatever it is, it is what was looked for
        where = "its directory was removed"
        if keep is not None:
            where = str(keep / f"{kind}-{seed}")
            shutil.copytree(directory, where, dirs_exist_ok=True)
        story.counts.failures.append(
            f"{kind}, seed {seed}, after {story.counts.kills} kills; {where}\n"
            + traceback.format_exc()
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return story.counts


def describe(counts: Counts, seconds: float) -> str:
    """Return the counts as a line."""
    return (
        f"{counts.kills} x kill -9 ({counts.while_opening} while opening, {counts.while_closing} while "
        f"closing), {counts.acknowledged} acknowledged appends, {counts.seen} records seen by followers, "
        f"{counts.judged} times judged: {len(counts.failures)} broke a promise; {seconds:.0f} s, "
        f"{counts.kills / max(seconds, 0.001):.1f} kills a second"
    )


def main() -> int:
    """Run stories until there were enough kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    parser.add_argument("--kills", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="kills of each directory")
    parser.add_argument("--directory", help="where the logs are made; default: in memory")
    parser.add_argument("--keep", type=Path, default=Path("build/storm-failures"))
    found = parser.parse_args()
    base = found.directory or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    began, total, waiting = time.monotonic(), Counts(), []
    with multiprocessing.Pool(found.processes) as pool:
        for seed in count(found.seed):
            waiting.append(pool.apply_async(run_story, (seed, base, found.keep, found.rounds)))
            if len(waiting) < 2 * found.processes:
                continue
            counts = waiting.pop(0).get()
            print(*(f"\n{failure}" for failure in counts.failures), sep="", end="", flush=True)
            total.add(counts)
            print(f"… {describe(total, time.monotonic() - began)}", flush=True)
            if total.kills >= found.kills:
                break
        for last in waiting:
            counts = last.get()
            print(*(f"\n{failure}" for failure in counts.failures), sep="", end="")
            total.add(counts)
    print(f"storm: seed {found.seed}: {describe(total, time.monotonic() - began)}")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
