"""open: the log at a location, for reading, whatever that is: a directory, a store or a server."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from walstore.core.faces.readable_log import ReadableLog
from walstore.core.runtime.resource import Opening
from walstore.core.validation.arguments import as_directory
from walstore.errors import AccessDeniedError, InvalidSettingsError, LogNotFoundError
from walstore.log.readonly import ReadonlyWal
from walstore.net.remote.remote_readonly_wal import connect_readonly
from walstore.net.remote.remote_wal import connect

_L = TypeVar("_L", bound=ReadableLog)
_SERVED: Final = re.compile(r"(unix|tcp|tls)://")
_STORED: Final = re.compile(r"(file|s3|gs|az|memory)://")
_SLASHES_LEFT_OUT: Final = re.compile(r"(unix|tcp|tls|file|s3|gs|az|memory):")


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
        return _opening_directory(location)
    if is_address(location):
        return Opening(_connecting(location, token))
    if not _STORED.match(location):
        scheme = location.partition("://")[0]
        raise InvalidSettingsError(
            "a store URL must begin with file:///absolute/path, s3://bucket, gs://bucket, az://container or "
            f"memory://name, and the address of a server with unix://, tcp:// or tls://, not {scheme}:"
        )
    from uploader import CloudLog

    return _naming_other(CloudLog.open(location), partial(_local_log_at, location))


def _opening_directory(location: str | os.PathLike[str]) -> Awaitable[ReadableLog]:
    if isinstance(location, str) and (scheme := _SLASHES_LEFT_OUT.match(location)):
        raise InvalidSettingsError(
            f"not a location: {location!r}; a URL or an address begins with {scheme[0]}// and so on: write "
            f"./{location} for a directory of that name"
        )
    directory = as_directory(location, "walstore.open()")
    return _naming_other(ReadonlyWal.open(directory), partial(_stored_log_in, directory))


def _naming_other(opening: Opening[_L], other: Callable[[], str | None]) -> Awaitable[ReadableLog]:
    """Return an opening whose LogNotFoundError also names the log of another kind that is there."""

    async def open_it() -> _L:
        try:
            return await opening
        except LogNotFoundError as error:
            found = await asyncio.to_thread(other)
            if found is None:
                raise
            raise LogNotFoundError(
                f"{error}; its files are those of {found}", location=error.location
            ) from None

    return Opening(open_it)


def _stored_log_in(directory: Path) -> str | None:
    is_there = any(directory.glob("manifest/MANIFEST*"))
    return f"a stored log: open {directory.absolute().as_uri()}" if is_there else None


def _local_log_at(url: str) -> str | None:
    parts = urlsplit(url)
    directory = Path(unquote(parts.path))
    is_there = parts.scheme == "file" and any(directory.glob("*.wal"))
    return f"a local log: open {directory}" if is_there else None


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
