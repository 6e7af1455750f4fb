"""Session: a lease that is renewed while the program lives, and granted again when it was lost.

What depends on it are keys that other machines see: the members, and the leaders of logs. That
they are gone says only that others should look for another leader. It does not stop the old one; what it
may acknowledge is decided by the copies (``walstore.cluster.replication``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from walstore.core.ports import Clock
from walstore.core.runtime.resource import Opening
from walstore.core.runtime.tasks import start_task
from walstore.core.validation.arguments import as_count
from walstore.errors import WalError
from walstore.topology.key_values import KeyValues, LeaseLostError

logger = logging.getLogger("walstore.cluster")

LEASE_SECONDS: Final = 5
"""Default time of a lease: how long others wait for a machine that says nothing."""
MOST_LEASE_SECONDS: Final = 3600
_RENEWALS: Final = 3
"""Renewals in the time of a lease."""
_PAUSE_SECONDS: Final = 0.2
_CERTAIN: Final = 0.875
"""Part of its time in which a lease lasts for certain: clocks run differently fast."""


class Session:
    """The lease of one program. Belongs to the event loop. Made by :meth:`open`."""

    @classmethod
    def open(cls, keys: KeyValues, *, ttl_seconds: int, clock: Clock) -> Opening[Session]:
        """Grant a lease of ``ttl_seconds``, 1 to 3600, and renew it until the session is closed.

        ``keys`` stays open. Raises what granting raises.
        """
        as_count(ttl_seconds, "lease_seconds", high=MOST_LEASE_SECONDS)

        async def open_it() -> Session:
            begun = clock.monotonic()
            return cls(keys, ttl_seconds, clock, await keys.grant(ttl_seconds), begun)

        return Opening(open_it)

    def __init__(
        self, keys: KeyValues, ttl_seconds: int, clock: Clock, lease: int, begun: float
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.lease = lease
        """Its number now; 0 while there is none."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called when the lease was lost, and when another one is there."""
        self._keys = keys
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        # When the last renewal that succeeded was asked for.
        self._renewed = begun
        self._task = start_task(self._renew(), name="walstore session of a cluster")

    @property
    def is_certain(self) -> bool:
        """Whether the lease lasts: its end is not near by this machine's clock, as long as that runs."""
        age = self._clock.monotonic() - self._renewed
        return self.lease != 0 and age < self._ttl_seconds * _CERTAIN

    async def aclose(self) -> None:
        """End the lease, so that others need not wait for it. Twice is allowed.

        If the store does not answer, or this is cancelled, the lease ends by itself.
        """
        self._task.cancel()
        await asyncio.wait([self._task])
        lease, self.lease = self.lease, 0
        if lease:
            with contextlib.suppress(WalError):
                await self._keys.revoke(lease)

    async def _renew(self) -> None:
        pause = period = self._ttl_seconds / _RENEWALS
        while True:
            await self._clock.sleep(pause)
            pause, begun = period, self._clock.monotonic()
            try:
                await self._keys.keep_alive(self.lease)
                self._renewed = begun
            except LeaseLostError:
                logger.warning("the lease of this machine was lost; another one is granted")
                self.lease = 0
                self.on_changed()
                await self._grant()
            except WalError as error:
                logger.warning("the lease of this machine was not renewed: %s", error)
                pause = min(
                    _PAUSE_SECONDS, period
                )  # a store that is slow leaves little of the time

    async def _grant(self) -> None:
        while not self.lease:
            begun = self._clock.monotonic()
            try:
                self.lease = await self._keys.grant(self._ttl_seconds)
                self._renewed = begun
            except WalError as error:
                logger.warning("no lease was granted: %s", error)
                await self._clock.sleep(_PAUSE_SECONDS)
        self.on_changed()
