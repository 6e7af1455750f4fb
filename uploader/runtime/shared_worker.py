"""SharedWorker: a lane on threads that all logs and stores of the process share.

A thousand logs need no more threads than one that is busy. Each has a lane of its own, and lanes take turns
(``walstore/core/runtime/threads.py``), so none waits long for another. The threads end with the last worker.
"""

from __future__ import annotations

import os
from typing import Final, Literal
from weakref import WeakValueDictionary

from walstore.core.runtime.threads import Lane, Pool, Worker

Purpose = Literal["cloud", "store", "lock"]
"""``cloud``: hashing, compressing and decoding, which take a processor. ``store``: waiting for a disk.
``lock``: waiting for another process's lock first, so that nothing else waits for that."""

_THREADS: Final[dict[Purpose, int]] = {
    "cloud": min(max(os.cpu_count() or 2, 2), 8),
    "store": 12,
    "lock": 8,
}
_pools: Final[WeakValueDictionary[Purpose, Pool]] = WeakValueDictionary()


class SharedWorker(Worker):
    """A worker on the process's threads for one purpose. All methods belong to the event loop."""

    __slots__ = ()

    def __init__(self, purpose: Purpose, width: int) -> None:
        """At most ``width`` of its calls run at a time."""
        Lane.__init__(self, _pool(purpose), width)

    def close(self) -> None:
        """Accept no more calls; earlier ones still run. Others' threads stay. Idempotent."""
        Lane.close(self)


def _pool(purpose: Purpose) -> Pool:
    found = _pools.get(purpose)
    # A child process has none of its parent's threads, so the pool refuses there.
    if found is None or found.refusal is not None:
        found = _pools[purpose] = Pool(purpose, _THREADS[purpose])
    return found
