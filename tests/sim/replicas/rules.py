"""What must be true of a replicated log whatever happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tests.sim.rules import ViolationError

REPLICA_RULES: Final = {
    "acknowledged": "what was acknowledged is in the log of every later primary, in its place",
    "current": "what a primary says of the present has all that was acknowledged before it was asked",
    "seen": "what a reader saw is in the log of every later primary, in its place",
    "one-epoch": "no two primaries have the same epoch",
    "not-written": "what was reported as not written is never in the log",
    "once": "a value that was appended once is in the log once",
    "kept": "what was acknowledged before a copy was put back is on the disk of a machine in the end",
    "equal": "in the end all copies have the same log",
    "in-order": "some order of all calls, each between its begin and end, explains what was answered",
    "whole": "in the end the files of all copies are equal, byte for byte, whatever was damaged",
    "heals": "once all is well, a primary can be opened",
    "ends": "every call ends",
    "typed-errors": "calls raise WalError with an outcome, and asyncio has nothing to complain about",
}


class ReplicaViolationError(ViolationError):
    """A rule was broken."""

    rules: ClassVar[Mapping[str, str]] = REPLICA_RULES
