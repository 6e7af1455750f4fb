"""Lead: what a primary is to those who work for it: a takeover, and the followers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from walstore.cluster.replication.copy_list import CopyList
from walstore.cluster.replication.copy_marks import CopyMarks
from walstore.cluster.replication.healing import Healer
from walstore.cluster.replication.remote_copy import RemoteCopy, client_of
from walstore.cluster.replication.written import WrittenBytes
from walstore.core.ports import Clock
from walstore.errors import FencedError
from walstore.net.remote.client import Client
from walstore.net.wire.address import Address
from walstore.topology.documents import check_log_name

_TAG_BYTES: Final = 8


def random_tag() -> bytes:
    """Return bytes that no other program has."""
    return os.urandom(_TAG_BYTES)


class Lead(ABC):
    """One opening of a replicated log, and how it reaches the copies. Belongs to the event loop."""

    written: WrittenBytes
    """What the copies follow."""

    def __init__(
        self,
        replication: CopyList,
        path: Path,
        *,
        clock: Clock,
        make_tag: Callable[[], bytes],
        marks: CopyMarks | None,
    ) -> None:
        """For the log in ``path``."""
        self.settings = replication
        """As given to :meth:`walstore.Wal.open`."""
        name = path.name if replication.name is None else replication.name
        self.name = check_log_name(name, hint="; give Replication(name=...)")
        """Name of the log at the nodes."""
        self.clock = clock
        """Sleeps between attempts."""
        self.make_tag = make_tag
        """Returns bytes that no other program has."""
        self.tag = make_tag().hex()
        """Names this opening."""
        self.epoch = 0
        """Of this opening, once it has taken over."""
        self.log_id = b""
        """The log's identity."""
        self.marks = marks
        """What the copies had last; None if no store knows."""
        self.replicated_limit = 0
        """Every offset below it is on enough machines."""

    def client_of(self, address: Address) -> Client:
        """Return a client of a node; connect it, and close it later."""
        return client_of(address, self.settings, clock=self.clock, make_tag=self.make_tag)

    def copy_at(self, client: Client, epoch: int) -> RemoteCopy:
        """Return the copy at a node, for this primary."""
        settings = self.settings
        return RemoteCopy(
            client,
            self.name,
            epoch,
            self.tag,
            seconds=settings.patience_seconds,
            generation=settings.generation,
            joined=settings.joined.get(str(client.address), 0),
        )

    @property
    @abstractmethod
    def source(self) -> Healer:
        """The log as other copies are made of it, once it has started."""

    @abstractmethod
    def count(self) -> None:
        """Acknowledge what enough copies have, and this one."""

    @abstractmethod
    async def admit(self, copy: RemoteCopy) -> None:
        """Let a copy count that is new, or whose disk is, and has caught up."""

    @abstractmethod
    def is_passed_over(self, error: FencedError) -> bool:
        """Take note of a copy that obeys a newer primary; return whether that has taken over."""
