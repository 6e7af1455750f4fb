"""Listening: the sockets of a server, which may listen before what is served is open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import Final, NamedTuple

from walstore.errors import InvalidSettingsError, StorageUnavailableError
from walstore.net.wire.address import is_loopback, parse_listen

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""
_SOCKET_MODE: Final = 0o600


class UnixSocket(NamedTuple):
    """A socket that listens at a path."""

    socket: socket.socket
    path: Path
    """Absolute."""
    inode: int


class Listening:
    """Sockets that listen. Connections wait until a server accepts them, or :meth:`aclose` ends them."""

    def __init__(self) -> None:
        """Without any socket."""
        self.unix: UnixSocket | None = None
        self.ports: list[socket.socket] = []
        """Several for a host with several addresses."""

    async def listen(self, path: str | None, place: tuple[str, int] | None) -> None:
        """Listen at a path, and at a host and port, unless it does already: StorageUnavailableError."""
        where = path
        try:
            if path is not None and self.unix is None:
                self.unix = await asyncio.get_running_loop().run_in_executor(None, _bind, path)
            if place is not None and not self.ports:
                where = f"{place[0]}:{place[1]}"
                await self._listen_at_port(*place)
        except OSError as error:
            raise StorageUnavailableError(
                f"cannot listen at {where}: {error.strerror or error}", retriable=False
            ) from error

    async def aclose(self) -> None:
        """Close the sockets, and remove the file of the one at a path. Twice is allowed."""
        unix, self.unix = self.unix, None
        for one in self.ports:
            one.close()
        if unix is not None:
            unix.socket.close()
            await asyncio.get_running_loop().run_in_executor(None, _unlink, unix.path, unix.inode)

    async def _listen_at_port(self, host: str, port: int) -> None:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host, port, start_serving=False
        )
        with contextlib.ExitStack() as stack:
            stack.callback(server.close)
            made = [socket.fromfd(one.fileno(), one.family, one.type) for one in server.sockets]
            with contextlib.ExitStack() as failed:
                for one in made:
                    failed.callback(one.close)
                for one in made:
                    one.listen(BACKLOG)
                failed.pop_all()
        self.ports = made


def check_listen(
    text: str, tls: ssl.SSLContext | None, *, has_tokens: bool, behind_proxy: bool = False
) -> tuple[str, int]:
    """Return host and port to listen at; InvalidSettingsError for a place that may not be served."""
    host, port = parse_listen(text)
    if not is_loopback(host) and not (has_tokens and (tls is not None or behind_proxy)):
        raise InvalidSettingsError(
            f"{text} can be reached from other machines: that needs token= or tokens=, and "
            "tls=SSLContext, or behind_proxy=True where a proxy ends TLS; or listen at 127.0.0.1"
        )
    return host, port


def _bind(path: str) -> UnixSocket:
    """Return a socket that listens at a path; OSError if another one does. Blocking."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(OSError):  # Linux: its file never has another mode
            os.fchmod(bound.fileno(), _SOCKET_MODE)
        try:
            bound.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            Path(path).unlink()
            bound.bind(path)
        Path(path).chmod(_SOCKET_MODE)
        bound.listen(BACKLOG)
        bound.settimeout(0)
        inode = Path(path).stat().st_ino
    except BaseException:
        bound.close()
        raise
    return UnixSocket(bound, Path(path).absolute(), inode)


def _unlink(path: Path, inode: int) -> None:
    """Remove the file of a socket, unless another server has replaced it. Blocking."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _is_left_over(path: str) -> bool:
    """Return whether a file is the socket of a server that is gone."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
