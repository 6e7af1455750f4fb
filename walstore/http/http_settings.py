"""HttpSettings: the limits that an HTTP server sets its clients."""

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
class HttpSettings:
    """Limits and time-outs of an HTTP server. InvalidSettingsError for a value out of range."""

    connections: int = whole(
        4096,
        """Requests at a time, live readers included; further ones are answered with 503. Connections beyond
        twice as many, and sixteen, are closed.""",
        low=1,
        high=65_536,
    )

    body_bytes: int = size(
        16 * MIB,
        "Largest body of a request; a larger one is answered with 413.",
        low=KIB,
        high=GIB,
    )

    request_bytes: int = size(
        128 * MIB,
        """What the bodies of all requests in progress may take, each two or three times its length; further
        large ones wait for body_seconds, and are answered with 503 then. With 'beside', that server's limit
        is for both.""",
        low=MIB,
        high=64 * GIB,
    )

    read_bytes: int = size(
        MIB,
        "About how much one answer holds; a larger message is sent alone.",
        low=KIB,
        high=64 * MIB,
    )

    answer_bytes: int = size(
        64 * MIB,
        """What the answers that clients have not taken may take; beyond that, further ones have up to 64 KiB,
        larger messages wait for those that take theirs, and clients that take nothing for 10 s go. With
        'beside', that server's limit is for both.""",
        low=MIB,
        high=64 * GIB,
    )

    idle_seconds: float = seconds(
        60.0,
        "How long a connection is kept without a whole request head.",
        low=0.05,
        high=86_400,
    )

    body_seconds: float = seconds(
        30.0,
        """How long a client may take to send a body; then it is answered with 408. Also how long it may take
        nothing of its answer; then it is disconnected.""",
        low=0.05,
        high=86_400,
    )

    poll_seconds: float = seconds(
        20.0, "How long a long poll waits for records.", low=0.05, high=3600
    )

    event_seconds: float = seconds(
        60.0,
        "After how long a stream of events ends, for the client to come back.",
        low=0.05,
        high=86_400,
    )

    drain_seconds: float = seconds(
        10.0, "How long a server that stops waits for requests in progress.", high=86_400
    )

    def __post_init__(self) -> None:
        check_fields(self)
