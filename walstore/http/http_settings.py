"""HttpSettings: the limits that an HTTP server sets its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from walstore.core.validation.arguments import as_count, as_seconds
from walstore.errors import InvalidSettingsError

MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpSettings:
    """Limits and time-outs of an HTTP server. InvalidSettingsError for a value out of range."""

    connections: int = 4096
    """Requests at a time, live readers included, 1 to 65 536; further ones are answered with 503. Connections
    beyond twice as many, and sixteen, are closed."""
    body_bytes: int = 16 * MIB
    """Largest body of a request, 1 KiB to 1 GiB; a larger one is answered with 413."""
    request_bytes: int = 128 * MIB
    """What the bodies of all requests in progress may take, each two or three times its length, 1 MiB to
    64 GiB; further large ones wait for ``body_seconds``, and are answered with 503 then. With ``beside``,
    that server's limit is for both."""
    read_bytes: int = MIB
    """About how much one answer holds, 1 KiB to 64 MiB; a larger message is sent alone."""
    answer_bytes: int = 64 * MIB
    """What the answers that clients have not taken may take, 1 MiB to 64 GiB; beyond that, further ones have
    up to 64 KiB, larger messages wait for those that take theirs, and clients that take nothing for 10 s go.
    With ``beside``, that server's limit is for both."""
    idle_seconds: float = 60.0
    """How long a connection is kept without a whole request head, 0.05 to 86 400."""
    body_seconds: float = 30.0
    """How long a client may take to send a body, 0.05 to 86 400; then it is answered with 408. Also how long
    it may take nothing of its answer; then it is disconnected."""
    poll_seconds: float = 20.0
    """How long a long poll waits for records, 0.05 to 3 600."""
    event_seconds: float = 60.0
    """After how long a stream of events ends, for the client to come back, 0.05 to 86 400."""
    drain_seconds: float = 10.0
    """How long a server that stops waits for requests in progress, 0 to 86 400."""

    def __post_init__(self) -> None:
        as_count(self.connections, "connections", high=1 << 16)
        as_count(self.body_bytes, "body_bytes", low=1 << 10, high=1 << 30)
        as_count(self.request_bytes, "request_bytes", low=MIB, high=1 << 36)
        as_count(self.answer_bytes, "answer_bytes", low=MIB, high=1 << 36)
        as_count(self.read_bytes, "read_bytes", low=1 << 10, high=64 * MIB)
        for name, low, high in (
            ("idle_seconds", 0.05, 86_400.0),
            ("body_seconds", 0.05, 86_400.0),
            ("poll_seconds", 0.05, 3_600.0),
            ("event_seconds", 0.05, 86_400.0),
            ("drain_seconds", 0.0, 86_400.0),
        ):
            value = getattr(self, name)
            if not low <= as_seconds(value, name) <= high:
                raise InvalidSettingsError(f"{name} must be {low:g} to {high:g}, not {value!r}")
