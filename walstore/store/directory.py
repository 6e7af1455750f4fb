"""The content of a store's directory: the lock, the logs, and remains of deleted ones. Blocking.

.store            the lock; marks the directory as a store
orders%2F0/       a log
.deleted-1/       a log that was deleted, until its files are removed

A name is one or more parts with ``/`` between them, such as ``orders`` or ``eu-west.orders/0``. A part
is not empty, not ``.`` and not ``..``; a name holds no control characters and its directory's name has
at most 255 bytes. Every log is a direct subdirectory of the store: any character but ASCII letters,
digits, ``-``, ``_`` and ``.`` is written as ``%`` and two hex digits for each byte of its UTF-8 form,
and so is a leading dot. The mapping is reversible, no two names share a directory, none leads out of
the store, and names with a leading dot belong to the store itself.
"""

from __future__ import annotations

import contextlib
import string
import unicodedata
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from walstore.core.append.disk_watch import look
from walstore.core.files.directory import sync_entry
from walstore.core.files.locks import lock_in_store, lock_store, this_process
from walstore.core.ports import FileSystem, Lock
from walstore.errors import InvalidSettingsError, LogNotFoundError

MAX_DIRECTORY_BYTES: Final = 255
"""Longest directory name; what common file systems allow."""
_PLAIN: Final = frozenset((string.ascii_letters + string.digits + "-_.").encode())
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


def has_log(fs: FileSystem, path: Path, directory: str) -> bool:
    """Return whether a log has a directory in the store. Raises OSError."""
    try:
        fs.list(path / directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


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


def directory_of(name: str) -> str:
    """Return the directory name of the log ``name``; InvalidSettingsError if it is not a valid name."""
    if not isinstance(name, str):
        raise TypeError(f"a log's name must be a str, not {type(name).__name__}")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidSettingsError(
            f"a log's name has parts between slashes that are not empty, '.' or '..': {name!r}"
        )
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise InvalidSettingsError(f"a log's name must not contain control characters: {name!r}")
    directory = "".join(chr(b) if b in _PLAIN else f"%{b:02X}" for b in name.encode())
    if directory.startswith("."):
        directory = "%2E" + directory[1:]
    if len(directory) > MAX_DIRECTORY_BYTES:
        raise InvalidSettingsError(
            f"a log's name may take {MAX_DIRECTORY_BYTES} bytes as a directory, "
            f"not {len(directory)}: {name!r}"
        )
    return directory


def name_of(directory: str) -> str | None:
    """Return the name of the log in a directory of the store, or None if it is not a log's."""
    try:
        name = unquote_to_bytes(directory).decode()
        return name if directory_of(name) == directory else None
    except ValueError:  # neither UTF-8 nor a name
        return None
