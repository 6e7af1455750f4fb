"""RequestQueue: changes the cursors of one log for one process; TaskQueue: by asking somebody else.

A caller's cancellation does not reach the tasks that make the changes: what was begun is finished, and its
request gets the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import abandon_in_children, wait_closed
from walstore.core.runtime.tasks import shield, start_task
from walstore.errors import OutcomeUnknownError, WalClosedError, WalError

_T = TypeVar("_T")
_STOPPING: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends a task because the whole event loop is being stopped."""


class CursorRequest(Generic[_T]):
    """A task on the cursors of a log: begun and ended on the event loop, done on a thread."""

    __slots__ = ("_begin", "_end", "done", "key")

    def __init__(
        self,
        key: Hashable,
        begin: Callable[[], Callable[..., Any]],
        end: Callable[[_T | BaseException], None] | None = None,
    ) -> None:
        """Request the act that ``begin()`` returns when its turn comes, for the queue that gets the request;
        ``end`` gets the outcome.

        Requests with the same key are never in the same round: the later one begins after the earlier
        one has ended.
        """
        self.key = key
        self.done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._begin = begin
        self._end = end

    def begin(self) -> Callable[..., Any]:
        """Return the act to be done, from now on fixed."""
        return self._begin()

    def end(self, outcome: _T | BaseException) -> None:
        """Pass the outcome on to the waiters, if there are any left."""
        if self._end is not None:
            self._end(outcome)
        if self.done.done():
            return
        if isinstance(outcome, BaseException):
            self.done.set_exception(outcome)
            self.done.exception()  # there may be no waiter left
        else:
            self.done.set_result(outcome)


class RequestQueue:
    """The pending requests on the cursors of a log. Belongs to one event loop.

    :class:`CursorQueue` does them on files, :class:`walstore.positions.cursors.kept_queue.KeptQueue` on what
    a log keeps in itself, :class:`TaskQueue` somewhere else.
    """

    def __init__(self, log: Path | str) -> None:
        """``log`` names the log."""
        self._name = str(log)
        self._requests: list[CursorRequest[object]] = []
        # Of the requests on their way: the keys, and the tasks that end them.
        self._busy: set[Hashable] = set()
        self._ending: set[asyncio.Task[None]] = set()
        # The task, while there are requests; aclose() waits for it.
        self._draining: asyncio.Task[None] | None = None
        self._is_closed = False
        self._abandoned: WalClosedError | None = None
        abandon_in_children(self)
        self.rounds = 0
        """How many there were so far."""

    def put(self, request: CursorRequest[_T]) -> None:
        """Take a request; WalClosedError if the queue is closed."""
        self._check_open()
        self._requests.append(request)  # type: ignore[arg-type]
        self._wake()

    async def check_current(self) -> None:
        """Return once what is known of the cursors is the present, as that of files is."""

    def _check_open(self) -> None:
        if self._abandoned is not None:
            raise copy_error(self._abandoned)
        if self._is_closed:
            raise WalClosedError("the log is closed")

    def _wake(self) -> None:
        if self._draining is None:
            self._draining = start_task(self._drain(), name=f"walstore cursors {self._name}")

    def _spawn(self, ending: Coroutine[Any, Any, None]) -> None:
        """Start a task for requests on their way."""
        task = start_task(ending, name=f"walstore cursors on their way {self._name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def wait(self, request: CursorRequest[_T]) -> _T:
        """Return the outcome of a request, or raise it. Cancelling does not affect the request."""
        try:
            return await shield(request.done)
        except WalError as error:
            raise copy_error(error) from error.__cause__

    async def perform(self, act: Callable[..., _T], *, key: Hashable = None) -> _T:
        """Do an act in the next round and return its result; as :meth:`put` and :meth:`wait`.

        Without a ``key`` it may share a round with any request.
        """
        request: CursorRequest[_T] = CursorRequest(object() if key is None else key, lambda: act)
        self.put(request)
        return await self.wait(request)

    async def aclose(self) -> None:
        """Refuse further requests, and return when those taken are done."""
        self._is_closed = True
        await self.settle()

    async def settle(self) -> None:
        """Return when the requests taken are done."""
        while self._draining is not None or self._ending:
            if self._draining is not None:
                await wait_closed(self._draining)
            if self._ending:
                await asyncio.wait(self._ending)

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process; see :mod:`walstore.core.runtime.resource`."""
        self._abandoned = error

    async def _drain(self) -> None:
        """Do what is requested; :attr:`_draining` is None again when this ends."""

    def _take(self) -> list[CursorRequest[object]]:
        """Take the requests of one round, in order: the first one of each key that is not on its way."""
        taken: dict[Hashable, CursorRequest[object]] = {}
        left: list[CursorRequest[object]] = []
        for request in self._requests:
            if request.key in taken or request.key in self._busy:
                left.append(request)
            else:
                taken[request.key] = request
        self._requests = left
        return list(taken.values())


class TaskQueue(RequestQueue):
    """Does each request in a task of its own; its act is a coroutine function without arguments."""

    def put(self, request: CursorRequest[_T]) -> None:
        """As of :class:`RequestQueue`; it is begun unless another one of its key is on its way."""
        self._check_open()
        self._requests.append(request)  # type: ignore[arg-type]
        self._begin_some()

    def _begin_some(self) -> None:
        for request in self._take():
            self._busy.add(request.key)
            self._spawn(self._do(request, request.begin()))

    async def _do(
        self, request: CursorRequest[object], act: Callable[[], Awaitable[object]]
    ) -> None:
        outcome: object | BaseException
        try:
            outcome = await act()
        except _STOPPING:
            request.end(stopped())
            raise
        except BaseException as error:  # noqa: BLE001 - its caller gets it
            outcome = error
        self._busy.discard(request.key)
        request.end(outcome)
        self._begin_some()


def stopped() -> OutcomeUnknownError:
    """Return the error for a request whose event loop ends."""
    return OutcomeUnknownError("the event loop stopped while a cursor moved")
