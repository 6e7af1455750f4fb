"""The content of a store's directory: the lock, the logs, and remains of deleted ones. Blocking.

.store            the lock; marks the directory as a store
orders%2F0/       a log, see store/names.py
.deleted-1/       a log that was deleted, until its files are removed
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

from walstore.append.disk_watch import look
from walstore.errors import LogNotFoundError
from walstore.files.directory import sync_entry
from walstore.files.locks import lock_in_store, lock_store, this_process
from walstore.ports import FileSystem, Lock
from walstore.store.names import name_of

_DELETED_PREFIX: Final = ".deleted-"


class OpenedStore(NamedTuple):
    """The directory of a store that is open."""

    fs: FileSystem
    """Anchored to the store's directory."""
    lock: Lock
    free_bytes: int | None
    """Free space on the file system, if it is known."""

    def release(self) -> None:
        """Release the lock and the directory; twice is allowed."""
        try:
            self.lock.release()
        finally:
            self.fs.close()


def open_store(fs: FileSystem, path: Path) -> OpenedStore:
    """Make the directory if needed, lock it, and finish deletions that a crash interrupted.

    Raises WalLockedError, OSError.
    """
    is_made = fs.make_directory(path)
    with contextlib.ExitStack() as stack:
        fs = fs.anchor(path)
        stack.callback(fs.close)
        lock = lock_store(fs, path, this_process())
        stack.callback(lock.release)
        if not is_made:
            sync_entry(fs, path)
        for name in fs.list_directories(path):
            if name.startswith(_DELETED_PREFIX):
                fs.remove_tree(path / name)
        stack.pop_all()
    return OpenedStore(fs, lock, look(fs, path))


def list_logs(fs: FileSystem, path: Path) -> list[str]:
    """Return the names of the logs in the store, in order."""
    names = map(name_of, fs.list_directories(path))
    return sorted(name for name in names if name is not None)


def delete_log(fs: FileSystem, path: Path, directory: str) -> None:
    """Rename a closed log away durably, then remove it.

    Raises LogNotFoundError, WalLockedError if it is open outside the store, and OSError.
    """
    found = fs.list_directories(path)
    if directory not in found:
        raise LogNotFoundError(
            f"there is no log {name_of(directory)!r} in {path}", location=str(path / directory)
        )
    lock_in_store(fs, path / directory, this_process()).release()
    number = 1
    while f"{_DELETED_PREFIX}{number}" in found:
        number += 1
    deleted = path / f"{_DELETED_PREFIX}{number}"
    fs.replace(path / directory, deleted)
    fs.sync_directory(path)
    fs.remove_tree(deleted)
