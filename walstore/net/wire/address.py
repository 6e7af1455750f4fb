"""Address: where a served log is reached. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from walstore.errors import InvalidSettingsError

FORMS: Final = "unix:///run/orders.sock, tcp://127.0.0.1:7420 or tls://host:7420"
_MOST_SOCKET_PATH_BYTES: Final = 107
"""Of Linux; macOS has 103."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address."""

    scheme: str
    """``unix``, ``tcp`` or ``tls``."""
    path: str = ""
    """Of the socket, for ``unix``."""
    host: str = ""
    port: int = 0
    log: str | None = None
    """Which log of a served store; None if none is named."""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        return self.scheme == "unix" or is_loopback(self.host)


def parse_address(text: object) -> Address:
    """Parse ``unix:///path``, ``tcp://host:port`` or ``tls://host:port``, each with ``?log=NAME`` or without.

    TypeError or InvalidSettingsError for anything else.
    """
    if not isinstance(text, str):
        raise TypeError(f"an address must be text such as {FORMS}, not {type(text).__name__}")
    try:
        parts = urlsplit(text)
        port = parts.port
        query = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError as error:
        raise InvalidSettingsError(f"not an address: {text!r}: {error}; give {FORMS}") from None
    logs = query.pop("log", [])
    if query or len(logs) > 1 or parts.fragment or parts.username is not None:
        raise InvalidSettingsError(
            f"{text!r} has parts that no address has; give {FORMS}, with ?log=NAME for a log of a store"
        )
    log = logs[0] if logs else None
    if parts.scheme == "unix":
        return Address("unix", check_socket_path(parts.netloc + parts.path), log=log)
    host = parts.hostname or ""
    if parts.scheme in {"tcp", "tls"} and _is_host(host) and port and parts.path in {"", "/"}:
        return Address(parts.scheme, host=host, port=port, log=log)
    raise InvalidSettingsError(f"not an address: {text!r}; give {FORMS}")


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` to listen at; port 0 takes a free one. InvalidSettingsError otherwise."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettingsError(f"not a place to listen at: {text!r}; give HOST:PORT")
    return host, int(port)


def check_socket_path(path: str) -> str:
    """Return the path of a unix socket; InvalidSettingsError for one that no system takes."""
    try:
        size = len(path.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # no bytes of a file name become this text
        size = 0
    if not 0 < size <= _MOST_SOCKET_PATH_BYTES or "\0" in path:
        raise InvalidSettingsError(
            f"a socket's path has 1 to {_MOST_SOCKET_PATH_BYTES} bytes, unlike {path[:200]!r}"
        )
    return path


def _is_host(name: str) -> bool:
    """Return whether there may be a host of this name: an empty part, for example, no name server takes."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, whatever a name server says."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Return whether a host stands for all addresses of a machine: it listens there, and nobody finds it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
