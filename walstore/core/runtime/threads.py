"""Threads for a log's blocking work, which never runs on the event loop.

A :class:`Pool` owns threads, a :class:`Lane` is a queue of calls that run on them. Lanes take turns:
after each call its lane moves to the back of the pool's queue, so a lane with a thousand calls delays
another one by at most one call per thread. A lane of width 1 runs its calls one at a time, in the order
in which they were made, on any free thread. A :class:`Worker` is a lane with a pool of its own.

Every durable append waits for one call, so the round trip counts. That is why the threads take their
work from a plain queue: through ``concurrent.futures`` the round trip of an empty call took 87 µs
instead of 45 (bench/test_latency.py).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakSet, finalize

from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import abandon_in_children
from walstore.core.runtime.tasks import shield, wait_ended, wake
from walstore.errors import StorageUnavailableError, WalClosedError

_T = TypeVar("_T")
_NO_JOBS: Final[deque[Callable[[], None]]] = deque(maxlen=0)


_Turn = Callable[[Callable[[], None]], None]
_Queue = SimpleQueue[tuple[_Turn, Callable[[], None]] | None]


class Pool:
    """A few threads shared by any number of lanes. Threads start when there is work for them.

    A pool that is never closed ends its threads when it is garbage-collected or when the interpreter
    exits, after finishing the calls that were made.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = f"walstore-{name}"
        self._most = threads
        self._queue: _Queue = SimpleQueue()
        self._end = _End()
        self.guard = threading.Lock()
        """Guards this pool and the queues of all lanes; held for a few instructions at a time."""
        # Guarded by that lock.
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.refusal: WalClosedError | None = None
        """Why no lane can be used in a child process, which has none of the threads."""
        abandon_in_children(self)
        finalize(self, self._queue.put, None).atexit = False
        _pools.add(self)

    def lane(self, width: int = 1) -> Lane:
        """Return a new lane, with at most ``width`` calls on the threads at a time."""
        return Lane(self, width)

    def submit(self, turn: _Turn, job: Callable[[], None]) -> None:
        """Queue a lane's turn; RuntimeError after :meth:`close`.

        StorageUnavailableError if the pool has no thread yet and the system cannot start one.
        """
        with self.guard:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            if len(self._threads) < self._most:
                self._start_thread()
            self._queue.put((turn, job))

    def close(self) -> None:
        """Let the calls of all lanes finish and end the threads; does not wait for them."""
        self._close(None)

    def close_with(self, last: Callable[[], object]) -> asyncio.Future[None]:
        """As :meth:`close`, and call ``last()`` on the last thread to end, when all calls are done.

        That happens whether or not the caller waits for it. Not for a closed pool.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def run_last() -> None:
            error: BaseException | None = None
            try:
                last()
            except BaseException as raised:  # noqa: BLE001 - the caller gets it
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter
                loop.call_soon_threadsafe(_resolve, done, None, None, error)

        self._close(run_last)
        return done

    def _close(self, last: Callable[[], None] | None) -> None:
        with self.guard:
            if self._is_closed:
                return
            self._is_closed = True
            self._end.last = last
            self._queue.put(None)
            if last is None or self._threads:
                return
            with contextlib.suppress(StorageUnavailableError):
                self._start_thread()
                return
        last()  # it blocks the caller, but otherwise it would never run

    def join(self) -> None:
        """Wait for the threads to end, after :meth:`close`."""
        for thread in self._threads:
            thread.join()

    def abandon(self, error: WalClosedError) -> None:
        """Drop the threads: they are the parent's."""
        self.refusal = error
        self.guard = threading.Lock()
        self._threads = []
        self._is_closed = True

    def _start_thread(self) -> None:
        # Daemons, since the interpreter waits for other threads before its exit handlers run.
        thread = threading.Thread(
            target=_serve,
            args=(self._queue, self._end),
            name=f"{self._name}_{len(self._threads)}",
            daemon=True,
        )
        self._end.threads += 1
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more
            self._end.threads -= 1
            if not self._threads:
                raise StorageUnavailableError(
                    f"no thread can be started: {error}; nothing was written, end others or raise the "
                    "limits of the process (ulimit -u, ulimit -v)"
                ) from error
        else:
            self._threads.append(thread)


_pools: WeakSet[Pool] = WeakSet()


@atexit.register
def _finish_all() -> None:
    """Finish calls before the interpreter shuts down."""
    pools = list(_pools)
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


class _End:
    """The action of the last thread of a pool; threads reference this, not the pool."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.threads = 0
        """Threads that were started and have not ended. None is started after the end is signalled."""
        self.last: Callable[[], None] | None = None

    def reach(self) -> bool:
        """Record the end of a thread; return whether it was the last."""
        with self._guard:
            self.threads -= 1
            return self.threads == 0


def _serve(queue: _Queue, end: _End) -> None:
    """Take turns until the end is signalled; pass that on to the other threads."""
    while (taken := queue.get()) is not None:
        turn, job = taken
        turn(job)
        del taken, turn, job  # else a result would stay alive until the next call
    queue.put(None)
    if end.reach() and end.last is not None:
        end.last()


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
        return await self.begin(call, *args)

    async def run_owned(self, call: Callable[[], _T], discard: Callable[[_T], object]) -> _T:
        """Run ``call`` for a result that must be released, even if the caller is cancelled.

        A cancelled caller waits for the call to end and runs ``discard(result)`` on a thread before it
        raises, however often it is cancelled. For lanes of width 1.
        """
        made: list[_T] = []
        calling = self.begin(lambda: made.append(call()))
        try:
            await shield(calling)
        except asyncio.CancelledError:
            discarding = self.begin(lambda: [discard(found) for found in made])
            await wait_ended(calling, discarding)
            for future in (calling, discarding):
                if not future.cancelled():
                    future.exception()  # there is no waiter left
            raise
        return made[0]

    async def run_through(
        self,
        call: Callable[..., _T],
        *args: object,
        then: Callable[[_T], object] | None = None,
        on_cancel: Callable[[], None] | None = None,
    ) -> _T:
        """As :meth:`run`, but a cancelled caller still waits for the call to end.

        CancelledError then, whether or not the call failed: else a caller that leaves out the errors of a
        disk would leave out that it is to end. With ``on_cancel`` that is called instead, and the caller gets
        the result or the error: it has to see to its end itself.

        ``then(result)`` is called on the event loop just before the caller continues; its errors
        are raised here. For tasks whose work must not be left half done.
        """
        job = self.begin_through(call, *args, then=then)
        try:
            return await job
        except asyncio.CancelledError:
            # Delivered once the job is done, because the job refuses to be cancelled.
            if on_cancel is None:
                raise
            on_cancel()
            return job.result()

    def begin(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        """As :meth:`run`, for callers that do not wait: the call is queued when this returns."""
        return self.begin_through(call, *args, make_future=asyncio.Future)

    def begin_through(
        self,
        call: Callable[..., _T],
        *args: object,
        then: Callable[[_T], object] | None = None,
        make_future: Callable[..., asyncio.Future[_T]] | None = None,
    ) -> asyncio.Future[_T]:
        """As :meth:`run_through`, for callers that do not wait: the call is queued when this returns.

        The future cannot be cancelled, unless ``make_future`` makes another kind.
        """
        if self._pool.refusal is not None:
            raise copy_error(self._pool.refusal)
        if self._closed:  # for example while a reader was between two calls
            raise WalClosedError("the log is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = (make_future or _Uncancellable)(loop=loop)

        def job() -> None:
            if future.cancelled():
                return
            error: BaseException | None = None
            result: Any = None
            try:
                result = call(*args)
            except BaseException as raised:  # noqa: BLE001 - the caller gets it
                error = raised
            try:  # noqa: SIM105 - suppress() takes 0.6 µs, which each durable append waits for
                loop.call_soon_threadsafe(_resolve, future, then, result, error)
            except RuntimeError:
                pass  # the loop is closed: there is no waiter
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
        except (RuntimeError, StorageUnavailableError) as error:
            with self._pool.guard:
                self._running -= 1
            if isinstance(error, StorageUnavailableError):
                raise
            raise WalClosedError("the log is closed") from None
        return future

    def close(self) -> None:
        """Accept no more calls; those made before still run. Twice is allowed."""
        self._closed = True

    async def close_through(self) -> None:
        """As :meth:`close`, and return when the calls made before are done, even if the caller is cancelled
        meanwhile. For lanes of width 1."""
        last = self.begin_through(_nothing)
        self.close()
        with contextlib.suppress(asyncio.CancelledError):  # delivered once the call is done
            await last

    def _turn(self, job: Callable[[], None]) -> None:
        """Do one call, then queue behind the other lanes for the next."""
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
                continue  # the pool was closed: finish the accepted calls here
            return


class _Uncancellable(asyncio.Future[_T]):
    """A future whose awaiter is cancelled only once it is done."""

    def cancel(self, msg: object = None) -> bool:
        """Refuse."""
        return False


class Worker(Lane):
    """A lane with threads of its own. With one thread, calls run in the order in which they were made."""

    __slots__ = ()

    def __init__(self, name: str, threads: int = 1) -> None:
        super().__init__(Pool(name, threads), threads)

    def close(self) -> None:
        """Let running calls finish and end the threads; does not wait for them."""
        super().close()
        self._pool.close()


def _nothing() -> None:
    """A call that does nothing, to wait for earlier ones."""


def _resolve(
    future: asyncio.Future[Any],
    then: Callable[[Any], object] | None,
    result: object,
    error: BaseException | None,
) -> None:
    try:
        if then is not None and error is None:
            then(result)
    except Exception as raised:  # noqa: BLE001 - the caller gets it
        error = raised
    except BaseException:  # a task that was woken ends the program
        if not future.done():
            future.set_result(result)
        raise
    if error is None:
        wake((future,), result)
    elif not future.done():  # else it was cancelled meanwhile
        future.set_exception(error)
        future.exception()  # a caller cancelled at this moment never retrieves it
