"""Locks on logs and stores: one writer at a time. Blocking.

A log that is opened by itself takes its own lock, and a shared lock on the store that contains it, if any.
A store takes its lock exclusively and its logs take none, so ten thousand logs need one descriptor.
Of two openers one wins, in either order:

  * A log that was opened by itself while the store existed prevents the store's lock from being taken.
  * A log that was opened before the store existed holds its own lock, which the store checks before it
    opens the log. Its opener checks for a store only after taking that lock, so one of the two sees the
    other.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from walstore.core.files.directory import LOCK_NAME
from walstore.core.ports import FileSystem, Lock
from walstore.errors import WalLockedError

STORE_NAME: Final = ".store"
"""A store's lock file; it also marks a directory as a store. No log's directory begins with a dot."""

COPIES_NAME: Final = ".copies"
"""The lock file of the directory with a machine's copies of replicated logs."""


def lock_log(fs: FileSystem, directory: Path, owner: str) -> Lock:
    """Lock the log in ``directory`` for writing; WalLockedError if it or its store is open."""
    own = fs.lock(directory / LOCK_NAME, owner)
    try:
        # Relative to the directory itself: a symbolic link to it may be anywhere.
        shared = fs.lock_shared(directory / f"../{STORE_NAME}")
    except WalLockedError as error:
        own.release()
        raise WalLockedError(
            f"the store that holds the log is open ({error.owner or 'unknown owner'}): "
            f"{directory}; open the log through that store, or close it there",
            path=str(directory),
            owner=error.owner,
        ) from None
    except BaseException:
        own.release()
        raise
    return own if shared is None else _Locks(own, shared)


def lock_in_store(fs: FileSystem, directory: Path, _owner: str) -> Lock:
    """Check that the log of a store is not open by itself; from then on the store's lock protects it."""
    found = fs.lock_shared(directory / LOCK_NAME)
    if found is not None:
        found.release()
    return _Locks()


def lock_copies(fs: FileSystem, directory: Path, owner: str) -> Lock:
    """Lock the directory with the copies of a machine, creating it if needed; WalLockedError, OSError."""
    fs.make_directory(directory)
    try:
        return fs.lock(directory / COPIES_NAME, owner)
    except WalLockedError as error:
        raise WalLockedError(
            f"another machine keeps its copies in this directory ({error.owner or 'unknown'}): {directory}; "
            "give each one a directory of its own",
            path=str(directory),
            owner=error.owner,
        ) from None


def lock_store(fs: FileSystem, directory: Path, owner: str) -> Lock:
    """Lock the store in ``directory``; WalLockedError if it or one of its logs is open elsewhere."""
    try:
        return fs.lock(directory / STORE_NAME, owner)
    except WalLockedError as error:
        raise WalLockedError(
            f"the store, or a log in it by itself, is open ({error.owner or 'unknown'} "
            f"opened the store last): {directory}; close it there",
            path=str(directory),
            owner=error.owner,
        ) from None


class _Locks:
    """Several locks that are released together, maybe none."""

    __slots__ = ("_locks",)

    def __init__(self, *locks: Lock) -> None:
        self._locks = locks

    def describe(self, owner: str) -> None:
        """Replace the note in the first of them: the log's own; the store's is shared."""
        for lock in self._locks[:1]:
            lock.describe(owner)

    def release(self) -> None:
        """Give all of them back; twice is allowed."""
        for lock in self._locks:
            lock.release()


def this_process() -> str:
    """Name this process in locks and cursors, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"
