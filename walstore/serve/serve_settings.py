"""ServeSettings: the limits that a server sets its clients."""

from __future__ import annotations

from dataclasses import dataclass

from walstore.core.validation.fields import (
    GIB,
    KIB,
    MIB,
    check_fields,
    described,
    seconds,
    size,
    whole,
)


@described
@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings:
    """Limits and time-outs of a server, for clients that are slow, greedy or hostile.

    InvalidSettingsError for a value out of range.
    """

    connections: int = whole(
        1024, "Connections at a time; further ones are refused.", low=1, high=65_536
    )

    message_bytes: int = size(
        72 * MIB,
        """Largest message; a longer one ends the connection. An atomic group is one message; 1 MiB is left
        for all but its records.""",
        low=4 * MIB,
        high=GIB,
    )

    credit_bytes: int = size(
        16 * MIB,
        "Bytes of requests that one client may have in progress; more stays unread.",
        low=64 * KIB,
        high=GIB,
    )

    request_bytes: int = size(
        128 * MIB,
        """The same of all clients together, bodies over HTTP included: a large message waits for room, small
        ones do not. At least message_bytes and 16 MiB. Open transactions hold up to half of what exceeds
        message_bytes, 28 MiB, and 64 KiB for each client; without room they are written to files.""",
        low=MIB,
        high=64 * GIB,
    )

    read_bytes: int = size(
        MIB,
        "Records or jobs of one answer; a larger record goes alone, a large group in parts.",
        low=KIB,
        high=64 * MIB,
    )

    write_buffer_bytes: int = size(
        4 * MIB,
        "Answers that a client has not taken; beyond that it is not read from.",
        low=64 * KIB,
        high=GIB,
    )

    answer_bytes: int = size(
        64 * MIB,
        """The same of all clients together, and half of it of those that have not taken any: beyond that a
        client that takes its answers gets short ones, and larger records in turn, and one that takes nothing
        for 5 s is disconnected.""",
        low=MIB,
        high=64 * GIB,
    )

    transactions: int = whole(
        64,
        "Open transactions of one client; what they hold counts in request_bytes.",
        low=1,
        high=65_536,
    )

    stall_seconds: float = seconds(
        30.0,
        "How long a client may leave its greeting, a message or its answers half done.",
        low=0.05,
        high=86_400,
    )

    drain_seconds: float = seconds(
        30.0, "How long a server that stops waits for requests in progress.", high=86_400
    )

    def __post_init__(self) -> None:
        check_fields(self)
