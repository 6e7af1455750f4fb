"""CopyList: on which machines a log has copies, and how many of them have to have a record."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from walstore.core.format.packed import MOST_OFFSET
from walstore.core.validation.arguments import as_count, as_seconds, as_text, as_texts
from walstore.errors import InvalidSettingsError
from walstore.net.wire.address import Address, parse_address
from walstore.topology.documents import check_log_name
from walstore.topology.etcd_address import parse_etcd
from walstore.topology.key_values import KeyValues
from walstore.topology.session import LEASE_SECONDS, MOST_LEASE_SECONDS

_MOST_SECONDS: Final = 3600.0
_SCRUB_SECONDS: Final = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyList:
    """Where the copies of a log are; what :class:`walstore.Replication` says."""

    nodes: Sequence[str]
    """Addresses of the other copies, 1 to 15: ``tls://host:7420``, ``tcp://127.0.0.1:7420``,
    ``unix:///…``. None with ``replicas=1``: this program has the only copy, and its own sync acknowledges."""
    replicas: int | None = None
    """Copies in all, the primary's included; must be one more than ``nodes``, and is if left out."""
    quorum: int | None = None
    """Copies that must have a record before it is acknowledged, the primary's included: 1 to ``replicas``.
    More than half of them if left out. Any quorum and ``replicas - quorum + 1`` copies have one in common,
    so that many are needed to take over, and more than half."""
    name: str | None = None
    """Name of the log on the nodes, of letters, digits, ``_``, ``-`` and ``.``; default: its directory's."""
    token: str | None = field(default=None, repr=False)
    """What the nodes ask for (``WALSTORE_TOKEN`` there)."""
    tls: ssl.SSLContext | None = None
    """Trust for ``tls://`` addresses; the system's if left out."""
    generation: int = 0
    """Number of this list of nodes. Give each change of ``nodes`` or ``quorum`` a higher one: copies that
    know a newer list refuse programs that still have an older one, with FencedError."""
    joined: Mapping[str, int] = field(default_factory=dict)
    """Of nodes that came into the list later: the generation of the first list with them. If such a node has
    a copy of a time before, that counts only when it has caught up, as a new one. Of two copies, one that
    came with this very list need not have caught up for a takeover; so let a program with the list before
    that lead the log once, and its copy stay until one has led with the same list and a higher
    ``generation``."""
    joined_here: int = 0
    """The same of this program's copy."""
    topology: str | KeyValues | None = None
    """What the machines share, so that one of them leads at a time: ``etcd://host:2379,host2:2379``, or a
    store of ``walstore.topology`` that is open. Opening waits until no other program's lease lasts."""
    address: str = ""
    """With ``topology``: where clients reach this program, for others to see."""
    lease_seconds: int = LEASE_SECONDS
    """With ``topology``: how long others wait for this program once it is silent, 1 to 3600."""
    patience_seconds: float = 10.0
    """How long opening waits for enough copies, and an append once there are too few, 0.01 to 3600."""
    scrub_seconds: float = _SCRUB_SECONDS
    """In what time the primary reads all segments of all copies once, a MiB at a time, and has damage
    replaced from a whole copy. A day if left out; 0: never. Each takeover begins again, at a random
    segment."""

    def __post_init__(self) -> None:
        as_texts(self.nodes, "nodes")
        if not (self.replicas != 1) <= len(self.nodes) <= 15:
            raise InvalidSettingsError(
                f"nodes must be 1 to 15 addresses, or none with replicas=1, not {len(self.nodes)}"
            )
        found = [str(address) for address in self.addresses]
        if len(set(found)) < len(found):
            raise InvalidSettingsError("two of the nodes have the same address")
        if self.replicas is not None and as_count(self.replicas, "replicas") != len(found) + 1:
            raise InvalidSettingsError(
                f"replicas must be {len(found) + 1}, the nodes and this program, not {self.replicas}"
            )
        if self.quorum is not None:
            as_count(self.quorum, "quorum", high=self.copies)
        if isinstance(self.topology, str):
            parse_etcd(self.topology)
        as_count(self.lease_seconds, "lease_seconds", high=MOST_LEASE_SECONDS)
        if as_text(self.address, "address"):
            parse_address(self.address)
        if self.name is not None:
            check_log_name(self.name)
        for number in (self.generation, self.joined_here, *self.joined.values()):
            as_count(number, "a generation", low=0, high=MOST_OFFSET)
        if as_seconds(self.scrub_seconds, "scrub_seconds") < 0:
            raise InvalidSettingsError(f"scrub_seconds must not be below 0: {self.scrub_seconds!r}")
        if not 0.01 <= as_seconds(self.patience_seconds, "patience_seconds") <= _MOST_SECONDS:
            raise InvalidSettingsError(
                f"patience_seconds must be 0.01 to 3600, not {self.patience_seconds!r}"
            )

    @property
    def addresses(self) -> list[Address]:
        """The nodes' addresses, parsed."""
        return [parse_address(node) for node in self.nodes]

    @property
    def copies(self) -> int:
        """Copies in all."""
        return len(self.nodes) + 1

    @property
    def needed_to_take_over(self) -> int:
        """Copies that must promise to obey a new primary: one of so many has what was acknowledged.

        And more than half of them, so that of each epoch there is one primary.
        """
        return max(self.copies - self.needed + 1, self.copies // 2 + 1)

    def is_new(self, node: str | None) -> bool:
        """Whether the copy at a node, None for this program's, came with this very list of copies."""
        joined = self.joined_here if node is None else self.joined.get(node, 0)
        return joined == self.generation > 0

    @property
    def needed_to_confirm(self) -> int:
        """Copies that must obey a primary, its own among them, so that nobody has taken over.

        One of those that a takeover needs; with two, also if the new one is given up: then the other one.
        """
        if self.copies == 2 and self.is_new(None):
            return 2
        return self.copies - self.needed_to_take_over + 1

    @property
    def needed(self) -> int:
        """Copies that must have a record."""
        return self.copies // 2 + 1 if self.quorum is None else self.quorum
