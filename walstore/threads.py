"""Threads that do a log's blocking work, so that the event loop never does.

A :class:`Pool` owns threads, a :class:`Lane` is a queue of calls that run on them. Lanes take turns: each
call that ends sends its lane to the back of the pool's queue, so a lane with a thousand calls delays
another one by no more than one call for each thread. A lane of width 1 runs its calls in the order in
which they were made, one at a time, on whichever thread is free. A :class:`Worker` is a lane with a pool
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from walstore.errors import WalClosedError

_T = TypeVar("_T")
_NO_JOBS: Final[deque[Callable[[], None]]] = deque(maxlen=0)


class Pool:
    """A few threads shared by any number of lanes. Threads start when there is work for them."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"walstore-{name}")
        self.guard = threading.Lock()
        """Guards the queues of all lanes; held for a few instructions at a time."""

    def lane(self, width: int = 1) -> Lane:
        """Return one more lane, with at most ``width`` calls on the threads at a time."""
        return Lane(self, width)

    def submit(self, turn: Callable[..., None], *args: object) -> None:
        """Queue a lane's turn; RuntimeError after :meth:`close`."""
        self._executor.submit(turn, *args)

    def close(self) -> None:
        """Let the calls of all lanes finish and end the threads; does not wait for them."""
        self._executor.shutdown(wait=False)


class Lane:
    """Calls that run on the threads of a pool, ``width`` at a time, in order if that is 1.

    All methods belong to the event loop.
    """

    __slots__ = ("_closed", "_jobs", "_pool", "_running", "_width")

    def __init__(self, pool: Pool, width: int = 1) -> None:
        self._pool = pool
        self._width = width
        self._closed = False
        # Guarded by the pool's lock. An idle lane has no queue of its own.
        self._jobs = _NO_JOBS
        self._running = 0

    async def run(self, call: Callable[..., _T], *args: object) -> _T:
        """Run ``call(*args)`` on a thread and return its result.

        Cancelling the caller does not interrupt the call; it finishes unobserved. WalClosedError after
        :meth:`close`.
        """
        return await self._start(call, args)

    async def run_owned(self, call: Callable[[], _T], discard: Callable[[_T], object]) -> _T:
        """Run ``call`` for a result that must be released: nobody else can.

        If the caller is cancelled, waits for the call to end and runs ``discard(result)`` on a thread
        before it goes. For lanes of width 1.
        """
        made: list[_T] = []
        calling = self._start(lambda: made.append(call()), ())
        try:
            await asyncio.shield(calling)
        except asyncio.CancelledError:
            discarding = self._start(lambda: [discard(found) for found in made], ())
            await asyncio.wait((calling, discarding))
            for future in (calling, discarding):
                if not future.cancelled():
                    future.exception()  # nobody is left to be told
            raise
        return made[0]

    def close(self) -> None:
        """Accept no more calls; those made before still run. Twice is allowed."""
        self._closed = True

    def _start(self, call: Callable[..., _T], args: tuple[object, ...]) -> asyncio.Future[_T]:
        if self._closed:  # under a reader that was between two calls, for one
            raise WalClosedError("the log is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def job() -> None:
            if future.cancelled():
                return
            error: BaseException | None = None
            result: Any = None
            try:
                result = call(*args)
            except BaseException as raised:  # noqa: BLE001 - the caller gets it
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_tell, future, result, error)
            error = None  # else its traceback would keep this frame

        with self._pool.guard:
            if self._running == self._width:
                if self._jobs is _NO_JOBS:
                    self._jobs = deque()
                self._jobs.append(job)
                return future
            self._running += 1
        try:
            self._pool.submit(self._turn, job)
        except RuntimeError:
            with self._pool.guard:
                self._running -= 1
            raise WalClosedError("the log is closed") from None
        return future

    def _turn(self, job: Callable[[], None]) -> None:
        """Do one call, then queue up behind the other lanes for the next."""
        while True:
            job()
            with self._pool.guard:
                if not self._jobs:
                    self._jobs = _NO_JOBS
                    self._running -= 1
                    return
                job = self._jobs.popleft()
            try:
                self._pool.submit(self._turn, job)
            except RuntimeError:
                continue  # the pool was closed: finish here what had been accepted
            return


class Worker(Lane):
    """A lane with threads of its own. With one thread, calls run in the order in which they were made."""

    __slots__ = ()

    def __init__(self, name: str, threads: int = 1) -> None:
        super().__init__(Pool(name, threads), threads)

    def close(self) -> None:
        """Let calls under way finish and end the threads; does not wait for them."""
        super().close()
        self._pool.close()


def _tell(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
