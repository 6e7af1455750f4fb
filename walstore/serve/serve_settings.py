"""ServeSettings: the limits that a server sets its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from walstore.core.validation.arguments import as_count, as_seconds

MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings:
    """Limits and time-outs of a server, for clients that are slow, greedy or hostile.

    InvalidSettingsError for a value out of range.
    """

    connections: int = 1024
    """Connections at a time, 1 to 65 536; further ones are refused."""
    message_bytes: int = 72 * MIB
    """Largest message, 64 KiB to 1 GiB; a longer one ends the connection. An atomic group is one message."""
    credit_bytes: int = 16 * MIB
    """Bytes of requests that one client may have in progress, 64 KiB to 1 GiB; more stays unread."""
    request_bytes: int = 128 * MIB
    """The same of all clients together, bodies over HTTP included, 1 MiB to 64 GiB: a large message waits for
    room, small ones do not. At least ``message_bytes`` and 16 MiB. Open transactions hold up to half of what
    exceeds ``message_bytes``, 28 MiB, and 64 KiB for each client; without room they are written to files."""
    read_bytes: int = MIB
    """Records or jobs of one answer, 1 KiB to 64 MiB; a larger record goes alone, a large group in parts."""
    write_buffer_bytes: int = 4 * MIB
    """Answers that a client has not taken, 64 KiB to 1 GiB; beyond that it is not read from."""
    answer_bytes: int = 64 * MIB
    """The same of all clients together, 1 MiB to 64 GiB, and half of it of those that have not taken any:
    beyond that a client that takes its answers gets short ones, and larger records in turn, and one that
    takes nothing for 5 s is disconnected."""
    transactions: int = 64
    """Open transactions of one client, 1 to 65 536; what they hold counts in ``request_bytes``."""
    stall_seconds: float = 30.0
    """How long a client may leave its greeting, a message or its answers half done, 0.05 to 86 400."""
    drain_seconds: float = 30.0
    """How long a server that stops waits for requests in progress, 0 to 86 400."""

    def __post_init__(self) -> None:
        most = 1 << 30
        as_count(self.connections, "connections", high=1 << 16)
        as_count(self.message_bytes, "message_bytes", low=1 << 16, high=most)
        as_count(self.credit_bytes, "credit_bytes", low=1 << 16, high=most)
        as_count(self.request_bytes, "request_bytes", low=MIB, high=64 * most)
        as_count(self.answer_bytes, "answer_bytes", low=MIB, high=64 * most)
        as_count(self.read_bytes, "read_bytes", low=1 << 10, high=64 * MIB)
        as_count(self.write_buffer_bytes, "write_buffer_bytes", low=1 << 16, high=most)
        as_count(self.transactions, "transactions", high=1 << 16)
        _check_seconds(self.stall_seconds, "stall_seconds", 0.05)
        _check_seconds(self.drain_seconds, "drain_seconds", 0.0)


def _check_seconds(value: float, name: str, low: float) -> None:
    from walstore.errors import InvalidSettingsError

    if not low <= as_seconds(value, name) <= 86_400:
        raise InvalidSettingsError(f"{name} must be {low:g} to 86 400 seconds, not {value!r}")
