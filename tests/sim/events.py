"""Events: how often what a simulation is for did happen. A run in which something never did is no proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tests.sim.history import History

SIGNS: Final = {
    "openings": "opened <Wal",
    "openings of other processes": "opened <ReadonlyWal",
    "power failures": "the power failed",
    "kills": "is killed",
    "processes whose tasks were cancelled": "cancels ",
    "cancelled calls": " was cancelled",
    "failed calls of the disk": " FAILS ",
    "calls told not_written": "Error not_written: ",
    "calls told unknown": "Error unknown: ",
    "segments": ".wal from next.tmp",
    "transactions of a file of their own": ".wal from transaction-",
    "segments deleted": "remove 0000",
    "readers passed by the head": "was passed by the head",
    "fences": " under fence ",
    "swaps": " swap ",
}
"""What the trace says of it."""


def count_signs(trace: Iterable[tuple[float, str, str]], signs: Mapping[str, str]) -> Counter[str]:
    """Count the lines of a trace that have each sign."""
    found = Counter(dict.fromkeys(signs, 0))
    for _, _, text in trace:
        for name, sign in signs.items():
            if sign in text:
                found[name] += 1
    return found


def events(history: History) -> Counter[str]:
    """Count what happened in a history."""
    found = count_signs(history.trace, SIGNS)
    torn = sum(
        "opened <Wal" in text and "truncated_bytes=0" not in text for _, _, text in history.trace
    )
    found["torn tails"] = torn
    found["surveys"] = history.book.checks
    found["groups appended"] = len(history.book.entries)
    return found
