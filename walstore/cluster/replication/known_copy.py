"""KnownCopy: the copy at one node, as far as repairs and the scrub need to know of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from walstore.cluster.replication.remote_copy import RemoteCopy
from walstore.net.wire.address import Address


class KnownCopy(ABC):
    """One copy. Belongs to the event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        """Of the node."""
        self.repairing = asyncio.Lock()
        """Held while a segment of the copy is repaired: one after the other."""
        self.reached: RemoteCopy | None = None
        """The copy, while the node is connected."""

    @property
    @abstractmethod
    def is_present(self) -> bool:
        """Whether it has been compared with the primary, and follows it."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Why it is not present; None if it is."""
