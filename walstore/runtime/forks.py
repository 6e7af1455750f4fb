"""Forks: what a child process gets a copy of and must not use.

A child has the descriptors of its parent, locks included, and copies of its objects, but none of its threads.
So in a child every descriptor is closed, which takes nothing from the parent, and every log, store and pool
of threads refuses to be used. A child that wants a log opens it by itself.

The hook runs in the child's only thread and takes no lock: another thread may have held it at the fork.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, Protocol
from weakref import WeakSet

from walstore.errors import WalClosedError


class Inherited(Protocol):
    """What a child process must not use."""

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything from now on, with copies of ``error``. Called in a child process, once.

        Takes no lock, waits for nothing, and wakes nobody: the event loop may be that of the parent."""


_inherited: Final[WeakSet[Inherited]] = WeakSet()
_process = os.getpid()


def abandon_in_children(thing: Inherited) -> None:
    """Have a thing abandoned in every child process that is forked from now on, while it lives."""
    _inherited.add(thing)


def _abandon_all() -> None:
    global _process  # noqa: PLW0603 - there is one process
    error = WalClosedError(
        f"opened in process {_process}, of which this process is a fork; open it again here"
    )
    _process = os.getpid()
    for thing in list(_inherited):
        with contextlib.suppress(OSError):  # of closing; the others must be closed all the same
            thing.abandon(error)
    _inherited.clear()


os.register_at_fork(after_in_child=_abandon_all)
