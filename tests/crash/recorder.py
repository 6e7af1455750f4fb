"""Records lives of a log: what runs under strace, and what becomes of its calls.

    python -m tests.crash.recorder live DIRECTORY SEED STEPS
    python -m tests.crash.recorder again DIRECTORY SEED …

Run so by :func:`record_life` and :func:`record_restarts`; it writes its reports to a descriptor that the
recorder knows. Stores into mapped memory are no calls, so before each sync the child reports what the durable
cell holds; a cell that is written by calls needs none of that.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.disk import Disk
from tests.crash.strace import REPORTS, record
from tests.crash.tracing import Reader, Tree

ROOT = Path(__file__).parents[2]
CELL = "DURABLE"


@dataclass(slots=True)
class Life:
    """A trace, from a directory in which nothing was."""

    seed: int
    events: list[list]
    begins: int = 0
    """Where the part begins whose moments are of interest; what comes before was a life of its own."""


def record_life(scratch: Path, seed: int, steps: int) -> Life:
    """Record a log's life from its creation on."""
    root = scratch / f"life-{seed}"
    root.mkdir(parents=True)
    tree = Tree(root)
    calls = _record(["live", str(root / "log"), str(seed), str(steps)])
    (events,) = Reader([tree], ROOT).read(calls)
    return Life(seed, events)


def record_restarts(scratch: Path, life: Life, moments: Sequence[int]) -> list[Life]:
    """Kill the life at each of some moments and record what the next process does then.

    A killed process leaves its files as they are; what of them is on the disk, nobody knows.
    """
    disk, trees, at = Disk(), [], 0
    for number, moment in enumerate(sorted(moments)):
        while at < moment:
            disk.apply(life.events[at])
            at += 1
        root = scratch / f"restart-{life.seed}-{number}"
        root.mkdir(parents=True)
        for path, data in disk.visible():
            if data is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(data)
        trees.append(_tree_of(root, disk))
    arguments = [str(tree.root / "log") for tree in trees]
    read = Reader(trees, ROOT).read(_record(["again", str(life.seed), *arguments]))
    return [
        Life(life.seed, [*life.events[:moment], *events], moment)
        for moment, events in zip(sorted(moments), read, strict=True)
    ]


def _tree_of(root: Path, disk: Disk) -> Tree:
    names = {path: file for path, file in disk.names.items() if file is not None}
    directories = {".", *(path for path, file in disk.names.items() if file is None)}
    sizes = {file: content.size for file, content in disk.contents.items()}
    for file, content in disk.contents.items():
        sizes[file] = max(content.size, len(content.outcome(None, None)))
    return Tree(root, names, directories, sizes, 1 + max(disk.contents, default=0))


def _record(arguments: list[str]) -> list:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "tests.crash.recorder", *arguments]
    return record(command, cwd=ROOT, environment=environment)


# -- in the child ----------------------------------------------------------------------------


def _watch_cell(place: list[Path]) -> Callable[[], bytes | None]:
    def look() -> bytes | None:
        try:
            return (place[0] / CELL).read_bytes()
        except OSError:
            return None

    return look


def main(kind: str, *arguments: str) -> None:
    """Live, and report the cell before each sync."""
    place = [Path()]
    from tests.crash.workload import live, live_again, reporter
    from walstore.core.files import unlinked_file

    unlinked_file.PART_BYTES = 8192  # so that these small segments are freed in parts, too
    say = reporter(REPORTS, _watch_cell(place))
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _reporting(getattr(os, name), say))
    if kind == "live":
        place[0] = Path(arguments[0])
        asyncio.run(live(place[0], say, int(arguments[1]), int(arguments[2])))
        return
    for number, directory in enumerate(arguments[1:]):
        say(["at", number])
        place[0] = Path(directory)
        asyncio.run(live_again(place[0], say, int(arguments[0])))


def _reporting(call: Callable[[int], None], say: Callable[[list], None]) -> Callable[[int], None]:
    def sync(descriptor: int) -> None:
        say([])
        call(descriptor)

    return sync


if __name__ == "__main__":
    main(*sys.argv[1:])
