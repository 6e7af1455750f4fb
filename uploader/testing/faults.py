"""A store that fails on demand, and counts: the fake behind the cloud tier's fault tests.

    store = FaultyStore(MemoryStore())
    store.on("put_if_match", happen_then_fail(timeout()))          # done, but the answer is lost
    store.on("put_if_match", report("412", happens=True))          # done, but refused
    store.on("get", fail(timeout()), times=3)                      # the next three reads
    store.on("put_if_absent", hang(event), key_prefix="log/")      # in flight until the event is set
    store.on("put_if_absent", postpone(store.late))                # arrives with ``await store.deliver()``
    store.on("any", call(check), nth=7)                            # another program acts first
    store.on("any", kill(), nth=n)                                 # the process dies at its nth call

The faults are in ``fault_actions.py`` and exported here, too. Owns no policy: calls without a plan
go to the inner store. A plan counts the calls that match it and that no plan before it took.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from uploader.stores.port import ListedObject, ObjectStore, StoredObject
from uploader.stores.wrapper import Kind, Request, StoreWrapper
from uploader.testing.fault_actions import (
    SAYS,
    Fault,
    Says,
    StoreKilled,
    busy,
    call,
    conflict,
    fail,
    hang,
    happen_then_fail,
    happen_then_hang,
    happen_then_kill,
    kill,
    outlive_caller,
    postpone,
    report,
    reverse,
    timeout,
)
from walstore.errors import WalError

__all__ = [
    "SAYS",
    "CallCount",
    "Fault",
    "FaultyStore",
    "Kind",
    "Request",
    "Says",
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
        """Return the counts of one kind; they go on counting."""
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
        count.bytes += _size_bytes(answer)
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


def _size_bytes(answer: object) -> int:
    if isinstance(answer, StoredObject):
        return len(answer.data)
    return len(answer) if isinstance(answer, bytes) else 0
