"""What a simulated process has open: files, cells, locks. Their calls go through their file system."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.disk import Inode
from tests.sim.loop import Killed
from tests.sim.threads import current
from walstore.core.ports import Buffer
from walstore.testing.calls import failure

if TYPE_CHECKING:
    from tests.sim.files import SimFileSystem

_T = TypeVar("_T")


class SimFile:
    """See :class:`walstore.core.ports.File`."""

    def __init__(self, system: SimFileSystem, inode: Inode, path: Path, descriptor: int) -> None:
        self._system = system
        self._inode = inode
        self._path = path
        self._descriptor: int | None = descriptor
        inode.openers.append(system.process)

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        self._call(
            "pwrite",
            lambda: self._inode.write(position, data),
            f"[{position}, {position + len(data)})",
            changes=True,
            part=lambda share: self._inode.write(position, data[: int(share * len(data))]),
        )

    def pread(self, size: int, position: int) -> bytes:
        return self._call(
            "pread",
            lambda: bytes(self._inode.data[position : position + size]),
            f"[{position}, +{size})",
        )

    def datasync(self) -> None:
        covered = self._inode.content.pending
        disk = self._system.disk
        self._call(
            "datasync",
            lambda: disk.sync(self._inode, covered),
            part=lambda share: disk.sync(self._inode, int(share * covered)),
        )

    def allocate(self, size: int) -> None:
        self._call("allocate", lambda: self._inode.reserve(size), f"{size}", changes=True)

    def truncate(self, size: int) -> None:
        self._call("truncate", lambda: self._inode.resize(size), f"{size}", changes=True)

    def size(self) -> int:
        return self._call("size", lambda: len(self._inode.data))

    def is_alone(self, *, names: int = 1) -> bool:
        def act() -> bool:
            if sum(found is self._inode for found in self._system.disk.names.values()) != names:
                return False
            return sum(process.is_alive for process in self._inode.openers) == 1

        return self._call("is_alone", act)

    def close(self) -> None:
        if self._descriptor is not None:
            self._inode.openers.remove(self._system.process)
            self._system.process.descriptors.pop(self._descriptor, None)
            self._descriptor = None

    def _call(self, kind: str, act: Callable[[], _T], detail: str = "", **options: Any) -> _T:
        if self._descriptor is None:
            raise ValueError("the file is closed")
        return self._system.call(kind, self._path, act, detail, **options)


class SimCell:
    """See :class:`walstore.core.ports.Cell`."""

    def __init__(self, system: SimFileSystem, inode: Inode, path: Path, size: int) -> None:
        self._system = system
        self._inode = inode
        self._path = path
        self._descriptor: int | None = system.descriptor(path)

    def store(self, data: bytes) -> None:
        if not self._system.process.is_alive:
            raise Killed
        if self._descriptor is None:
            return
        self._system.watcher.on_change(self._system.process, self._path, "store")
        thread, random = current(), self._system.disk.random
        try:
            if thread is not None and random.random() < 0.2:
                half = random.randrange(len(data))
                self._inode.data[:half] = data[:half]  # somebody may look at it now
                thread.pause(random.random() * 2e-3)
        finally:  # a kill does not end the system's call half done
            self._inode.write(0, data)
        if self._system.disk.names.get(self._path) is not self._inode:
            raise failure(errno.ENOENT, self._path)

    def close(self) -> None:
        if self._descriptor is not None:
            self._system.process.descriptors.pop(self._descriptor, None)
            self._descriptor = None


class SimCellView:
    """See :class:`walstore.core.ports.CellView`."""

    def __init__(self, system: SimFileSystem, inode: Inode, path: Path) -> None:
        self._system = system
        self._inode: Inode | None = inode
        self._path = path
        self._descriptor = system.descriptor(path)

    def load(self) -> bytes:
        return b"" if self._inode is None else bytes(self._inode.data)

    def is_current(self) -> bool:
        disk = self._system.disk
        return self._system.call(
            "stat", self._path, lambda: disk.names.get(self._path) is self._inode
        )

    def close(self) -> None:
        self._inode = None
        self._system.process.descriptors.pop(self._descriptor, None)


class SimLockFile:
    """See :class:`walstore.core.ports.Lock`."""

    def __init__(self, system: SimFileSystem, inode: Inode, path: Path, descriptor: int) -> None:
        self.process = system.process
        self._watcher = system.watcher
        self._inode = inode
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        if self._inode.holders.pop(self, None) is not None:
            self.process.descriptors.pop(self._descriptor, None)
            if self.process.is_alive:
                self._watcher.on_call(self.process, f"unlock {self._path.name}")
