"""Events: how often what the simulation of the cloud is for did happen."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.sim.cloud.history import CloudHistory
from tests.sim.events import count_signs

SIGNS: Final = {
    "kills": "is killed",
    "processes whose tasks were cancelled": "cancels ",
    "cancelled calls": " was cancelled",
    "requests that took effect minutes later": " s ago)",
    "errors of servers that obeyed": "(then 500)",
    "puts that were refused": "= PreconditionFailedError",
    "calls told not_written": "Error not_written: ",
    "calls told unknown": "Error unknown: ",
    "contentions": ": ContentionError ",
    "appends at another offset than expected": ": OffsetMismatchError ",
    "looks at the whole log": "read [",
    "readers passed by the head": "was passed by the head",
    "cursors moved": "commit consume",
    "pins": "pinned ",
    "collections": "collected up to ",
    "snapshots": "SNAPSHOT.",
    "forks": "forked ",
    "seals": "seal -> ",
    "logs destroyed": "destroy -> ",
    "logs taken over by another directory": "was taken over",
    "outages": "the store is away: True",
}
"""What the trace says of it."""


def events(history: CloudHistory) -> Counter[str]:
    """Count what happened in a history."""
    found = count_signs(history.trace, SIGNS)
    found["collections that took something"] = sum(
        "collected up to " in text and not text.endswith(" 0 objects")
        for _, _, text in history.trace
    )
    found["requests repeated"] = history.world.repeated
    ledgers = history.ledgers.values()
    found["groups appended"] = sum(len(ledger.entries) for ledger in ledgers)
    found["whole logs read"] = sum(ledger.checks for ledger in ledgers)
    return found
