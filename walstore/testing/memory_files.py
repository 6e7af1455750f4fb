"""What a file system in memory consists of, and what is open in it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

from walstore.core.ports import Buffer


class MemoryContent:
    """A file, whatever its name, and whoever has it open."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.names = 1
        self.openers = 0
        self.holders: list[MemoryLock] = []
        self.is_exclusive = False

    def drop(self) -> None:
        """Take its name away."""
        self.names = 0


class MemoryDirectory:
    """A directory, whatever its name. The root has no parent."""

    def __init__(self, parent: MemoryDirectory | None) -> None:
        self.parent = parent
        self.entries: dict[str, MemoryDirectory | MemoryContent] = {}
        self.is_removed = False

    def at(self, name: str) -> MemoryDirectory | MemoryContent | None:
        """Return what has a name, which may be that of the parent."""
        return (self.parent or self) if name == ".." else self.entries.get(name)

    def drop(self) -> None:
        """Take its name away, and those of all in it."""
        self.is_removed = True
        for found in self.entries.values():
            found.drop()
        self.entries.clear()


class MemoryFile:
    """An open file of a MemoryFileSystem."""

    def __init__(self, mutex: threading.Lock, content: MemoryContent) -> None:
        self._mutex = mutex
        self._found: MemoryContent | None = content
        content.openers += 1

    @property
    def _content(self) -> MemoryContent:
        if self._found is None:
            raise ValueError("the file is closed")
        return self._found

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces."""
        written = b"".join(pieces)
        with self._mutex:
            data = self._content.data
            data.extend(bytes(max(0, position - len(data))))
            data[position : position + len(written)] = written

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes."""
        with self._mutex:
            return bytes(self._content.data[position : position + size])

    def datasync(self) -> None:
        """Do nothing."""
        _ = self._content

    def allocate(self, size: int) -> None:
        """Make the file that long."""
        with self._mutex:
            data = self._content.data
            data.extend(bytes(max(0, size - len(data))))

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        with self._mutex:
            data = self._content.data
            del data[size:]
            data.extend(bytes(size - len(data)))

    def size(self) -> int:
        """Return the length in bytes."""
        return len(self._content.data)

    def is_alone(self, *, names: int = 1) -> bool:
        """Return whether nobody else has the file."""
        with self._mutex:
            return (self._content.names, self._content.openers) == (names, 1)

    def close(self) -> None:
        """Let go of the file."""
        with self._mutex:
            if self._found is not None:
                self._found.openers -= 1
                self._found = None


class MemoryCell:
    """A cell of a MemoryFileSystem."""

    def __init__(self, mutex: threading.Lock, content: MemoryContent) -> None:
        self._mutex = mutex
        self._content: MemoryContent | None = content

    def store(self, data: bytes) -> None:
        """Replace the content."""
        with self._mutex:
            if self._content is None:
                return
            self._content.data[: len(data)] = data
            if not self._content.names:
                raise FileNotFoundError(errno.ENOENT, "the cell was removed or replaced")

    def close(self) -> None:
        """Let go of the file."""
        self._content = None


class MemoryCellView:
    """A cell of a MemoryFileSystem, for reading."""

    def __init__(self, content: MemoryContent, is_current: Callable[[], bool]) -> None:
        self._content: MemoryContent | None = content
        self._is_current = is_current

    def load(self) -> bytes:
        """Return the content; empty once it is closed."""
        return b"" if self._content is None else bytes(self._content.data)

    def is_current(self) -> bool:
        """Return whether the file still has its name."""
        return self._content is not None and self._is_current()

    def close(self) -> None:
        """Let go of the file."""
        self._content = None


class MemoryLock:
    """A lock of a MemoryFileSystem."""

    def __init__(self, mutex: threading.Lock, content: MemoryContent) -> None:
        self._mutex = mutex
        self._content = content

    def describe(self, owner: str) -> None:
        """Replace the note."""
        with self._mutex:
            self._content.data[:] = owner.encode()

    def release(self) -> None:
        """Give the lock back."""
        with self._mutex:
            if self in self._content.holders:
                self._content.holders.remove(self)
