"""LeaderClaim: the entry of a program that leads a log, in the store that the log's machines share.

Others see the leader there, and do not try while its lease lasts. What a primary may acknowledge is not
decided here but by the copies: a lease may end while its holder stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from walstore.core.ports import Clock
from walstore.core.runtime.tasks import start_task
from walstore.errors import WalError, WalLockedError
from walstore.topology.documents import LEADERS, PREFIX, Leader
from walstore.topology.etcd import EtcdKeyValues
from walstore.topology.key_values import KeyValues
from walstore.topology.leadership import Leadership
from walstore.topology.session import Session

_PAUSE_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.2


class LeaderClaim:
    """Of one opening of a log. Belongs to the event loop."""

    def __init__(
        self,
        topology: str | KeyValues,
        name: str,
        *,
        lease_seconds: int,
        clock: Clock,
        make_tag: Callable[[], bytes],
    ) -> None:
        """For the log ``name``; ``topology`` is the address of etcd, or a store that is open."""
        self._topology = topology
        self.keys: KeyValues | None = None if isinstance(topology, str) else topology
        """The store, once the claim is taken."""
        self._key = f"{PREFIX}{LEADERS}{name}"
        self._name = name
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._make_tag = make_tag
        self._stack = AsyncExitStack()
        self._leadership: Leadership | None = None
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether others see the claim for certain, so that none of them begins to take over.

        Not while the store is set back to an earlier state: then that is found out with the next renewal.
        """
        is_held = self._leadership is not None and self._leadership.is_held
        return is_held and self._session is not None and self._session.is_certain

    async def take(self, current: Callable[[], Leader], *, patience_seconds: float) -> None:
        """Claim the log; wait for another leader's lease to end, or for the store, for so long.

        From then on others see what ``current()`` returns. WalLockedError if another program leads it;
        StorageUnavailableError.
        """
        deadline = self._clock.monotonic() + patience_seconds
        keys = self._topology
        if isinstance(keys, str):
            keys = self.keys = await self._stack.enter_async_context(EtcdKeyValues.open(keys))
        session: Session | None = None
        while True:
            error: WalError
            try:
                if session is None:
                    session = await self._stack.enter_async_context(
                        Session.open(keys, ttl_seconds=self._lease_seconds, clock=self._clock)
                    )
                    self._session = session
                    self._leadership = Leadership(keys, self._key, session, self._make_tag)
                assert self._leadership is not None
                other = await self._leadership.take(current())
            except WalError as failure:
                error = failure
            else:
                if other is None:
                    break
                error = WalLockedError(
                    f"the log {self._name!r} is led by another program"
                    + (f", at {other.address}" if other.address else ""),
                    path=self._name,
                    owner=other.address or other.tag,
                )
            if self._clock.monotonic() >= deadline:
                raise error
            await self._clock.sleep(_PAUSE_SECONDS)
        self._task = start_task(
            self._leadership.keep(current, self._clock, pause_seconds=_LOOK_SECONDS),
            name=f"walstore claim of {self._name}",
        )

    async def aclose(self) -> None:
        """Give the claim up, so that others need not wait. Twice is allowed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._leadership is not None:
            await self._leadership.leave()
        await self._stack.aclose()
