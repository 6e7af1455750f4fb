"""Which test files a step of CI runs: those that the change can break, and a share of the others in turn.

Where the time does not suffice for all of these, by the seconds of the run before, those nearest to the
change run, and of the rest the ones that the name of the commit puts first: another commit has others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.ci import rotation, selection
from tests.ci.report import read_timing
from tests.ci.step import CONCLUSION_SECONDS

SLOW_SHARE: Final = 4
"""Of the slow tests that a change cannot break, one in so many files runs."""
DEBUG_SHARE: Final = 3
PACE: Final = 1.6
"""How many seconds of tests are done in one. Measured with three workers on two processors: 2.5 on a good day
(952 s of tests in 379 s), 1.7 on a bad one; a quarter less while another program has half of a processor."""
UNKNOWN_SECONDS: Final = 1.0
"""What a file is taken to need that is not in the timing: it is short, or new."""
WITHOUT_DEBUG: Final = ("tests/walstore/cli/", "tests/walstore/spark/")


@dataclass(frozen=True)
class Choice:
    """The files of a step."""

    run: Sequence[str]
    left_out: Sequence[str]


def files(target: str, seconds: float) -> Choice | None:
    """Return the choice for a target of ``make`` that has so many seconds; None if it runs all tests."""
    match target:
        case "test-slow":
            found = selection.select_since(selection.ci_base())
            slow = {
                path: found.reached[path].distance if path in found.reached else None
                for path in (*found.reached, *found.left_out)
                if selection.has_slow_tests(path)
            }
            known = read_timing().get(target, {}).get("files", {})
            return choose(
                slow, rotation.turn_of_head(), (seconds - CONCLUSION_SECONDS) * PACE, known
            )
        case "test-debug":
            return _debug_share(selection.read_graph(), rotation.turn_of_head())
    return None


def choose(
    distances: Mapping[str, int | None], turn: int, seconds: float, known: Mapping[str, float]
) -> Choice:
    """Choose among files with their distance from the change (None: not reached), by the seconds they took.

    The longest come first, so that the workers end together.
    """
    candidates = [
        path
        for path, distance in distances.items()
        if distance is not None or rotation.share(path, of=SLOW_SHARE, turn=turn)
    ]

    def urgency(path: str) -> tuple[bool, int, bytes]:
        distance = distances[path]
        is_far = distance is None or distance > selection.NEAR
        return is_far, 0 if distance is None or is_far else distance, _order(path, turn)

    chosen = []
    for path in sorted(candidates, key=urgency):
        seconds -= known.get(path, UNKNOWN_SECONDS)
        if seconds > 0:
            chosen.append(path)
    longest_first = sorted(chosen, key=lambda path: -known.get(path, UNKNOWN_SECONDS))
    return Choice(longest_first, sorted(distances.keys() - set(chosen)))


def _order(path: str, turn: int) -> bytes:
    return hashlib.sha256(f"{turn} {path}".encode()).digest()


def _debug_share(known: Iterable[str], turn: int) -> Choice:
    candidates = sorted(
        path
        for path in known
        if path.startswith("tests/walstore/")
        and selection.is_test(path)
        and not path.startswith(WITHOUT_DEBUG)
    )
    chosen = [path for path in candidates if rotation.share(path, of=DEBUG_SHARE, turn=turn)]
    return Choice(chosen, [path for path in candidates if path not in chosen])
