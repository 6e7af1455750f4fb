"""Coroutines in the processes of Spark, whose threads block: in a plan, in a task, in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Self, TypeVar

from uploader.stores import ObjectStore, open_store
from walstore.core.runtime.threads import Worker

_T = TypeVar("_T")


class SyncRunner:
    """Runs one coroutine after another, on one event loop. Must not be used inside another loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return its result."""
        # Not Runner.run(): it restores a signal handler, and signal() formats the replaced handler
        # with its task and the whole result of that task.
        return self._runner.get_loop().run_until_complete(call)

    def close(self) -> None:
        """Cancel remaining tasks and close the event loop; may be called twice."""
        self._runner.close()


def off_loop(call: Callable[[], _T]) -> _T:
    """Return what a blocking call returns; it runs in a thread if this one runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "walstore-plan") as thread:
        return thread.submit(call).result()


def run_blocking(make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Return what a coroutine returns that ``make`` makes. Blocks, also inside an event loop."""

    def blocking() -> _T:
        with closing(SyncRunner()) as runner:
            return runner.run(make())

    return off_loop(blocking)


def run_in_store(url: str, act: Callable[[ObjectStore, Worker], Awaitable[_T]]) -> _T:
    """Return what ``act`` returns for the store at a URL; it is closed afterwards, with the threads."""

    async def run() -> _T:
        store = open_store(url)
        worker = Worker("spark", threads=3)
        try:
            return await act(store, worker)
        finally:
            worker.close()
            await store.aclose()

    return run_blocking(run)


class StoreReading:
    """A store and an event loop of its own, for one task or plan. A context manager, which closes both."""

    def __init__(self, url: str, *, store: ObjectStore | None = None, threads: int = 1) -> None:
        """Read from the store at ``url``, or from ``store``. The first request is made by the first read."""
        self.store = store if store is not None else open_store(url)
        self.worker = Worker("spark", threads=threads)
        self._runner = SyncRunner()

    def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return its result."""
        return self._runner.run(call)

    def close(self) -> None:
        """Release connections and threads."""
        try:
            self.worker.close()
            self.run(self.store.aclose())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
