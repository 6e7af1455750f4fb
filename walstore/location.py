"""open: the log at a location, for reading, whatever that is: a directory, a store or a server."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from typing import Final

from walstore.core.faces.readable_log import ReadableLog
from walstore.core.runtime.resource import Opening
from walstore.errors import AccessDeniedError, InvalidSettingsError
from walstore.log.readonly import ReadonlyWal
from walstore.net.remote.remote_readonly_wal import connect_readonly
from walstore.net.remote.remote_wal import connect

_SERVED: Final = re.compile(r"(unix|tcp|tls)://")
_STORED: Final = re.compile(r"(file|s3|gs|az|memory)://")


def is_url(location: str) -> bool:
    """Return whether a location is a URL, of a store or a server, rather than a directory."""
    return "://" in location


def is_address(location: str) -> bool:
    """Return whether a location is the address of a server."""
    return _SERVED.match(location) is not None


def open(  # noqa: A001 - as in shelve and gzip
    location: str | os.PathLike[str], *, token: str | None = None
) -> Opening[ReadableLog]:
    """Open the log at a location for reading, whatever it is; ``async with`` it, or await it and close it.

    A location is what the command line takes:

    * a directory of this machine, with or without a running writer: as :meth:`walstore.Wal.open_readonly`;
    * the URL of a store, such as ``s3://bucket/orders`` or ``file:///srv/bucket/orders``: as
      ``walstore.cloud.CloudLog.open``, which needs the extra ``cloud``;
    * the address of a server or of a machine of a cluster, such as ``tcp://127.0.0.1:7420?log=orders``: as
      :func:`walstore.connect`, or :func:`walstore.connect_readonly` where the log is only read. ``token`` is
      that of the server; other locations have none.

    These take more arguments. To append, use :meth:`walstore.Wal.open`, ``walstore.cloud.CloudWriter.open``
    or :func:`walstore.connect`.

    Raises TypeError, InvalidSettingsError and MissingExtraError at once, for what is no location or cannot be
    opened here; opening raises LogNotFoundError if no log is there, and the errors of each. Nothing is made.
    """
    opening = _opening(location, token)
    return Opening(lambda: opening)


def _opening(location: str | os.PathLike[str], token: str | None) -> Awaitable[ReadableLog]:
    if not isinstance(location, str) or not is_url(location):
        return ReadonlyWal.open(location)
    if is_address(location):
        return Opening(_connecting(location, token))
    if not _STORED.match(location):
        scheme = location.partition("://")[0]
        raise InvalidSettingsError(
            "a store URL must begin with file:///absolute/path, s3://bucket, gs://bucket, az://container or "
            f"memory://name, and the address of a server with unix://, tcp:// or tls://, not {scheme}:"
        )
    from uploader import CloudLog

    return CloudLog.open(location)


def _connecting(address: str, token: str | None) -> Callable[[], Awaitable[ReadableLog]]:
    opening = connect(address, create=False, token=token)

    async def connect_it() -> ReadableLog:
        try:
            return await opening
        except AccessDeniedError as error:
            try:
                return await connect_readonly(address, token=token)
            except AccessDeniedError:
                raise error from None

    return connect_it
