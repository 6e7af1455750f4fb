"""list_logs: which logs a server, or its cluster, has."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from walstore.core.ports import Clock
from walstore.errors import InvalidSettingsError, StorageUnavailableError
from walstore.net.remote.server_places import check_places
from walstore.topology.documents import is_selected, parse_selector

LIST_SERVICE: Final = "list"
"""What a client asks a server for to learn which logs it has."""


class ServedLog(NamedTuple):
    """A log that can be connected to."""

    name: str
    """For ``connect(log=NAME)``."""
    labels: Mapping[str, str] = {}
    """Of a log of a cluster."""
    leader: str | None = None
    """Of a log of a cluster, the address of the machine that leads it; None if none does now."""
    epoch: int | None = None
    """Of a log of a cluster that is led."""
    suspended: bool = False
    """Whether a log of a cluster is suspended: nobody leads it until it is resumed."""
    readonly: bool = False
    """Whether a log of a cluster is only read, from a store: use :func:`walstore.connect_readonly`."""


async def list_logs(
    address: str | Sequence[str],
    *,
    selector: str = "",
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_seconds: float = 10.0,
    clock: Clock | None = None,
) -> list[ServedLog]:
    """Return the logs of a server, or of its cluster, by name.

    Arguments and errors as :func:`walstore.connect`. ``selector``, such as ``env=prod,!old``, picks those of
    a cluster with these labels; the logs of other servers have none.
    """
    wanted = parse_selector(selector)
    found = check_places(address, None, token, connect_seconds, 0)
    if found.log is not None:
        raise InvalidSettingsError("an address with a log has only that one")
    client = found.client(tls, clock, service=LIST_SERVICE)
    try:
        await client.connect()
        logs = _unpack(client.welcome.get("logs"))
    finally:
        await client.aclose()
    return [log for log in logs if is_selected(log.labels, wanted)]


def _unpack(packed: Any) -> list[ServedLog]:
    found = []
    for one in packed if isinstance(packed, list) else [None]:
        match one:
            case [
                str(name),
                dict(labels),
                str() | None as leader,
                int() | None as epoch,
                bool(suspended),
                bool(readonly),
            ]:
                found.append(ServedLog(name, labels, leader, epoch, suspended, readonly))
            case _:
                raise StorageUnavailableError("the server's list of logs is none")
    return found
