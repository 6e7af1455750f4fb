"""ServerFigures: what a server counts, and how it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from walstore.core.runtime.metric import Labels, MetricKind, figure


@dataclass(slots=True)
class ServerFigures:
    """Counts since the server began. Written on its event loop, read on any thread."""

    connected: int = 0
    """Connections taken in."""
    refused: int = 0
    """Connections refused because there were too many, or the server stopped."""
    passed_on: int = 0
    """Connections passed on to the machine that leads their log."""
    dropped: int = 0
    """Connections ended by the server: half done for too long, or not of the protocol."""
    received_bytes: int = 0
    """Bytes that clients sent, before TLS."""
    sent_bytes: int = 0
    """Bytes that clients were sent, before TLS."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by kind: ``append``, ``read``, or the name of a call."""
    errors: Counter[str] = field(default_factory=Counter)
    """Requests that were refused or failed, by the type of the error."""


def _count(name: str) -> Callable[[Any], dict[Labels, float]]:
    get = attrgetter(name)
    return lambda server: {(): get(server.figures)}


def _counts(name: str) -> Callable[[Any], dict[Labels, float]]:
    get = attrgetter(name)
    return lambda server: {(of,): count for of, count in get(server.figures).copy().items()}


SERVER_METRICS: Final = (
    figure(
        "server",
        "connections",
        "Clients that are connected.",
        lambda server: {(): server.connections},
        kind=MetricKind.GAUGE,
    ),
    figure(
        "server",
        "requests_in_progress",
        "Requests without an answer yet, reads that wait included.",
        lambda server: {(): server.requests_in_progress},
        kind=MetricKind.GAUGE,
    ),
    figure(
        "server",
        "request_bytes",
        "Bytes of requests in progress or arriving, and of open transactions, of all clients.",
        lambda server: {(): server.incoming.used_bytes},
        kind=MetricKind.GAUGE,
    ),
    figure(
        "server",
        "answer_bytes",
        "Bytes of large answers that clients have not taken, and of those being made.",
        lambda server: {(): server.outgoing.used_bytes},
        kind=MetricKind.GAUGE,
    ),
    figure("server", "connections_accepted", "Connections taken in.", _count("connected")),
    figure(
        "server",
        "connections_passed_on",
        "Connections passed on to the machine that leads their log.",
        _count("passed_on"),
    ),
    figure(
        "server",
        "connections_refused",
        "Connections refused: too many, or the server stops.",
        _count("refused"),
    ),
    figure(
        "server",
        "connections_dropped",
        "Connections ended because the client left something half done, or broke the protocol.",
        _count("dropped"),
    ),
    figure("server", "requests", "Requests by kind.", _counts("requests"), labels=("kind",)),
    figure(
        "server",
        "errors",
        "Requests that were refused or failed, by the type of the error.",
        _counts("errors"),
        labels=("type",),
    ),
    figure("server", "received_bytes", "Bytes from clients.", _count("received_bytes")),
    figure("server", "sent_bytes", "Bytes to clients.", _count("sent_bytes")),
)
"""What ``PrometheusMetrics.watch`` shows of a server."""
