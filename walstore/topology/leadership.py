"""Leadership: the claim of one program to lead a log, a key that ends with its session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from walstore.core.ports import Clock
from walstore.errors import CorruptionError, OutcomeUnknownError, WalError
from walstore.topology.documents import Leader
from walstore.topology.key_values import KeyValue, KeyValues, LeaseLostError
from walstore.topology.session import Session

logger = logging.getLogger("walstore.cluster")

_READ_SECONDS: Final = 1.0


class Leadership:
    """One claim: taken, changed while it lasts, and left. Belongs to the event loop.

    Every value has the claim's tag, so what became of a swap without an answer is seen by reading.
    """

    def __init__(
        self, keys: KeyValues, key: str, session: Session, make_tag: Callable[[], bytes]
    ) -> None:
        """For the log at ``key``, with the lease of ``session``."""
        self.tag = make_tag().hex()
        """Of this claim."""
        self.value: Leader | None = None
        """What the key has, as far as is known; None while the claim is not held."""
        self._keys = keys
        self._key = key
        self._session = session
        self._revision = 0
        self._lease = 0
        """That the key ends with."""
        self._changing = asyncio.Lock()

    @property
    def is_held(self) -> bool:
        """Whether the claim was seen, with the lease that the session has now."""
        return self.value is not None and self._lease == self._session.lease != 0

    async def take(self, value: Leader, *, is_again: bool = False) -> Leader | None:
        """Claim the log; return None if that worked, else the present leader.

        ``is_again``: this claim was held. Another one that has the lease of this session is an earlier one of
        this program, since a program has one claim at a time: the store was set back to it. It is replaced.
        OutcomeUnknownError if it is not known what the store did: call again. StorageUnavailableError;
        LeaseLostError, CorruptionError.
        """
        async with self._changing:
            value = value._replace(tag=self.tag)
            lease = self._session.lease
            if not lease:
                raise LeaseLostError("this machine has no lease now", lease=0)
            found, leader = await self._swap(value, lease, expected=0)
            if leader.tag != self.tag and is_again and found.lease == lease:
                logger.warning(
                    "the store was set back: it had an earlier claim of this program at %s, and has the "
                    "present one again",
                    self._key,
                )
                found, leader = await self._swap(value, lease, expected=found.revision)
            if leader.tag != self.tag:
                return leader
            self._hold(found, leader)
            return None

    async def _swap(self, value: Leader, lease: int, *, expected: int) -> tuple[KeyValue, Leader]:
        """Write a claim if the key is as expected; return what is there then. As :meth:`take` raises."""
        try:
            swap = await self._keys.swap(self._key, value.encode(), expected=expected, lease=lease)
        except OutcomeUnknownError as unknown:
            found = await self._read(unknown)
            if found is None:
                raise
        else:
            found = swap.found
        if found is None:
            raise OutcomeUnknownError(f"the leader at {self._key!r} changed; call again")
        return found, Leader.decode(found.value, self._key)

    async def publish(self, value: Leader) -> bool:
        """Change what others see; False if the claim is not held any more. Errors as of :meth:`take`."""
        async with self._changing:
            value = value._replace(tag=self.tag)
            for _ in range(3):
                lease = self._session.lease
                if self.value is None or not lease:
                    return False
                try:
                    swap = await self._keys.swap(
                        self._key, value.encode(), expected=self._revision, lease=lease
                    )
                except LeaseLostError:
                    self.value = None
                    return False
                except OutcomeUnknownError as unknown:
                    found = await self._read(unknown)
                else:
                    if swap.happened and swap.found is not None:
                        self._hold(swap.found, value)
                        return True
                    found = swap.found
                leader = None if found is None else Leader.decode(found.value, self._key)
                if found is None or leader is None or leader.tag != self.tag:
                    self.value = None
                    return False
                self._hold(found, leader)
                if leader == value:
                    return True
            raise OutcomeUnknownError(f"what others see of {self._key!r} is not known; call again")

    async def keep(
        self,
        current: Callable[[], Leader],
        clock: Clock,
        *,
        pause_seconds: float,
        seen: Callable[[], Leader | None] | None = None,
    ) -> None:
        """Publish each change of ``current()``, looked at every ``pause_seconds``, until cancelled.

        After a lost lease the claim is taken again, unless another program leads by then. The primary
        of such a log learns it from the copies. The same when the store was set back to an earlier state,
        also to an earlier claim of this program: ``seen()`` returns what others see; without it the key is
        read every second.
        """
        looked, told = clock.monotonic(), ""
        while True:
            value, lease = current()._replace(tag=self.tag), self._session.lease
            try:
                is_time = clock.monotonic() - looked >= _READ_SECONDS
                if self.value and (is_time if seen is None else seen() != self.value):
                    looked = clock.monotonic()
                    await self._look()
                if lease and self.value is None:
                    await self.take(value, is_again=True)
                elif lease and (self.value, self._lease) != (value, lease):
                    await self.publish(value)
            except WalError as error:
                if told != str(error):
                    told = str(error)
                    logger.warning("the leader at %s is not published: %s", self._key, error)
            await clock.sleep(pause_seconds)

    async def leave(self) -> None:
        """Give the claim up, so that others need not wait. Twice is allowed.

        If the store does not answer, the claim ends with the session, or is found and given up later.
        """
        async with self._changing:
            held, self.value = self.value, None
            if held is None:
                return
            with contextlib.suppress(WalError):
                found = await self._keys.get(self._key)
                if found is not None and self._is_own(found):
                    await self._keys.swap(self._key, None, expected=found.revision)

    async def _look(self) -> None:
        """Find out what the store has now."""
        async with self._changing:
            found = await self._keys.get(self._key)
            if self.value is None:
                return
            if found is None or not self._is_own(found):
                logger.warning("the store has lost who leads the log at %s", self._key)
                self.value = None
            else:
                self._hold(found, Leader.decode(found.value, self._key))

    async def _read(self, unknown: OutcomeUnknownError) -> KeyValue | None:
        """Return what is there after a swap without an answer; ``unknown`` again if that cannot be read."""
        try:
            return await self._keys.get(self._key)
        except WalError:
            raise unknown from None

    def _hold(self, found: KeyValue, leader: Leader) -> None:
        self._revision, self._lease, self.value = found.revision, found.lease, leader

    def _is_own(self, found: KeyValue) -> bool:
        try:
            return Leader.decode(found.value, self._key).tag == self.tag
        except CorruptionError:
            return False
