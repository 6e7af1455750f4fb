"""Which tests a change can break: ``python -m tests.ci.selection`` prints their files.

A test file is reached by a change if it needs a changed file, directly or through others (``dependencies``).
The distance is the number of steps between both. In doubt a test is reached: a change of a file that every
test has to do with reaches all, and the tests of the repository as a whole (``tests/test_*.py``) are always
reached.

A change that makes a module impossible to import can break tests that are not reached, since ``walstore``
and ``uploader`` import most of their modules. The reached tests find that, too.

    python -m tests.ci.selection                    since the base of CI
    python -m tests.ci.selection --since v1 --why   since a commit, with reasons
"""

from __future__ import annotations

import argparse
import heapq
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.ci.dependencies import Graph, is_test, make_graph, text_of

ROOT: Final = Path(__file__).parents[2]

NEAR: Final = 2
"""``make test-changed`` runs slow tests of the changed package and of files within this distance ..."""
MOST_SLOW_FILES: Final = 30
"""... but not of more than so many files, which take about three minutes on two processors."""
FAR: Final = 9
"""The distance of tests that are reached in doubt, or by the ``__init__.py`` of a package."""
OLD_SECONDS: Final = 12 * 3600
"""A commit older than this is taken for what is known to be good, where nothing else is."""


class Reason(NamedTuple):
    """Why a test file is reached."""

    distance: int
    path: tuple[str, ...]
    """From the test file to a changed file; or what else it is."""

    def __str__(self) -> str:
        return " < ".join(self.path)


@dataclass(frozen=True)
class Selection:
    """The test files that a change reaches, and the others."""

    reached: Mapping[str, Reason]
    left_out: frozenset[str]

    def nearest(self) -> list[str]:
        """Return the tests of the changed packages, then others within ``NEAR`` steps."""
        near = [
            one
            for one, why in self.reached.items()
            if why.distance <= NEAR or self._is_of_the_package(one)
        ]
        return sorted(near, key=self._rank)

    def _rank(self, path: str) -> tuple[bool, int, str]:
        return not self._is_of_the_package(path), self.reached[path].distance, path

    def _is_of_the_package(self, path: str) -> bool:
        """Return whether a test is below ``tests/`` where the change is below the root."""
        package, _, _ = self.reached[path].path[-1].rpartition("/")
        return path.startswith(f"tests/{package}/")


def select(changed: Iterable[str], graph: Graph) -> Selection:
    """Return which of the graph's tests need one of the changed files."""
    changed = set(changed)
    tests = {path for path in graph if is_test(path)}
    reached = {path: why for path, why in _reach(changed, graph).items() if path in tests}
    common = sorted(path for path in changed if _is_common(path))
    for path in tests if common else ():
        reached.setdefault(path, Reason(FAR, (path, f"all need {common[0]}")))
    for path in tests if changed else ():
        if path.count("/") == 1:
            reached.setdefault(path, Reason(FAR, (path, "about the repository as a whole")))
    return Selection(reached, frozenset(tests - reached.keys()))


def _is_common(path: str) -> bool:
    """Return whether all tests have to do with a file."""
    return path in {"pyproject.toml", "tests/conftest.py", "tests/__init__.py"} or (
        path.startswith("tests/ci/") and not is_test(path)
    )


def _reach(changed: set[str], graph: Graph) -> dict[str, Reason]:
    """Walk from the changed files to all that need them, shortest ways first."""
    users: dict[str, list[str]] = {}
    for path, needed in graph.items():
        for one in needed:
            users.setdefault(one, []).append(path)
    reached: dict[str, Reason] = {}
    waiting = [(0, path, (path,)) for path in sorted(changed)]
    waiting += [(0, text_of(path), (path,)) for path in sorted(changed)]
    while waiting:
        distance, node, way = heapq.heappop(waiting)
        if node in reached:
            continue
        reached[node] = Reason(distance, way)
        for user in users.get(node, ()):
            if user not in reached:
                step = FAR if node.endswith("/__init__.py#text") else 1
                heapq.heappush(waiting, (distance + step, user, (user, *way)))
    return reached


# What git knows.


def _git(*arguments: str) -> str:
    command = ("git", *arguments)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _names(*arguments: str) -> set[str]:
    return {name for name in _git(*arguments, "-z").split("\0") if name}


def changed_since(base: str) -> set[str]:
    """Return what differs from a commit, with files that git does not know yet."""
    unknown = _names("ls-files", "--others", "--exclude-standard")
    return _names("diff", "--name-only", "--no-renames", base) | {
        name for name in unknown if (ROOT / name).is_file()
    }


def read_graph(changed: Iterable[str] = ()) -> Graph:
    """Make the graph of the working tree. A changed file that is gone is one without text."""
    known = _names("ls-files", "--cached", "--others", "--exclude-standard")
    files = {}
    for name in sorted(known | set(changed)):
        path = ROOT / name
        is_code = name.endswith(".py") and path.is_file()
        if is_code:
            files[name] = path.read_text(encoding="utf-8")
        elif name in changed or path.is_file():
            files[name] = ""
    return make_graph(files)


def select_since(base: str) -> Selection:
    """Return what the changes since a commit reach."""
    changed = changed_since(base)
    return select(changed, read_graph(changed))


def last_base() -> str:
    """Return HEAD if files have changed since, or else the commit before it."""
    return "HEAD" if changed_since("HEAD") else "HEAD~1"


def ci_base() -> str:
    """Return the commit that CI compares with.

    ``WALSTORE_BASE``, or where this branch left origin's main. A clone whose main is HEAD itself does not
    know what was there before: the newest commit is taken that is twelve hours older than HEAD.
    """
    if base := os.environ.get("WALSTORE_BASE"):
        return base
    head = _git("rev-parse", "HEAD").strip()
    try:
        base = _git("merge-base", "HEAD", "origin/main").strip()
    except subprocess.CalledProcessError:
        base = head
    return base if base != head else _old_base(_git("log", "--first-parent", "--format=%H %ct"))


def _old_base(history: str) -> str:
    """Return the newest commit of a history that is old enough, or the oldest."""
    commits = [(name, int(time)) for name, time in map(str.split, history.splitlines())]
    newest = commits[0][1]
    old = (name for name, time in commits if newest - time >= OLD_SECONDS)
    return next(old, commits[-1][0])


def has_slow_tests(path: str) -> bool:
    """Return whether a test file, or a fixture for it, has the mark ``slow``."""
    places = [ROOT / path, *(parent / "conftest.py" for parent in (ROOT / path).parents)]
    texts = (place.read_text(encoding="utf-8") for place in places if place.is_file())
    return any("mark.slow" in text for text in texts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the test files that are reached, and on stderr how many are not."""
    parser = argparse.ArgumentParser(prog="python -m tests.ci.selection")
    base = parser.add_mutually_exclusive_group()
    base.add_argument("--since", metavar="COMMIT", help="compare with this commit")
    base.add_argument("--last", action="store_true", help="what is not committed, or else HEAD")
    parser.add_argument("--why", action="store_true", help="print distances and ways to the change")
    parser.add_argument("--slow", action="store_true", help="the nearest files with slow tests")
    given = parser.parse_args(arguments)
    found = select_since(given.since or (last_base() if given.last else ci_base()))
    if given.slow:
        files = [path for path in found.nearest() if has_slow_tests(path)][:MOST_SLOW_FILES]
        of = f"{sum(map(has_slow_tests, found.reached))} reached test files with slow tests"
    else:
        files = sorted(found.reached)
        of = f"{len(found.reached) + len(found.left_out)} test files"
    for path in files:
        print(f"{found.reached[path].distance} {found.reached[path]}" if given.why else path)
    print(f"selection: {len(files)} of {of}", file=sys.stderr)


if __name__ == "__main__":
    main()
