"""A store that fails on demand, and counts: the fake behind the cloud tier's fault tests.

    store = FaultyStore(MemoryStore())
    store.on("put_if_match", happen_then_fail(timeout()))          # done, but the answer is lost
    store.on("put_if_match", report("412", happens=True))          # done, but refused
    store.on("get", fail(timeout()), times=3)                      # the next three reads
    store.on("put_if_absent", hang(event), key_prefix="log/")      # in flight until the event is set
    store.on("put_if_absent", postpone(store.late))                # arrives with ``await store.deliver()``
    store.on("any", call(check), nth=7)                            # another program acts first
    store.on("any", kill(), nth=n)                                 # the process dies at its nth call

Each function that returns a fault says what happens instead of a call. Owns no policy: calls without a plan
go to the inner store. A plan counts the calls that match it and that no plan before it took.

``ShuffledStore`` lists objects in any order, as S3 Express directory buckets and Storj do:

    store = ShuffledStore(MemoryStore(), random.Random(7).shuffle)
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from uploader.stores.port import (
    ListedObject,
    ObjectNotFoundError,
    ObjectStore,
    PreconditionFailedError,
)
from uploader.stores.wrapper import Kind, Request, StoreWrapper, content_bytes
from walstore.errors import Outcome, StorageUnavailableError, WalError

__all__ = [
    "SAYS",
    "CallCount",
    "Fault",
    "FaultyStore",
    "Kind",
    "Request",
    "Says",
    "ShuffledStore",
    "StoreKilled",
    "busy",
    "call",
    "conflict",
    "fail",
    "hang",
    "happen_then_fail",
    "happen_then_hang",
    "happen_then_kill",
    "kill",
    "outlive_caller",
    "postpone",
    "report",
    "reverse",
    "timeout",
]

Fault = Callable[[Request[Any]], Awaitable[object]]
"""Replaces a call: makes it or not, and returns what it returned or raises."""

Says = Literal["ok", "timeout", "412", "409", "500"]
"""What a store reports about a call, whatever its outcome."""

SAYS: tuple[Says, ...] = ("ok", "timeout", "412", "409", "500")
"""All that a store may report."""

_NUMBERS = itertools.count()


class StoreKilled(BaseException):
    """The process is dead: this call and every further one of the store raise this."""


def timeout(outcome: Outcome = "unknown") -> StorageUnavailableError:
    """Return the error of an answer that never came."""
    return StorageUnavailableError("the answer was lost (injected)", outcome=outcome)


def conflict() -> StorageUnavailableError:
    """Return the error for a 409: nothing was decided."""
    return StorageUnavailableError("the object was busy (injected)", outcome="not_written")


def busy() -> StorageUnavailableError:
    """Return the error for a 500: the server failed, before or after the change."""
    return StorageUnavailableError("the server failed (injected)", outcome="unknown")


def report(says: Says, *, happens: bool) -> Fault:
    """Make the call or not, and report an answer that may not match.

    ``report("ok", happens=False)`` is the fault no protocol survives: the store reports success for a call
    it did not make. Such a put returns an ETag that no object has, and such a read what it would return
    if the store had lost everything.

    Args:
        says: ``"ok"`` returns what the call returns, or raises what it raises if it was made and refused;
            the others raise :func:`timeout`, PreconditionFailedError, :func:`conflict` and :func:`busy`.
        happens: Whether the call is made.
    """

    async def fault(request: Request[Any]) -> object:
        answer, refusal = None, None
        if happens:
            try:
                answer = await request()
            except WalError as error:
                refusal = error
        if says != "ok":
            raise _error(says, request.key) from refusal
        if refusal is not None:
            raise refusal
        return answer if happens else _pretend(request)

    return fault


def _error(says: Says, key: str) -> WalError:
    if says == "412":
        return PreconditionFailedError("the precondition failed (injected)", key=key)
    return {"timeout": timeout, "409": conflict}.get(says, busy)()


def _pretend(request: Request[Any]) -> object:
    if request.kind in {"get", "get_range"}:
        raise ObjectNotFoundError("there is no such object (injected)", key=request.key)
    if request.kind in {"put_if_absent", "put_if_match"}:
        return f"lost-{next(_NUMBERS)}"
    return () if request.kind == "list" else None


def fail(error: Exception) -> Fault:
    """Raise without making the call."""

    async def fault(_request: Request[Any]) -> object:
        raise error

    return fault


def happen_then_fail(error: Exception) -> Fault:
    """Make the call, then raise: an answer that was lost. What the call itself raises is lost too."""

    async def fault(request: Request[Any]) -> object:
        try:
            await request()
        except Exception as unseen:
            raise error from unseen
        raise error

    return fault


def hang(release: asyncio.Event, reached: asyncio.Event | None = None) -> Fault:
    """Set ``reached``, wait for ``release``, then make the call."""

    async def fault(request: Request[Any]) -> object:
        if reached is not None:
            reached.set()
        await release.wait()
        return await request()

    return fault


def happen_then_hang(release: asyncio.Event, reached: asyncio.Event | None = None) -> Fault:
    """Make the call, set ``reached``, and hold the answer until ``release``."""

    async def fault(request: Request[Any]) -> object:
        answer = await request()
        if reached is not None:
            reached.set()
        await release.wait()
        return answer

    return fault


def call(action: Callable[[], Awaitable[object]]) -> Fault:
    """Await something else first, such as a competitor's action; then make the call."""

    async def fault(request: Request[Any]) -> object:
        await action()
        return await request()

    return fault


def kill() -> Fault:
    """Die before the call is made."""

    async def fault(_request: Request[Any]) -> object:
        raise StoreKilled

    return fault


def happen_then_kill() -> Fault:
    """Make the call and die before its answer arrives."""

    async def fault(request: Request[Any]) -> object:
        await request()
        raise StoreKilled

    return fault


def postpone(late: list[Request[Any]], error: Exception | None = None) -> Fault:
    """Do not make the call yet, and report a timeout (or ``error``): it is still in flight.

    The call joins ``late``. A test makes it at any time, an hour later or in another order; see
    :meth:`FaultyStore.deliver`, which has such a list.
    """

    async def fault(request: Request[Any]) -> object:
        late.append(request)
        raise error or timeout()

    return fault


def outlive_caller(late: list[Request[Any]], reached: asyncio.Event | None = None) -> Fault:
    """Hang until the caller is cancelled; the call is then still in flight, as for
    :func:`postpone`. Sets ``reached`` once it hangs."""

    async def fault(request: Request[Any]) -> object:
        if reached is not None:
            reached.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            late.append(request)
            raise

    return fault


def reverse(count: int) -> Fault:
    """Hold ``count`` calls until all have arrived, then make them one by one, the last one first.

    Plan it with ``times=count``. The calls must be concurrent, or none of them ends.
    """
    held: list[asyncio.Future[None]] = []

    async def fault(request: Request[Any]) -> object:
        turn = asyncio.get_running_loop().create_future()
        held.append(turn)
        if len(held) == count:
            held.pop().set_result(None)
        await turn
        try:
            return await request()
        finally:
            if held:
                held.pop().set_result(None)

    return fault


_T = TypeVar("_T")


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


class FaultyStore(StoreWrapper):
    """The port over another store, with planned faults and counts. For one event loop."""

    def __init__(self, inner: ObjectStore) -> None:
        """Wrap ``inner``, which stays usable directly, to inspect or change objects unnoticed."""
        super().__init__(inner)
        self.counts: dict[str, CallCount] = {}
        self.is_killed = False
        self.late: list[Request[Any]] = []
        """Calls in flight, in the order in which they were made; for faults that put them there."""
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
        """Plan a fault for later calls.

        Args:
            kind: Which calls match.
            fault: What to do instead.
            nth: The first of them to replace, from 1, counted from now.
            times: How many in a row.
            key_prefix: Only calls on keys (or listings of prefixes) with this beginning. A delete of many
                matches if its first key does.
        """
        self._plans.append(_Plan(kind, fault, nth - 1, times, key_prefix))

    async def deliver(self, *, newest_first: bool = False) -> list[object]:
        """Let the late calls arrive, one after the other, also after a kill.

        Returns each one's result or the store's error; these are not reported elsewhere.
        """
        arriving, self.late = self.late[:: -1 if newest_first else 1], []
        answers: list[object] = []
        for request in arriving:
            try:
                answers.append(await request())
            except WalError as error:
                answers.append(error)
        return answers

    @property
    def requests(self) -> int:
        """Calls of all kinds so far."""
        return sum(count.requests for count in self.counts.values())

    def count(self, kind: Kind) -> CallCount:
        """Return the counts of one kind; they continue counting."""
        return self.counts.setdefault(kind, CallCount())

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Pass a listing through; a fault comes before the first object, or after the last was fetched."""

        async def everything() -> Iterable[ListedObject]:
            return [listed async for listed in self.inner.list(prefix, after=after)]

        for listed in await self._call(Request("list", prefix, 0, 0, everything)):
            yield listed

    async def _call(self, request: Request[_T]) -> _T:
        if self.is_killed:
            raise StoreKilled
        count = self.count(request.kind)
        count.requests += 1
        count.bytes += request.sent_bytes
        fault = self._next_fault(request.kind, request.key)
        try:
            answer: Any = await (request() if fault is None else fault(request))
        except StoreKilled:
            self.is_killed = True
            raise
        count.bytes += content_bytes(answer)
        return answer  # type: ignore[no-any-return]  # what the call returned

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


class ShuffledStore(StoreWrapper):
    """The port over another store, except for the order of listings, which are still complete."""

    def __init__(
        self, inner: ObjectStore, shuffle: Callable[[list[ListedObject]], object] = list.reverse
    ) -> None:
        """Wrap ``inner``; ``shuffle`` reorders the objects of one listing in place. Default: backwards."""
        super().__init__(inner)
        self._shuffle = shuffle

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the inner store's objects, once it has listed all."""
        found = [listed async for listed in self.inner.list(prefix, after=after)]
        self._shuffle(found)
        for listed in found:
            yield listed
