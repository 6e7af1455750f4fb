"""Weather: how slow the disk of a simulated machine is, and what goes wrong on it."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

OPENING: Final = frozenset(
    {"open", "list", "list_directories", "read", "sync_directory", "lock", "lock_shared"}
    | {"cell", "view_cell"}
)
"""Calls that need a descriptor."""
GROWING: Final = frozenset({"pwrite", "allocate", "open", "cell"})
"""Calls that need space."""
CHANGING: Final = GROWING | {"truncate", "replace", "remove", "sync_directory", "datasync", "store"}
_SECONDS: Final = {"datasync": 400e-6, "sync_directory": 300e-6, "pwrite": 40e-6, "pread": 30e-6}
_OTHER_SECONDS: Final = 15e-6


class Fault(NamedTuple):
    """How a call fails: after doing a share of its work, 0 to 1."""

    error: int
    share: float


@dataclass
class Weather:
    """Faults come one by one, and as conditions that last for a while."""

    random: Random
    rate: float = 0.0
    """Share of all calls that change something and fail for no reason."""
    read_rate: float = 0.0
    """The same of all calls that only look."""
    stall_rate: float = 0.0
    """Share of all calls that take seconds."""
    slowness: float = 1.0
    is_full: bool = False
    is_dead: bool = False
    has_no_descriptors: bool = False
    keeps_files: bool = False
    """Nothing may be deleted. This and the next are no reason for a log to fail."""
    has_no_checkpoint: bool = False
    needs_checkpoint: bool = False
    """Whether data waits for a checkpoint: the first of a store's log makes its epoch durable."""
    faults: int = field(default=0, init=False)
    """How many calls failed so far that data depends on."""
    nuisances: int = field(default=0, init=False)
    """How many others."""

    @classmethod
    def fine(cls, random: Random) -> Weather:
        return cls(random)

    def clear(self) -> None:
        """Let nothing fail any more."""
        self.rate = self.read_rate = self.stall_rate = 0.0
        self.is_full = self.is_dead = self.has_no_descriptors = False
        self.keeps_files = self.has_no_checkpoint = False

    def seconds(self, kind: str) -> float:
        """Return how long a call takes."""
        usual = _SECONDS.get(kind, _OTHER_SECONDS) * self.slowness
        if self.stall_rate and self.random.random() < self.stall_rate:
            return self.random.uniform(0.5, 20.0)
        return self.random.expovariate(1 / usual)

    def fault(self, kind: str, name: str) -> Fault | None:
        """Return how a call on a file of that name fails, if it does."""
        if self.keeps_files and kind == "remove" and name.endswith((".wal", ".broken")):
            self.nuisances += 1
            return Fault(errno.EACCES, 0.0)
        if self.has_no_checkpoint and kind == "open" and name == "CHECKPOINT.tmp":
            if self.needs_checkpoint:
                self.faults += 1
            else:
                self.nuisances += 1
            return Fault(errno.EMFILE, 0.0)
        found = self._fault(kind)
        self.faults += found is not None
        return found

    def _fault(self, kind: str) -> Fault | None:
        random = self.random
        if self.is_dead and (kind in CHANGING or random.random() < 0.3):
            return Fault(errno.EIO, 0.0)
        if self.is_full and kind in GROWING and random.random() < 0.9:
            return Fault(errno.ENOSPC, random.random() if kind == "pwrite" else 0.0)
        if self.has_no_descriptors and kind in OPENING:
            return Fault(errno.EMFILE, 0.0)
        rate = self.rate if kind in CHANGING else self.read_rate
        if not rate or random.random() >= rate:
            return None
        codes = [errno.EIO]
        if kind in OPENING:
            codes += [errno.EMFILE]
        if kind in GROWING:
            codes += [errno.ENOSPC]
        if kind in ("remove", "replace"):
            codes += [errno.EACCES]
        code = random.choice(codes)
        whole = code == errno.EIO and random.random() < 0.3
        share = 1.0 if whole else random.random() if kind in ("pwrite", "datasync") else 0.0
        return Fault(code, share)
