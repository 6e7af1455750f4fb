"""Greeting: what a client says of itself in its first message, and what it asks for."""

from __future__ import annotations

from typing import Any, NamedTuple

from walstore.errors import FormatVersionError
from walstore.net.wire.message import VERSION, ProtocolViolationError
from walstore.serve.access_tokens import AccessTokens, Principal


class Greeting(NamedTuple):
    """One whose sender speaks this protocol, and has a token if one is needed."""

    principal: Principal | None
    """Who sent it; None at a server without tokens."""
    service: object
    """What is asked for; None for a log."""
    log: str | None
    creates: bool
    """Whether a store makes a log that it does not have."""
    moves: bool
    """Whether the client ends the connection itself after a GOODBYE."""
    is_direct: bool
    """Whether it looks for the machine that leads the log itself."""
    after: int
    """The epoch that the log had, if it moved."""
    again: int
    """The highest number of a write that may have been sent before."""


def read_greeting(head: Any, tokens: AccessTokens | None, peer: str) -> Greeting:
    """Return what a client said; ``peer`` names it in errors.

    Raises ProtocolViolationError for what is no greeting, FormatVersionError for another version, and
    AccessDeniedError unless it has one of ``tokens``, if there are any.
    """
    if not isinstance(head, dict):
        raise ProtocolViolationError("a greeting that is none")
    if type(head.get("version")) is not int:
        raise ProtocolViolationError("a version that is no number")
    if head["version"] != VERSION:
        raise FormatVersionError(
            "the client's version of the protocol is not the server's",
            path=peer,
            found=str(head["version"]),
            supported=VERSION,
        )
    principal = None if tokens is None else tokens.admit(head.get("token"))
    name = head.get("log")
    if name is not None and not isinstance(name, str):
        raise ProtocolViolationError("a name of a log that is none")
    after, again = head.get("after", 0), head.get("again", 0)
    if type(after) is not int or after < 0:
        raise ProtocolViolationError("an epoch that is none")
    if type(again) is not int or again < 0:
        raise ProtocolViolationError("a number of a request that is none")
    return Greeting(
        principal=principal,
        service=head.get("service"),
        log=name,
        creates=head.get("exists") is not True,
        moves=head.get("moves") is True,
        is_direct=bool(head.get("direct")),
        after=after,
        again=again,
    )
