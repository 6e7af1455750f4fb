"""AuditTrail: the lines of the logger ``walstore.audit``: who connected, and what they changed or removed."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from typing import Any, Final

logger = logging.getLogger("walstore.audit")

DONE: Final = "done"
REFUSED: Final = "refused"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/@*\[\]-]+")
_MOST_CHARS: Final = 200
"""Of a text that a client chose."""
_MOST_LOGS: Final = 100
"""Logs of one connection whose appends are counted apart."""


class AuditTrail:
    """The lines of one connection: its beginning, what is done over it, and at its end what it appended."""

    def __init__(self, transport: asyncio.BaseTransport | None, protocol: str) -> None:
        """Of a connection of clients of a protocol, ``walstore`` or ``http``."""
        self._who: dict[str, Any] = {"peer": "unknown", "tls": False, "protocol": protocol}
        if transport is not None:
            self._who["peer"] = _shown_peer(transport.get_extra_info("peername"))
            self._who["tls"] = transport.get_extra_info("sslcontext") is not None
        self._tokens: set[str | None] = set()
        self._refused: set[str] = set()
        self._appended: Counter[str] = Counter()

    def connected(self, token: str | None, **facts: Any) -> None:
        """Say once who uses the connection; ``token`` is the name of one, None at a server without any."""
        if token not in self._tokens:
            self._tokens.add(token)
            self._say("connect", token, DONE, facts)

    def refused(self, why: str, token: str | None = None) -> None:
        """Say that a client was refused, once for each reason; ``token`` if it had a valid one."""
        if why not in self._refused:
            self._refused.add(why)
            self._say("connect", token, REFUSED, {"error": why})

    def acted(self, action: str, token: str | None, outcome: str, **facts: Any) -> None:
        """Say that something was done, or was refused or failed."""
        self._say(action, token, outcome, facts)

    def appended(self, log: str, count: int) -> None:
        """Count appends for the line at the end."""
        if log in self._appended or len(self._appended) < _MOST_LOGS:
            self._appended[log] += count

    def ended(self) -> None:
        """Say that a connection over which something was appended has ended, and how much for each log."""
        if self._appended:
            names = sorted(name for name in self._tokens if name is not None)
            appended = dict(self._appended)
            self._say("disconnect", ",".join(names) or None, DONE, {"appended": appended})

    def _say(self, action: str, token: str | None, outcome: str, facts: dict[str, Any]) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        found = {"action": action, "token": token, **self._who, **facts, "outcome": outcome}
        fields = {name: _cut(value) for name, value in found.items()}
        text = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
        logger.info("%s", text, extra={"fields": fields})


def outcome_of(error: BaseException | None) -> str:
    """Return what an action came to; whether one that was cancelled was done is unknown."""
    if error is None:
        return DONE
    if isinstance(error, asyncio.CancelledError):
        return "unknown"
    return f"failed: {type(error).__name__}"


def _cut(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | dict):
        return value
    return str(value)[:_MOST_CHARS]


def _shown(value: Any) -> str:
    """Return a value as it stands behind its name in a line."""
    if value is None:
        return "-"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)


def _shown_peer(peer: Any) -> str:
    match peer:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "unix"
