"""A store that fails on demand, and counts: the fake behind the cloud tier's fault tests.

    store = FaultyStore(MemoryStore())
    store.on("put_if_match", happen_then_fail(timeout()))          # done, but the answer is lost
    store.on("get", fail(timeout()), times=3)                      # the next three reads
    store.on("put_if_absent", hang(event), key_prefix="log/")      # under way until the event is set
    store.on("any", call(check), nth=7)                            # somebody else acts first
    store.on("any", kill(), nth=n)                                 # the process dies at its nth call

Owns no policy: what is not planned goes to the inner store. A plan counts
the calls that it fits and that no plan before it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from uploader.stores.port import ListedObject, ObjectInfo, ObjectStore, StoredObject
from walstore.errors import Outcome, StorageUnavailableError

_T = TypeVar("_T")

Kind = Literal["get", "get_range", "head", "list", "put_if_absent", "put_if_match", "delete"]

Request = Callable[[], Awaitable[object]]
"""The call on the inner store, for a fault to make or not to make."""

Fault = Callable[[Request], Awaitable[object]]
"""Stands in for a call: makes it or not, and returns what it returned or raises."""


class StoreKilled(BaseException):
    """The process is dead: this call and every further one of the store end like this."""


def timeout(outcome: Outcome = "unknown") -> StorageUnavailableError:
    """Return the error of an answer that never came."""
    return StorageUnavailableError("the answer was lost (injected)", outcome=outcome)


def conflict() -> StorageUnavailableError:
    """Return the error for a 409: nothing was decided."""
    return StorageUnavailableError("the object was busy (injected)", outcome="not_written")


def fail(error: Exception) -> Fault:
    """Raise without making the call."""

    async def fault(_request: Request) -> object:
        raise error

    return fault


def happen_then_fail(error: Exception) -> Fault:
    """Make the call, then raise: an answer that was lost. What the call itself raises is lost too."""

    async def fault(request: Request) -> object:
        try:
            await request()
        except Exception as unseen:
            raise error from unseen
        raise error

    return fault


def hang(release: asyncio.Event, reached: asyncio.Event | None = None) -> Fault:
    """Set ``reached``, wait for ``release``, then make the call."""

    async def fault(request: Request) -> object:
        if reached is not None:
            reached.set()
        await release.wait()
        return await request()

    return fault


def happen_then_hang(release: asyncio.Event, reached: asyncio.Event | None = None) -> Fault:
    """Make the call, set ``reached``, and keep the answer back until ``release``."""

    async def fault(request: Request) -> object:
        answer = await request()
        if reached is not None:
            reached.set()
        await release.wait()
        return answer

    return fault


def call(action: Callable[[], Awaitable[object]]) -> Fault:
    """Await something else first, such as what a competitor does meanwhile; then make the call."""

    async def fault(request: Request) -> object:
        await action()
        return await request()

    return fault


def kill() -> Fault:
    """Die before the call is made."""

    async def fault(_request: Request) -> object:
        raise StoreKilled

    return fault


def happen_then_kill() -> Fault:
    """Make the call and die before its answer arrives."""

    async def fault(request: Request) -> object:
        await request()
        raise StoreKilled

    return fault


@dataclass(slots=True)
class CallCount:
    """Calls of one kind."""

    requests: int = 0
    """Calls made, failed ones included. A listing counts once."""

    bytes: int = 0
    """Content returned by reads, or handed to puts."""


@dataclass(slots=True)
class _Plan:
    kind: Kind | Literal["any"]
    fault: Fault
    calls_before: int
    times: int
    key_prefix: str


class FaultyStore:
    """The port over another store, with planned faults and counts. For one event loop."""

    def __init__(self, inner: ObjectStore) -> None:
        """Wrap ``inner``, which stays usable on its own, to look or to meddle behind the back."""
        self.inner = inner
        self.counts: dict[str, CallCount] = {}
        self.is_killed = False
        self._plans: list[_Plan] = []

    def on(
        self,
        kind: Kind | Literal["any"],
        fault: Fault,
        *,
        nth: int = 1,
        times: int = 1,
        key_prefix: str = "",
    ) -> None:
        """Plan a fault for calls to come.

        Args:
            kind: Which calls it fits.
            fault: What to do instead.
            nth: Which of them, from 1, counted from now.
            times: How many in a row.
            key_prefix: Only calls on keys (or listings of prefixes) that begin so. A delete of many
                fits if its first key does.
        """
        self._plans.append(_Plan(kind, fault, nth - 1, times, key_prefix))

    @property
    def requests(self) -> int:
        """Calls of all kinds so far."""
        return sum(count.requests for count in self.counts.values())

    def count(self, kind: Kind) -> CallCount:
        """Return the counts of one kind; they go on counting."""
        return self.counts.setdefault(kind, CallCount())

    @property
    def url(self) -> str:
        """The URL of the inner store."""
        return self.inner.url

    async def get(self, key: str) -> StoredObject:
        """Read through."""
        found = await self._make("get", key, lambda: self.inner.get(key))
        self.count("get").bytes += len(found.data)
        return found

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Read through."""
        data = await self._make("get_range", key, lambda: self.inner.get_range(key, start, limit))
        self.count("get_range").bytes += len(data)
        return data

    async def head(self, key: str) -> ObjectInfo | None:
        """Ask the inner store."""
        return await self._make("head", key, lambda: self.inner.head(key))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """List through; a fault strikes before the first object, or after the last was fetched."""

        async def request() -> list[ListedObject]:
            return [listed async for listed in self.inner.list(prefix, after=after)]

        for listed in await self._make("list", prefix, request):
            yield listed

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create through."""
        self.count("put_if_absent").bytes += len(data)
        return await self._make("put_if_absent", key, lambda: self.inner.put_if_absent(key, data))

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace through."""
        self.count("put_if_match").bytes += len(data)
        return await self._make(
            "put_if_match", key, lambda: self.inner.put_if_match(key, data, etag)
        )

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete through."""
        doomed = list(keys)
        first = doomed[0] if doomed else ""
        await self._make("delete", first, lambda: self.inner.delete(doomed))

    async def aclose(self) -> None:
        """Close the inner store; never fails on purpose."""
        await self.inner.aclose()

    async def _make(self, kind: Kind, key: str, request: Callable[[], Awaitable[_T]]) -> _T:
        if self.is_killed:
            raise StoreKilled
        self.count(kind).requests += 1
        fault = self._next_fault(kind, key)
        if fault is None:
            return await request()
        try:
            return await fault(request)  # type: ignore[return-value]  # what the request returned
        except StoreKilled:
            self.is_killed = True
            raise

    def _next_fault(self, kind: Kind, key: str) -> Fault | None:
        for plan in self._plans:
            if plan.kind in {"any", kind} and key.startswith(plan.key_prefix):
                if plan.calls_before:
                    plan.calls_before -= 1
                    continue
                plan.times -= 1
                if not plan.times:
                    self._plans.remove(plan)
                return plan.fault
        return None
