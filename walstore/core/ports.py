"""What walstore needs from its environment: files and time.

Only Protocols live here. The real ones are ``posix.py`` and ``clock.py``; fakes that inject faults are
in ``walstore.testing``. Methods of :class:`FileSystem` and :class:`File` block and are only ever called
on executor threads, never on the event loop. They raise OSError; the callers translate it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file, addressed by position."""

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces back to back; returns only when the system has accepted every byte."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end of the file."""

    def datasync(self) -> None:
        """Make the content (and the size, if it changed) durable: fdatasync."""

    def allocate(self, size: int) -> None:
        """Reserve blocks up to ``size`` bytes and make the file that long: posix_fallocate."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to ``size`` bytes."""

    def size(self) -> int:
        """Return the length in bytes."""

    def is_alone(self, *, names: int = 1) -> bool:
        """Return whether the file has so many names and nobody else has it open; False if that is not
        known."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class Cell(Protocol):
    """A few bytes in a file that other processes read."""

    def store(self, data: bytes) -> None:
        """Replace the content. Not durable, but visible to other processes at once."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class CellView(Protocol):
    """A :class:`Cell` of another process. Changes nothing."""

    def load(self) -> bytes:
        """Return the current content: possibly half updated, and shorter if the file was cut. Never
        waits for the disk, so it may be called on the event loop: one system call that reads memory.
        Empty once it is closed. Raises OSError."""

    def is_current(self) -> bool:
        """Return whether the file still has its name: not if it was removed or replaced. Blocks."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class Lock(Protocol):
    """An exclusive lock that the system drops when the process dies."""

    def describe(self, owner: str) -> None:
        """Replace the note that others find when the lock is taken; OSError."""

    def release(self) -> None:
        """Give the lock back; twice is allowed."""


class FileSystem(Protocol):
    """The calls a log makes on directories and files."""

    def anchor(self, directory: Path) -> Self:
        """Return this file system bound to an existing directory; :meth:`close` it later.

        Its paths begin with ``directory`` and refer to the directory found there at this call, even if
        that is moved and another takes its place. Anchored again, to a directory below, it opens no
        further descriptor, and calls raise OSError (ESTALE) once the path leads elsewhere.
        """

    def close(self) -> None:
        """Release the directory it is anchored to, if any; twice is allowed. Later calls raise OSError."""

    def open(self, path: Path, mode: str) -> File:
        """Open ``"r"`` for reading, ``"r+"`` to write an existing file, ``"x"`` to create a new one.

        Files that may be written, including locks and cells, are never opened through a symbolic link:
        OSError (ELOOP).
        """

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def list_directories(self, directory: Path) -> Sequence[str]:
        """Return the names of the directories in a directory, in no particular order."""

    def make_directory(self, path: Path) -> bool:
        """Create a directory and its parents durably; return whether it is new."""

    def remove_tree(self, path: Path) -> None:
        """Delete a directory and its contents, one entry at a time; no error if it does not exist."""

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target, atomically. Not durable before :meth:`sync_directory`."""

    def remove(self, path: Path) -> None:
        """Delete a file."""

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in a directory durable: fsync of the directory."""

    def lock(self, path: Path, owner: str) -> Lock:
        """Take an exclusive lock and write ``owner`` to the file; WalLockedError if it is held."""

    def lock_shared(self, path: Path) -> Lock | None:
        """Take a lock that excludes only exclusive locks; None if there is no such file.

        WalLockedError if the exclusive lock is held."""

    def cell(self, path: Path, size: int) -> Cell:
        """Open a small file of ``size`` bytes for :class:`Cell`, creating it if needed."""

    def view_cell(self, path: Path, size: int) -> CellView:
        """Open a cell for reading; FileNotFoundError if there is none of that size yet."""

    def free_bytes(self, path: Path) -> int:
        """Return how many bytes an unprivileged user can still write on that file system."""


class Clock(Protocol):
    """Time, injected so that tests and simulations control it."""

    def now_us(self) -> int:
        """Return wall-clock microseconds since 1970 UTC."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
