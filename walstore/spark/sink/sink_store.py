"""Doing something at the place of a sink, from code without an event loop."""

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
    """The store that holds the logs, and what work on them needs."""

    store: ObjectStore
    settings: SinkSettings
    retry: RetryPolicy
    clock: Clock
    worker: Worker

    @property
    def committer(self) -> Committer:
        """What puts staged rows into the logs."""
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
    """Return how many logs there are, after making the partitioned log if need be; blocks."""

    async def act(target: SinkStore) -> int:
        return await open_partitions(
            target.store, options.partitions, retry=target.retry, worker=target.worker
        )

    return run_in_store(options, act)
