"""ServerPlaces: where the servers of a log may be, and how they are reached."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.validation.arguments import as_seconds, as_text, as_token
from walstore.errors import InvalidSettingsError
from walstore.net.remote.client import Client
from walstore.net.remote.client_sequence import TAG_BYTES
from walstore.net.wire.address import Address, parse_address


class ServerPlaces(NamedTuple):
    """Where the servers of a log may be, and how they are reached; checked."""

    places: list[Address]
    log: str | None
    token: str | None
    connect_seconds: float
    reconnect_seconds: float

    def client(
        self,
        tls: ssl.SSLContext | None,
        clock: Clock | None,
        *,
        service: str | None = None,
        creates: bool = True,
    ) -> Client:
        """Return a client that is not connected."""
        return Client(
            self.places,
            token=self.token,
            tls=tls,
            log=self.log,
            connect_seconds=self.connect_seconds,
            reconnect_seconds=self.reconnect_seconds,
            clock=clock or SystemClock(),
            make_tag=lambda: os.urandom(TAG_BYTES),
            service=service,
            creates=creates,
        )


def check_places(
    address: str | Sequence[str],
    log: str | None,
    token: str | None,
    connect_seconds: float,
    reconnect_seconds: float,
) -> ServerPlaces:
    """Return the arguments of :func:`connect`; TypeError or InvalidSettingsError if they cannot be."""
    places, named = _places(address, log)
    token = None if token is None else as_token(token)
    for place in places:
        if token is not None and not place.is_local and place.scheme != "tls":
            raise InvalidSettingsError(
                f"a token would be readable on the way to {place}: use tls://"
            )
    seconds = as_seconds(connect_seconds, "connect_seconds")
    patience = as_seconds(reconnect_seconds, "reconnect_seconds")
    if not seconds > 0 or patience < 0:
        raise InvalidSettingsError(
            "connect_seconds must be more than 0, reconnect_seconds at least 0"
        )
    return ServerPlaces(places, named, token, seconds, patience)


def _places(address: str | Sequence[str], log: str | None) -> tuple[list[Address], str | None]:
    """Return where the log may be, and its name if there is one."""
    given = [address] if isinstance(address, str) or not isinstance(address, Sequence) else address
    places = [parse_address(one) for one in given]
    if not places or len(set(map(str, places))) < len(places):
        raise InvalidSettingsError("give one address, or several different ones")
    given_names = [*(place.log for place in places), log]
    try:
        names = {as_text(name, "a name of a log") for name in given_names if name is not None}
    except ValueError as error:
        raise InvalidSettingsError(str(error)) from None
    if len(names) > 1:
        first, second, *_ = sorted(map(repr, names))
        raise InvalidSettingsError(f"two logs: {first}, and {second} in the address")
    return places, names.pop() if names else None
