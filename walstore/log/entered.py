"""Entered: the directory of a log, locked and not recovered yet. Blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from walstore.core.files.directory import (
    LOCK_NAME,
    load_claims,
    peek_log_id,
    sync_entry,
    write_hint,
)
from walstore.core.files.locks import lock_log
from walstore.core.format import claims as claims_file
from walstore.core.format import segment
from walstore.core.format.claims import Claims
from walstore.core.ports import FileSystem, Lock


@dataclass(frozen=True, slots=True)
class Entered:
    """The directory of a log, locked. Its methods block."""

    directory: Path
    fs: FileSystem
    """Anchored to the directory."""
    lock: Lock
    names: Sequence[str]
    """Its files. Only the holder of the lock makes or removes segments and files of transactions."""

    def peek(self) -> tuple[bytes | None, Claims]:
        """Return the identity of the log, None if there is none yet, and its claims."""
        return peek_log_id(self.fs, self.directory), load_claims(self.fs, self.directory)

    def look_again(self) -> Entered:
        """Return the directory with the files that it has now."""
        return replace(self, names=self.fs.list(self.directory))

    def remember(self, claims: Claims) -> None:
        """Make claims durable; OSError."""
        write_hint(self.fs, self.directory / claims_file.FILE_NAME, claims.encode())

    def release(self) -> None:
        """Release the lock and the directory; twice is allowed."""
        try:
            self.lock.release()
        finally:
            self.fs.close()


def enter_log(
    directory: Path,
    *,
    fs: FileSystem,
    owner: str,
    take_lock: Callable[[FileSystem, Path, str], Lock] = lock_log,
) -> Entered:
    """Lock the directory of a log, creating it if needed. WalLockedError, OSError."""
    is_made = fs.make_directory(directory)
    with contextlib.ExitStack() as stack:
        # From here on the log is in this directory, even if that is moved.
        fs = fs.anchor(directory)
        stack.callback(fs.close)
        lock = take_lock(fs, directory, owner)
        stack.callback(lock.release)
        names = fs.list(directory)
        if not is_made and not any(name.endswith(segment.SUFFIX) for name in names):
            sync_entry(fs, directory)  # before any file in it implies that this was done
        stack.pop_all()
    return Entered(directory, fs, lock, names)


def has_been_entered(fs: FileSystem, directory: Path) -> bool:
    """Return whether somebody has locked a directory once: :func:`enter_log` leaves the lock's file there."""
    try:
        return LOCK_NAME in fs.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
