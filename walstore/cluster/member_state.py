"""MemberState: what a member of a cluster is made of, for the parts that act for it. On the event loop."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from walstore.cluster.replication.node import ReplicaNode
from walstore.cluster.replication.replication import Replication
from walstore.cluster.view import ClusterView
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock, FileSystem
from walstore.core.settings import Settings
from walstore.core.tier_port import Tier
from walstore.errors import InvalidSettingsError
from walstore.topology.documents import LogSpec
from walstore.topology.key_values import KeyValues
from walstore.topology.session import Session

_TAG_BYTES: Final = 8


class MemberState:
    """What all parts of one member share."""

    def __init__(
        self,
        node: ReplicaNode,
        keys: KeyValues,
        session: Session,
        view: ClusterView,
        clock: Clock,
        *,
        lease_seconds: int,
        replace_seconds: float,
        replication: dict[str, Any],
        settings: Settings,
        tier: Callable[[str, str], Tier] | None,
        wal: dict[str, Any],
    ) -> None:
        """``replication`` and ``wal`` are options of each log: of its replication, and of its opening."""
        self.node = node
        """The copies of the logs that others lead."""
        self.keys = keys
        """What the cluster shares."""
        self.session = session
        """The lease of this machine."""
        self.view = view
        """What is known of the cluster."""
        self.clock = clock
        """Sleeps between attempts."""
        self.address = ""
        """Where others reach this machine, once it has joined."""
        self.is_closing = False
        """Whether it leads nothing any more."""
        self.replaced_by = ""
        """Why it left the cluster, if another program serves one at its address now."""
        self.home = f"{socket.gethostname()}:{node.directory.absolute()}"
        """Its host and directory, for people."""
        self.files: FileSystem = wal["fs"] or PosixFileSystem()
        """Of its directory."""
        self.lease_seconds = lease_seconds
        """As given to :meth:`open`."""
        self.tls: ssl.SSLContext | None = replication["tls"]
        self.token: str | None = replication["token"]
        """Trust for other machines."""
        self.replace_seconds = replace_seconds
        """As given to :meth:`open`."""
        self._replication = replication
        self._settings = settings
        self._tier = tier
        self._wal = wal

    def make_tag(self) -> bytes:
        """Return bytes that no other program has."""
        return os.urandom(_TAG_BYTES)

    def replication(self, name: str, nodes: Sequence[str], spec: LogSpec) -> Replication:
        """Return how a log is replicated to other machines."""
        return Replication(
            nodes=nodes,
            replicas=len(nodes) + 1,
            quorum=spec.needed,
            generation=spec.generation,
            joined={node: spec.joined.get(node, 0) for node in nodes},
            joined_here=spec.joined.get(self.address, 0),
            name=name,
            **self._replication,
        )

    def log_options(self, name: str, spec: LogSpec) -> dict[str, Any]:
        """Return what a log is opened with; InvalidSettingsError if its tier cannot be made here."""
        if spec.tier and self._tier is None:
            raise InvalidSettingsError(f"{name} ships to {spec.tier}; this machine has no tier=")
        try:
            tier = self._tier(name, spec.tier) if self._tier is not None and spec.tier else None
        except (
            Exception
        ) as error:  # the caller's function: its mistake must not end the machine's part
            raise InvalidSettingsError(
                f"tier= made no tier of {spec.tier} for {name}: {error!r}"
            ) from error
        return {**self._wal, "settings": spec.over(self._settings), "tier": tier}
