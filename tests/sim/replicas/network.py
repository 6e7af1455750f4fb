"""The network between primaries and nodes: ordered connections that stall, or break with what is sent."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.sim.loop import Process
from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import StorageUnavailableError, WalClosedError, WalError
from walstore.net.wire.verbs import Verb

if TYPE_CHECKING:
    from tests.sim.replicas.history import ReplicaHistory
    from tests.sim.replicas.machine import Machine


class Link:
    """One connection, from a process on one machine to the node on another."""

    def __init__(self, history: ReplicaHistory, source: Machine, target: Machine, process: Process):
        self._history = history
        self._source = source
        self._target = target
        self._process = process
        self._peer = target.process
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._pending: set[asyncio.Future[Any]] = set()
        self._clear_at = [0.0, 0.0]
        """When the last message in each direction arrives: none overtakes another."""

    def send(self, verb: str, arguments: Any, payload: bytes) -> asyncio.Future[Any]:
        """Send a request; its future gets the answer, or fails when the connection is lost."""
        future: asyncio.Future[Any] = self._history.loop.create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._travel(0, lambda: self._arrive(future, verb, arguments, payload))
        return future

    def lose(self) -> None:
        """Lose the connection, with what is on the way in either direction."""
        if self.is_lost:
            return
        self.is_lost = True
        for future in list(self._pending):
            if not future.done() and self._process.is_alive:
                future.set_exception(StorageUnavailableError("lost", outcome="unknown"))
                future.exception()
        if self._process.is_alive:
            self.on_lost()

    def _travel(self, way: int, then: Callable[[], None]) -> None:
        history = self._history
        if history.random.random() < history.plan.breaks:
            self.lose()
        at = history.loop.time() + history.random.expovariate(1 / history.plan.slowness)
        self._clear_at[way] = at = max(at, self._clear_at[way] + 1e-7)
        history.loop.call_at(at, self._deliver, way, then, context=contextvars.Context())

    def _deliver(self, way: int, then: Callable[[], None]) -> None:
        if self.is_lost:
            return
        if self._source.is_cut_off or self._target.is_cut_off:  # it waits in the sender's buffers
            later = self._history.loop.time() + 0.05
            self._clear_at[way] = max(self._clear_at[way], later)
            self._history.loop.call_at(
                later, self._deliver, way, then, context=contextvars.Context()
            )
            return
        if self._target.process is not self._peer:
            self.lose()  # the node at the other end is gone
            return
        then()

    def _arrive(
        self, future: asyncio.Future[Any], verb: str, arguments: Any, payload: bytes
    ) -> None:
        node = self._target.node
        if node is None or not self._peer.is_alive:
            self.lose()
            return

        async def answer() -> None:
            result, error = None, None
            try:
                result = await node.call(memoryview(payload), verb, *arguments)()
            except (WalError, ValueError) as raised:
                error = raised
            self._travel(1, lambda: self._answer(future, result, error))

        # Tasks of one connection begin in the order of its messages, as those of a server do.
        self._target.requests.append(answer)
        self._target.begin_requests()

    def _answer(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if future.done() or not self._process.is_alive:
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(copy_error(error) if isinstance(error, WalError) else error)
            future.exception()


class SimClient:
    """Stands for :class:`walstore.net.remote.client.Client`."""

    def __init__(self, history: ReplicaHistory, source: Machine, target: Machine, process: Process):
        self._history = history
        self._source = source
        self._target = target
        self._process = process
        self.address = target.address
        self._link: Link | None = None
        self._is_closed = False
        self.on_lost: Callable[[], None] = lambda: None

    async def connect(self) -> None:
        await asyncio.sleep(self._history.random.expovariate(1 / self._history.plan.slowness))
        if self._source.is_cut_off or self._target.is_cut_off or self._target.node is None:
            raise StorageUnavailableError(f"no server at {self.address}")
        self._link = Link(self._history, self._source, self._target, self._process)
        self._link.on_lost = self.on_lost

    @property
    def is_connected(self) -> bool:
        return self._link is not None and not self._link.is_lost

    async def call(self, verb: Verb, *arguments: Any, payload: Any = (), **_: Any) -> Any:
        if self._is_closed:
            raise WalClosedError("the connection is closed")
        if self._link is None or self._link.is_lost:
            raise StorageUnavailableError("there is no connection")
        return await self._link.send(verb.name, arguments, b"".join(payload))

    def send(self, verb: Verb, *arguments: Any, payload: Any = b"", **_: Any) -> Any:
        if self._is_closed or self._link is None or self._link.is_lost:
            raise StorageUnavailableError("there is no connection")
        answered: asyncio.Future[Any] = self._history.loop.create_future()

        def answer(future: asyncio.Future[Any]) -> None:
            if answered.done():
                return
            if future.exception() is not None:
                answered.set_exception(future.exception() or AssertionError())
                answered.exception()
            else:
                answered.set_result((future.result(), b""))

        sent = self._link.send(verb.name, arguments, b"".join(payload))
        sent.add_done_callback(answer)
        return SimpleNamespace(future=answered)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._link is not None:
            self._link.lose()


Requests = deque[Callable[[], Any]]
