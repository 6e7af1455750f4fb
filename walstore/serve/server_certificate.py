"""ServerCertificate: the certificate of a server, which can be replaced while the server runs."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.errors import InvalidSettingsError

logger = logging.getLogger("walstore.serve")

WARNING_DAYS: Final = 14
"""How long before a certificate ends each load and each day have a warning."""
_DAY_SECONDS: Final = 86_400.0
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _CENTURY = 0xA0, 0x17, 50


class ServerCertificate:
    """A certificate chain and its key, in files. Belongs to one event loop once a server uses it."""

    def __init__(self, certificate: Path, key: Path | None, *, clock: Clock | None = None) -> None:
        """Load them. Blocking; InvalidSettingsError if they are none, or no pair."""
        self._files = (certificate, key)
        self._clock = clock or SystemClock()
        self._current, self._ends = _load(certificate, key)
        self._turn = asyncio.Lock()
        self.context: Final = self._current
        """For servers: each new connection has what was loaded last."""
        self.context.sni_callback = self._choose

    @property
    def ends(self) -> datetime | None:
        """When it ends; None if that is not known."""
        return self._ends

    async def reload(self) -> None:
        """Load the files again, not on the event loop, for connections that are made from then on.

        InvalidSettingsError if they are none, or no pair: nothing changes then. Nor does it if the caller is
        cancelled.
        """
        async with self._turn:  # what was loaded last counts
            loop = asyncio.get_running_loop()
            self._current, self._ends = await loop.run_in_executor(None, _load, *self._files)
        self.warn()

    def warn(self) -> None:
        """Log a warning if it ends soon, or has ended. A server goes on: its clients decide."""
        if self._ends is None:
            return
        now = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)
        if now >= self._ends:
            logger.warning("the certificate %s ended at %s", self._files[0], self._ends.isoformat())
        elif self._ends - now < timedelta(days=WARNING_DAYS):
            logger.warning(
                "the certificate %s ends in %d days, at %s: replace it, and send SIGHUP",
                self._files[0],
                (self._ends - now).days,
                self._ends.isoformat(),
            )

    async def watch(self) -> None:
        """Warn if it ends soon, now and every day, until cancelled."""
        while True:
            self.warn()
            await self._clock.sleep(_DAY_SECONDS)

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
    ) -> None:
        """Let a connection have the pair loaded last, whether its client named a server or not.

        To load it into the context that is in use could fail half done, and leave a certificate without key.
        """
        connection.context = self._current


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def _load(certificate: Path, key: Path | None) -> tuple[ssl.SSLContext, datetime | None]:
    """Return a context with a pair, and when the certificate ends. Blocking."""
    context = _context()
    try:
        context.load_cert_chain(certificate, key)
        found = _PEM.search(certificate.read_bytes())
        der = b"" if found is None else ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidSettingsError(f"cannot use {certificate} with {key}: {error}") from None
    return context, end_of(der)


def end_of(der: bytes) -> datetime | None:
    """Return when a certificate ends, which has the form of X.509; None if that is not found."""
    try:
        fields = list(_items(next(_items(next(_items(der))[1]))[1]))
        validity = fields[4 if fields[0][0] == _VERSION else 3]
        _, (kind, text) = _items(validity[1])
        digits = text.decode("ascii")
        if kind == _UTC_TIME:  # without a century: RFC 5280, 4.1.2.5.1
            digits = ("20" if int(digits[:2]) < _CENTURY else "19") + digits
        return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (IndexError, ValueError, StopIteration):
        return None


def _items(content: bytes) -> Iterator[tuple[Any, bytes]]:
    """Yield the tags and contents of what stands in a row, in DER."""
    at = 0
    while at < len(content):
        tag, size, at = content[at], content[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(content[at : at + more], "big"), at + more
        yield tag, content[at : at + size]
        at += size
