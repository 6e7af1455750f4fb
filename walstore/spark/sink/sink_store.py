"""Calls on the store of a sink, from code without an event loop. Blocking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from uploader.partitioned import Committer, SinkSettings, open_partitions
from uploader.stores import ObjectStore, RetryPolicy, open_store
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker
from walstore.spark.sink.options import SinkOptions
from walstore.spark.store import SyncRunner

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SinkStore:
    """The store that contains the logs, with what calls on it need."""

    store: ObjectStore
    settings: SinkSettings
    retry: RetryPolicy
    clock: Clock
    worker: Worker

    @property
    def committer(self) -> Committer:
        """The committer that publishes staged rows to the logs."""
        return Committer(
            self.store,
            settings=self.settings,
            retry=self.retry,
            clock=self.clock,
            worker=self.worker,
        )


def run_in_store(options: SinkOptions, act: Callable[[SinkStore], Awaitable[_T]]) -> _T:
    """Return what ``act`` returns; blocks. Connections and threads are released afterwards."""

    async def run() -> _T:
        clock = SystemClock()
        store = open_store(options.location.text)
        worker = Worker("sink", threads=3)
        try:
            return await act(
                SinkStore(store, options.settings, RetryPolicy(clock=clock), clock, worker)
            )
        finally:
            worker.close()
            await store.aclose()

    with closing(SyncRunner()) as runner:
        return runner.run(run())


def prepare(options: SinkOptions) -> int:
    """Create the partitioned log if it does not exist; return its number of logs. Blocks."""

    async def act(target: SinkStore) -> int:
        return await open_partitions(
            target.store, options.partitions, retry=target.retry, worker=target.worker
        )

    return run_in_store(options, act)
