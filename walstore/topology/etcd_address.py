"""EtcdAddress: the nodes of an etcd cluster, and the credentials of the client. Pure.

No error and no ``repr`` shows a password.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from walstore.errors import InvalidSettingsError

DEFAULT_PORT: Final = 2379
"""Where etcd listens to clients, unless it is configured otherwise."""
FORMS: Final = "etcd://host:2379,host2:2379, or etcds://user:password@host for TLS"
_SCHEMES: Final = {"etcd": "http", "etcds": "https"}
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A checked address of a cluster."""

    endpoints: tuple[str, ...]
    """Of its nodes, such as ``http://10.0.0.1:2379``, without credentials; all with the same scheme."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.endpoints[0].startswith("https:")


def parse_etcd(text: str) -> list[str]:
    """Return the nodes of an address such as ``etcd://host:2379,host2``: ``["http://host:2379", …]``.

    ``etcds://`` stands for https. The port is 2379 by default. ``user:password@`` may stand before the first
    host, with other than letters and digits percent-encoded; it is checked, and left out of the result.
    TypeError or InvalidSettingsError for anything else.
    """
    return list(parse_etcd_address(text).endpoints)


def parse_etcd_address(text: str) -> EtcdAddress:
    """As :func:`parse_etcd`, with the credentials."""
    if not isinstance(text, str):
        raise TypeError(f"an address must be text such as {FORMS}, not {type(text).__name__}")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise InvalidSettingsError(f"not an address of etcd: {_shown(text)}; give {FORMS}")
    credentials, at, hosts = rest.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not (user and colon and password):
        raise InvalidSettingsError(
            f"{_shown(text)} needs both a user and a password before the @; give {FORMS}"
        )
    if "," in credentials:
        raise InvalidSettingsError(
            f"user and password stand once, before the first host of {_shown(text)}; "
            "a comma in them is written %2C"
        )
    scheme = _SCHEMES[scheme]
    endpoints = [f"{scheme}://{_place(host, text)}" for host in hosts.removesuffix("/").split(",")]
    return EtcdAddress(
        tuple(dict.fromkeys(endpoints)),
        unquote(user) if at else None,
        unquote(password) if at else None,
    )


def check_endpoints(endpoints: Sequence[str] | str) -> EtcdAddress:
    """Return the address that a text is, or nodes such as ``["http://10.0.0.1:2379"]``.

    TypeError or InvalidSettingsError.
    """
    if isinstance(endpoints, str):
        return parse_etcd_address(endpoints)
    found: list[str] = []
    for endpoint in endpoints:
        if not isinstance(endpoint, str):
            raise TypeError(f"an endpoint must be a str, not {type(endpoint).__name__}")
        scheme, _, place = endpoint.partition("://")
        if scheme not in _SCHEMES.values() or "@" in endpoint:
            raise InvalidSettingsError(
                f"not an endpoint: {_shown(endpoint)}; give http://host:2379 or https://host:2379, and "
                "a user and a password aside"
            )
        found.append(f"{scheme}://{_place(place.removesuffix('/'), endpoint)}")
    if not found:
        raise InvalidSettingsError("etcd needs at least one endpoint, such as http://host:2379")
    if len({endpoint.partition(":")[0] for endpoint in found}) > 1:
        raise InvalidSettingsError("the endpoints of a cluster are all http, or all https")
    return EtcdAddress(tuple(dict.fromkeys(found)))


def _place(host: str, text: str) -> str:
    """Return ``host:port``, checked; ``text`` is what the caller gave."""
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname or "", parts.port
        is_whole = host.isprintable() and not (
            parts.path or parts.query or parts.fragment or parts.username
        )
    except ValueError:
        name, port, is_whole = "", None, False
    if not is_whole or port == 0 or not (_NAME.fullmatch(name) or _is_ipv6(name)):
        raise InvalidSettingsError(f"not a host of etcd: {host!r} in {_shown(text)}; give {FORMS}")
    return f"[{name}]:{port or DEFAULT_PORT}" if ":" in name else f"{name}:{port or DEFAULT_PORT}"


def _is_ipv6(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).version == 6
    except ValueError:
        return False


def _shown(text: str) -> str:
    """Return an address for a message, without what may be a password."""
    credentials, at, hosts = text.rpartition("@")
    scheme, separator, _ = credentials.partition("://")
    return repr(f"{scheme if separator else ''}{separator}…@{hosts}" if at else text)
