"""Replication: the option with which a log is opened that has copies on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from walstore.cluster.replication.copy_list import CopyList
from walstore.cluster.replication.primary import Primary
from walstore.core.ports import Clock
from walstore.core.replication_port import Replicator


@dataclass(frozen=True, kw_only=True, slots=True)
class Replication(CopyList):
    """Where the copies of a log are: option of :meth:`walstore.Wal.open`.

    The program that opens the log with it is the primary, and its directory one of the copies. The nodes
    are the other machines, each running ``walstore serve DIRECTORY --replicate``.
    """

    def begin(self, path: Path, clock: Clock) -> Replicator:
        """Not for callers: return what replicates one opening of the log at ``path``."""
        return Primary(self, path, clock=clock)
