"""Forks: disables the copies of logs, stores and pools in a forked child process.

A child has the descriptors of its parent, locks included, and copies of its objects, but none of its
threads. So in a child every descriptor is closed, which does not affect the parent, and every log,
store and thread pool refuses to be used. A child that needs a log opens it itself.

The hook runs in the child's only thread and takes no lock: another thread may have held it at the fork.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, Protocol
from weakref import WeakSet

from walstore.errors import WalClosedError


class Inherited(Protocol):
    """An object that a child process must not use."""

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything from now on, with copies of ``error``. Called in a child process, once.

        Takes no lock, does not wait and wakes no waiter: the event loop may be that of the parent."""


_inherited: Final[WeakSet[Inherited]] = WeakSet()
_process = os.getpid()


def abandon_in_children(thing: Inherited) -> None:
    """Abandon an object in every child process forked from now on, while it is alive."""
    _inherited.add(thing)


def _abandon_all() -> None:
    global _process  # noqa: PLW0603 - there is one process
    error = WalClosedError(
        f"opened in process {_process}, of which this process is a fork; open it again here"
    )
    _process = os.getpid()
    for thing in list(_inherited):
        with contextlib.suppress(OSError):  # of closing; the others must still be closed
            thing.abandon(error)
    _inherited.clear()


os.register_at_fork(after_in_child=_abandon_all)
