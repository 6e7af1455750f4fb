"""MemberLogs: the logs of a cluster, as an HTTP server uses those of a store. It can use what is led here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from walstore.cluster.member import ClusterMember
from walstore.errors import InvalidSettingsError, LogNotFoundError, StorageUnavailableError
from walstore.http.protocol import RefusedError
from walstore.log.wal import Wal
from walstore.net.wire.address import Address
from walstore.store.log_catalog import LogCatalog
from walstore.topology.documents import check_log_name

_LATER: Final = {"Retry-After": "1"}


class WebLeader(NamedTuple):
    """The machine that leads a log, as its HTTP server is reached."""

    web: str
    moved: Callable[[], Coroutine[Any, Any, None]]
    """Returns when another machine leads the log."""


class MemberLogs(LogCatalog):
    """The logs of a cluster. Belongs to the event loop of the member, which stays the caller's."""

    has_lifetimes = False

    def __init__(self, member: ClusterMember) -> None:
        """Of the cluster that ``member`` belongs to."""
        self.member: Final = member
        """This machine."""

    @property
    def is_closing(self) -> bool:
        """Whether this machine is no part of the cluster, not yet or not any more."""
        return self.member.is_closing or not self.member.is_joined

    def opened(self) -> Mapping[str, Wal]:
        """Return the logs that are led here."""
        return self.member.led

    async def logs(self) -> list[str]:
        """Return the names of all logs of the cluster."""
        return sorted(self.member.view.specs)

    def _exists(self, name: str) -> bool:
        """Return whether the cluster has a log of this name. RefusedError with 503 before it is known."""
        if not self.member.is_joined:
            raise RefusedError(503, "this machine is starting, and knows no logs yet", _LATER)
        return name in self.member.view.specs

    async def wal(self, name: str) -> Wal:
        """Return a log, made if there is none.

        RefusedError with 503 if it is led elsewhere, with 409 if a machine has records of a log of that name.
        """
        if not self._exists(name):
            check_log_name(name)  # InvalidSettingsError, as it is
            try:
                await self.member.make_log_here(name)
            except InvalidSettingsError as error:
                raise RefusedError(409, str(error)) from None
        found = await self.member.find(name)
        if isinstance(found, Address):
            raise RefusedError(503, f"the log is led at {found} now; send it again", _LATER)
        return found

    async def find(self, name: str) -> Wal | None:
        """Return a log, if the cluster has it. RefusedError with 503 as :meth:`wal`."""
        try:
            return await self.wal(name) if self._exists(name) else None
        except LogNotFoundError:  # it was taken out of the cluster
            return None

    async def leader_of(self, name: str) -> WebLeader | None:
        """Return the machine that leads a log; None if that is this one, or the cluster has no such log.

        RefusedError with 503 if there is a leader without one, with 501 for a log that is read from a store.
        """
        view = self.member.view
        if not self._exists(name):
            return None
        if view.specs[name].source:
            text = (
                "the log is read from a store, and not over HTTP; use walstore.connect_readonly()"
            )
            raise RefusedError(501, text)
        try:
            found = await self.member.find(name)
        except StorageUnavailableError as error:
            raise RefusedError(503, str(error), _LATER) from None
        if not isinstance(found, Address):
            return None
        leader = view.members.get(str(found))
        if leader is None or not leader.web:
            raise RefusedError(
                503,
                f"the log is led at {found}, which other machines do not reach over HTTP",
                _LATER,
            )
        return WebLeader(leader.web, partial(self.member.moved, name, found))

    @property
    def cluster(self) -> dict[str, Any]:
        """Machines and logs, for the page."""
        view = self.member.view
        return {
            "address": self.member.address,
            "members": [
                {
                    "address": one.address,
                    "zone": one.zone,
                    "web": one.web,
                    "leads": sum(leader.address == one.address for leader in view.leaders.values()),
                    "copies": sum(one.address in spec.copies for spec in view.specs.values()),
                }
                for one in sorted(view.members.values())
            ],
            "logs": [self._log(name) for name in sorted(view.specs)],
        }

    def _log(self, name: str) -> dict[str, Any]:
        spec, leader = self.member.view.specs[name], self.member.view.leaders.get(name)
        is_led = leader is not None and leader.epoch > 0
        return {
            "name": name,
            "replicas": spec.replicas,
            "quorum": spec.needed,
            "labels": dict(spec.labels),
            "suspended": spec.suspended,
            "source": spec.source,
            "copies": list(spec.copies),
            "leader": leader.address if leader is not None and is_led else None,
            "epoch": leader.epoch if leader is not None and is_led else None,
            "present": [leader.address, *leader.present] if leader is not None and is_led else [],
            "missing": dict(leader.missing) if leader is not None and is_led else {},
        }
