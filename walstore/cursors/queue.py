"""RequestQueue: changes the cursors of one log for one process. CursorQueue: on their files, in rounds.

One task makes the changes of files; it runs only while there are requests. Requests made during a round are
done together in the next, under one lock and with one sync of the directory. :class:`TaskQueue` asks somebody
else for each change. A caller's cancellation does not reach those tasks: what was begun is finished, and its
request gets the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from walstore.cursors.directory import (
    CursorState,
    CursorTable,
    HeldCursors,
    describe_cursor,
    hold_cursors,
)
from walstore.errors import OutcomeUnknownError, WalClosedError, WalError, WalLockedError
from walstore.ports import Clock, FileSystem
from walstore.runtime.backoff import Backoff
from walstore.runtime.error_mapping import copy_error
from walstore.runtime.resource import abandon_in_children, wait_closed
from walstore.runtime.tasks import shield, start_task
from walstore.runtime.threads import Lane

logger = logging.getLogger("walstore")

_T = TypeVar("_T")

Act = Callable[[CursorTable], _T]
"""Reads, compares and writes cursors while nothing else does; raises WalError or OSError."""

PATIENCE_SECONDS: Final = 30.0
"""How long to wait for the lock of the cursors; each holder has it for milliseconds."""


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

    :class:`CursorQueue` does them on files, :class:`walstore.cursors.kept_queue.KeptQueue` on what a log
    keeps in itself, :class:`TaskQueue` somewhere else.
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

    async def perform(self, act: Act[_T], *, key: Hashable = None) -> _T:
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
        """Refuse everything in a child process; see :mod:`walstore.runtime.resource`."""
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


class CursorQueue(RequestQueue):
    """Does what is requested on the files of the cursors."""

    def __init__(
        self,
        *,
        fs: FileSystem,
        clock: Clock,
        worker: Callable[[], Lane],
        directory: Path,
        owner: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``worker()`` returns the lane for blocking calls; ``owner`` names this process in the lock.

        ``check()`` is called on that lane before a round, and again while the lock is held; it may refuse.
        """
        super().__init__(directory)
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._worker = worker
        self._owner = owner
        self._check = check
        # What is known to be durable. Belongs to the round in progress, on its thread.
        self._synced: dict[str, CursorState] = {}

    async def _drain(self) -> None:
        try:
            while taken := self._take():
                await self._round(taken)
        except BaseException:
            # The whole event loop is being stopped.
            left, self._requests = self._requests, []
            for request in left:
                request.begin()
                request.end(WalClosedError("the event loop is stopping"))
            raise
        finally:
            self._draining = None

    async def _round(self, requests: Sequence[CursorRequest[object]]) -> None:
        self.rounds += 1
        acts = [request.begin() for request in requests]
        outcomes: Sequence[object | BaseException]
        try:
            outcomes = await patiently(self._clock, lambda: self._worker().run(self._perform, acts))
        except Exception as error:
            if not isinstance(error, WalError):
                logger.exception("a defect while cursors of %s were changed", self._directory)
            outcomes = [error] * len(requests)
        except BaseException:
            for request in requests:
                request.end(stopped())
            raise
        for request, outcome in zip(requests, outcomes, strict=True):
            request.end(outcome)

    def _perform(self, acts: Sequence[Act[object]]) -> list[object | WalError]:
        """Do all acts under the lock. One that fails does not prevent the others."""
        self._check()
        try:
            with hold_cursors(
                self._fs, self._directory, owner=self._owner, synced=self._synced
            ) as held:
                self._check()
                outcomes = [self._try(act, held) for act in acts]
                try:
                    held.sync()
                except WalError as error:
                    outcomes = [
                        found if isinstance(found, WalError) else error for found in outcomes
                    ]
                return outcomes
        except OSError as error:
            raise describe_cursor(error, self._directory, "not_written") from error

    def _try(self, act: Act[object], held: HeldCursors) -> object | WalError:
        try:
            return act(held)
        except WalError as error:
            return error
        except OSError as error:
            return describe_cursor(error, self._directory, "not_written")


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
        except Exception as error:  # noqa: BLE001 - its caller gets it
            outcome = error
        except BaseException:  # the whole event loop is being stopped
            request.end(stopped())
            raise
        self._busy.discard(request.key)
        request.end(outcome)
        self._begin_some()


def stopped() -> OutcomeUnknownError:
    """Return the error for a request whose event loop ends."""
    return OutcomeUnknownError("the event loop stopped while a cursor moved")


async def patiently(
    clock: Clock, attempt: Callable[[], Awaitable[_T]], *, seconds: float = PATIENCE_SECONDS
) -> _T:
    """Return what ``attempt()`` returns, trying again while the cursors are locked by others.

    Raises WalLockedError (retriable) when they still are after ``seconds``.
    """
    deadline = clock.monotonic() + seconds
    backoff = Backoff(first_seconds=0.0005, longest_seconds=0.005)
    while True:
        try:
            return await attempt()
        except WalLockedError as error:
            if clock.monotonic() >= deadline:
                busy = WalLockedError(
                    f"the cursors at {error.path} are held by {error.owner or 'another process'} "
                    f"for more than {seconds:g} s; check whether that process is stopped",
                    path=error.path,
                    owner=error.owner,
                )
                busy.retriable = True
                raise busy from error
        await clock.sleep(backoff.next_seconds())
