"""Requester: whose request a task answers."""

from __future__ import annotations

from contextvars import ContextVar

from walstore.net.wire.access_scope import READ_ONLY
from walstore.serve.access_tokens import Principal

_principal: ContextVar[Principal | None] = ContextVar("_principal", default=None)


def set_principal(principal: Principal | None) -> None:
    """Let the task answer a request of somebody; None for nobody known."""
    _principal.set(principal)


def current_principal() -> Principal | None:
    """Return whose request it is that this task answers; None at a server without tokens."""
    return _principal.get()


def may_read(log: str) -> bool:
    """Return whether who sent the request that this task answers may read a log."""
    principal = current_principal()
    return principal is None or principal.may(READ_ONLY, log)
