"""What a server tells systemd: that it is ready, and that it stops (``Type=notify``)."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state, such as ``READY=1``, to the socket that the supervisor names; nothing without one.

    The protocol is that of sd_notify(3). The datagram is small and the socket never waits.
    """
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return
    address = "\0" + place[1:] if place[0] == "@" else place
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(0)
        sender.connect(address)
        sender.send(state.encode())
