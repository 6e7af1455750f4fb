"""MemoryKeyValues: the store in this process, shared by several clients, with faults that tests choose."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import Final, TypeVar

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.tasks import shield
from walstore.errors import OutcomeUnknownError, StorageUnavailableError, WalClosedError
from walstore.topology.key_values import (
    Event,
    Events,
    HistoryCompactedError,
    KeySnapshot,
    KeyValue,
    LeaseLostError,
    Swap,
    check_after,
    check_key,
    check_lease,
    check_prefix,
    check_swap,
    check_ttl,
)

_T = TypeVar("_T")
_FIRST_LEASE: Final = 7_000_000_000_000_000_001
"""Ids of leases are large, as etcd's are."""


class _Lease:
    """A lease that has not ended."""

    __slots__ = ("ends_at", "keys", "ttl_seconds")

    def __init__(self, ttl_seconds: int, now: float) -> None:
        self.ttl_seconds = ttl_seconds
        self.ends_at = now + ttl_seconds
        self.keys: set[str] = set()


class MemoryKeyValues:
    """What the clients share. Belongs to one event loop. It starts no task: leases end when somebody looks.

    Behaves as etcd does: it begins at revision 1, the keys of a lease are deleted at one revision, and a
    compaction removes all history below a revision.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """``clock`` ends the leases; the machine's by default."""
        self.clock: Final = clock or SystemClock()
        """As given."""
        self.revision = 1
        """Of the newest change; 1 if there was none."""
        self.compacted = 0
        """No watch can begin after a revision below."""
        self._items: dict[str, KeyValue] = {}
        self._history: list[Event] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = count(_FIRST_LEASE)
        self._changed: asyncio.Future[None] | None = None

    def client(self, name: str = "a machine") -> MemoryClient:
        """Return the client of one machine; the name is in its errors."""
        return MemoryClient(self, name)

    @property
    def leases(self) -> Sequence[int]:
        """The leases that have not ended, in the order in which they were made."""
        self.expire()
        return list(self._leases)

    def compact(self, revision: int) -> None:
        """Forget all changes below a revision, but not what is there now; ValueError for a later one."""
        if not 0 < revision <= self.revision:
            raise ValueError(
                f"revision {revision} cannot be compacted: the store is at {self.revision}"
            )
        self.compacted = max(self.compacted, revision)
        self._history = [event for event in self._history if event.revision >= self.compacted]
        self.wake()

    def save(self) -> MemoryKeyValues:
        """Return all that it has, for :meth:`set_back`."""
        saved = MemoryKeyValues(self.clock)
        saved.set_back(self)
        return saved

    def set_back(self, saved: MemoryKeyValues) -> None:
        """Have what was saved, as an etcd whose data was put back; leases have their whole time again."""
        self.revision, self.compacted = saved.revision, saved.compacted
        self._items, self._history = dict(saved._items), list(saved._history)
        now = self.clock.monotonic()
        self._leases = {}
        for number, lease in saved._leases.items():
            self._leases[number] = _Lease(lease.ttl_seconds, now)
            self._leases[number].keys |= lease.keys
        self.wake()

    # -- what clients do ---------------------------------------------------------------------

    def get(self, key: str) -> KeyValue | None:
        """Return what is there now."""
        self.expire()
        return self._items.get(key)

    def list(self, prefix: str) -> KeySnapshot:
        """Return the keys with a prefix."""
        self.expire()
        found = sorted(item for item in self._items.items() if item[0].startswith(prefix))
        return KeySnapshot(dict(found), self.revision)

    def swap(self, key: str, value: bytes | None, expected: int, lease: int) -> Swap:
        """Write a key if it has the expected revision; LeaseLostError."""
        self.expire()
        found = self._items.get(key)
        if (found.revision if found else 0) != expected:
            return Swap(happened=False, found=found, revision=self.revision)
        if lease:
            self._lease(lease).keys.add(key)
        if found and found.lease and found.lease != lease:
            self._leases[found.lease].keys.discard(key)
        self.revision += 1
        now = None if value is None else KeyValue(key, value, self.revision, lease)
        self._change(key, now)
        self.wake()
        return Swap(happened=True, found=now, revision=self.revision)

    def grant(self, ttl_seconds: int) -> int:
        """Make a lease."""
        self.expire()
        lease = next(self._lease_ids)
        self._leases[lease] = _Lease(ttl_seconds, self.clock.monotonic())
        self.wake()  # present waiters also wait for its end
        return lease

    def keep_alive(self, lease: int) -> float:
        """Give a lease its whole time again; LeaseLostError."""
        self.expire()
        found = self._lease(lease)
        found.ends_at = self.clock.monotonic() + found.ttl_seconds
        return float(found.ttl_seconds)

    def revoke(self, lease: int) -> None:
        """End a lease, if it has not ended."""
        self.expire()
        if lease in self._leases:
            self._end(lease)

    def events(self, prefix: str, after: int) -> Events:
        """Return the changes after a revision; HistoryCompactedError."""
        self.expire()
        if self.compacted > max(after, 1):
            raise HistoryCompactedError(
                "the store has forgotten these changes", after=after, compacted=self.compacted
            )
        first = bisect_right(self._history, after, key=attrgetter("revision"))
        return [event for event in self._history[first:] if event.key.startswith(prefix)]

    def expire(self) -> None:
        """End the leases whose time is over."""
        now = self.clock.monotonic()
        over = [lease for lease, state in self._leases.items() if state.ends_at <= now]
        for lease in sorted(over, key=lambda one: (self._leases[one].ends_at, one)):
            self._end(lease)

    async def wait_change(self) -> None:
        """Return when something may have changed, at the latest when the next lease ends."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        changed = self._changed
        ends = [lease.ends_at for lease in self._leases.values()]
        if not ends:
            await shield(changed)
            return
        async with asyncio.TaskGroup() as group:
            alarm = group.create_task(self._wake_in(min(ends) - self.clock.monotonic()))
            await shield(changed)
            alarm.cancel()

    def wake(self) -> None:
        """Let everybody in :meth:`wait_change` look again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _wake_in(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self.wake()

    def _lease(self, lease: int) -> _Lease:
        found = self._leases.get(lease)
        if found is None:
            raise LeaseLostError(f"there is no lease {lease}: it ended", lease=lease)
        return found

    def _end(self, lease: int) -> None:
        keys = self._leases.pop(lease).keys
        if keys:
            self.revision += 1
        for key in sorted(keys):
            self._change(key, None)
        self.wake()

    def _change(self, key: str, now: KeyValue | None) -> None:
        if now is None:
            del self._items[key]
        else:
            self._items[key] = now
        self._history.append(Event(key, now, self.revision))


class MemoryClient:
    """A :class:`walstore.topology.key_values.KeyValues` of one machine, which can be cut off from the store.

    Every call lets other tasks run before and after it is executed.
    """

    def __init__(self, store: MemoryKeyValues, name: str) -> None:
        """Not for callers; see :meth:`MemoryKeyValues.client`."""
        self._store = store
        self._name = name
        self._cut_off = False
        self._hangs = False
        self.loses_answers = False
        """Whether calls are executed, and then fail as if the answer was lost."""
        self._is_closed = False

    @property
    def cut_off(self) -> bool:
        """Whether calls fail with StorageUnavailableError, and watches are silent. May be set."""
        return self._cut_off

    @cut_off.setter
    def cut_off(self, value: bool) -> None:
        self._cut_off = value
        self._store.wake()

    @property
    def hangs(self) -> bool:
        """Whether calls wait and watches are silent, until this is set to False. May be set."""
        return self._hangs

    @hangs.setter
    def hangs(self, value: bool) -> None:
        self._hangs = value
        self._store.wake()

    async def get(self, key: str) -> KeyValue | None:
        """Return what is there now."""
        key = check_key(key)
        return await self._do(lambda: self._store.get(key))

    async def list(self, prefix: str) -> KeySnapshot:
        """Return the keys with a prefix."""
        prefix = check_prefix(prefix)
        return await self._do(lambda: self._store.list(prefix))

    async def swap(self, key: str, value: bytes | None, *, expected: int, lease: int = 0) -> Swap:
        """Write a key if it has the expected revision."""
        key, value = check_swap(key, value, expected, lease)
        await self._reach()
        swap = self._store.swap(key, value, expected, lease)
        try:
            await self._answer()
        except StorageUnavailableError as error:
            raise OutcomeUnknownError(f"the swap of {key!r} may have happened: {error}") from error
        return swap

    async def grant(self, ttl_seconds: int) -> int:
        """Make a lease."""
        ttl_seconds = check_ttl(ttl_seconds)
        return await self._do(lambda: self._store.grant(ttl_seconds))

    async def keep_alive(self, lease: int) -> float:
        """Give a lease its whole time again."""
        lease = check_lease(lease)
        return await self._do(lambda: self._store.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        """End a lease."""
        lease = check_lease(lease)
        await self._do(lambda: self._store.revoke(lease))

    def watch(self, prefix: str, *, after: int) -> AsyncGenerator[Events, None]:
        """Yield the changes of keys with a prefix."""
        return self._watch(check_prefix(prefix), check_after(after))

    async def aclose(self) -> None:
        """Refuse further calls."""
        self._is_closed = True
        self._store.wake()

    async def _watch(self, prefix: str, after: int) -> AsyncGenerator[Events, None]:
        while True:
            self._check_open()
            events = [] if self._cut_off or self._hangs else self._store.events(prefix, after)
            if events:
                after = events[-1].revision
                yield events
            else:
                await self._store.wait_change()

    def _check_open(self) -> None:
        if self._is_closed:
            raise WalClosedError("this client of the key-value store is closed")

    async def _do(self, call: Callable[[], _T]) -> _T:
        await self._reach()
        result = call()
        await self._answer()
        return result

    async def _reach(self) -> None:
        """Wait until a request has reached the store; StorageUnavailableError."""
        self._check_open()
        await self._store.clock.sleep(0)
        while self._hangs and not self._is_closed:
            await self._store.wait_change()
        self._check_open()
        if self._cut_off:
            raise StorageUnavailableError(f"{self._name} does not reach the key-value store")

    async def _answer(self) -> None:
        """Wait until the answer is back; StorageUnavailableError."""
        await self._store.clock.sleep(0)
        if self.loses_answers or self._cut_off:
            raise StorageUnavailableError(f"the key-value store's answer to {self._name} was lost")
        while self._hangs and not self._is_closed:
            await self._store.wait_change()
