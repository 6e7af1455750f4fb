"""The file system of one simulated process: every call takes time, may fail, and is a moment to die at."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from tests.sim.disk import Disk, Inode, normal
from tests.sim.handles import SimCell, SimCellView, SimFile, SimLockFile
from tests.sim.loop import Killed, Process
from tests.sim.threads import current
from tests.sim.weather import CHANGING, Fault, Weather
from walstore.errors import WalLockedError
from walstore.testing.calls import failure

_T = TypeVar("_T")
_DAWDLES: Final = frozenset({"datasync", "sync_directory", "replace", "pwrite", "truncate"})
"""Calls that may have happened a while before they return."""
_SEEN: Final = 0.3
"""Share of the calls that change nothing at which others may come between. Each costs 30 µs."""


class Watcher(Protocol):
    """Who sees all calls."""

    def on_call(self, process: Process, text: str) -> None: ...

    def on_change(self, process: Process, path: Path, kind: str) -> None: ...


class SimFileSystem:
    """See :class:`walstore.core.ports.FileSystem`."""

    def __init__(
        self, disk: Disk, weather: Weather, process: Process, watcher: Watcher, free_bytes: int
    ) -> None:
        self.disk = disk
        self.weather = weather
        self.process = process
        self.watcher = watcher
        self.free = free_bytes
        self._numbers = count(3)
        self._anchor: Path | None = None
        self._descriptor: int | None = None
        self._is_closed = False
        process.on_kill.append(lambda: disk.release_locks(process))

    def anchor(self, directory: Path) -> Self:
        directory = normal(directory)

        def act() -> Self:
            self.disk.check_directory(directory)
            twin = copy.copy(self)
            twin._anchor = directory
            twin._descriptor = self.descriptor(directory) if self._anchor is None else None
            return twin

        return self.call("anchor", directory, act, discard=lambda made: made.close())

    def close(self) -> None:
        if self._anchor is not None:
            self._is_closed = True
            self.process.descriptors.pop(self._descriptor, None)

    def open(self, path: Path, mode: str) -> SimFile:
        path = normal(path)

        def act() -> SimFile:
            if mode == "x":
                if path in self.disk.names:
                    raise failure(errno.EEXIST, path)
                inode = self.disk.create(path)
            else:
                inode = self.disk.find(path)
            return SimFile(self, inode, path, self.descriptor(path))

        return self.call(
            "open", path, act, f"({mode})", changes=mode != "r", discard=lambda file: file.close()
        )

    def list(self, directory: Path) -> list[str]:
        directory = normal(directory)

        def act() -> list[str]:
            self.disk.check_directory(directory)
            found = [path.name for path in self.disk.names if path.parent == directory]
            found += self._directories(directory)
            self.disk.random.shuffle(found)
            return found

        return self.call("list", directory, act)

    def list_directories(self, directory: Path) -> Sequence[str]:
        directory = normal(directory)

        def act() -> list[str]:
            self.disk.check_directory(directory)
            return self._directories(directory)

        return self.call("list_directories", directory, act)

    def _directories(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.disk.directories if path.parent == directory)

    def make_directory(self, path: Path) -> bool:
        path = normal(path)

        def act() -> bool:
            is_new = path not in self.disk.directories
            self.disk.directories.update((path, *path.parents))
            return is_new

        return self.call("make_directory", path, act)

    def remove_tree(self, path: Path) -> None:
        path = normal(path)
        for name in [name for name in self.disk.names if path in name.parents]:
            self.remove(name)
        self.disk.directories.difference_update(
            [found for found in self.disk.directories if found == path or path in found.parents]
        )

    def read(self, path: Path) -> bytes:
        path = normal(path)
        return self.call("read", path, lambda: bytes(self.disk.find(path).data))

    def replace(self, source: Path, target: Path) -> None:
        source, target = normal(source), normal(target)

        def act() -> None:
            if source in self.disk.directories:
                self._move_tree(source, target)
                return
            self.disk.change(source, target, self.disk.find(source))

        self.call("replace", target, act, f"from {source.name}", changes=True)

    def _move_tree(self, source: Path, target: Path) -> None:
        """Rename a directory; a tree is moved as a whole, durably."""
        for path in [path for path in self.disk.names if source in path.parents]:
            new = target / path.relative_to(source)
            self.disk.change(path, new, self.disk.names[path])
            self.disk.sync_names(self.disk.pending_names(new.parent))
        for path in list(self.disk.directories):
            if path == source or source in path.parents:
                self.disk.directories.remove(path)
                self.disk.directories.add(target / path.relative_to(source))

    def remove(self, path: Path) -> None:
        path = normal(path)
        self.call(
            "remove",
            path,
            lambda: self.disk.change(path, None, self.disk.find(path)),
            changes=True,
        )

    def sync_directory(self, path: Path) -> None:
        path = normal(path)
        covered = self.disk.pending_names(path)
        self.call("sync_directory", path, lambda: self.disk.sync_names(covered))

    def lock(self, path: Path, owner: str) -> SimLockFile:
        path = normal(path)

        def act() -> SimLockFile:
            inode = self.disk.names.get(path) or self.disk.create(path)
            return self._take(inode, path, exclusive=True)

        return self.call("lock", path, act, discard=lambda lock: lock.release())

    def lock_shared(self, path: Path) -> SimLockFile | None:
        path = normal(path)

        def act() -> SimLockFile | None:
            inode = self.disk.names.get(path)
            return None if inode is None else self._take(inode, path, exclusive=False)

        return self.call(
            "lock_shared", path, act, discard=lambda lock: lock.release() if lock else None
        )

    def _take(self, inode: Inode, path: Path, *, exclusive: bool) -> SimLockFile:
        if any(exclusive or other for other in inode.holders.values()):
            raise WalLockedError(f"locked: {path.parent}", path=str(path.parent), owner="other")
        lock = SimLockFile(self, inode, path, self.descriptor(path))
        inode.holders[lock] = exclusive
        return lock

    def cell(self, path: Path, size: int) -> SimCell:
        path = normal(path)

        def act() -> SimCell:
            inode = self.disk.names.get(path) or self.disk.create(path, most_pending=64)
            if len(inode.data) < size:
                inode.write(len(inode.data), bytes(size - len(inode.data)))
            return SimCell(self, inode, path, size)

        return self.call("cell", path, act, changes=True, discard=lambda cell: cell.close())

    def view_cell(self, path: Path, size: int) -> SimCellView:
        path = normal(path)

        def act() -> SimCellView:
            inode = self.disk.find(path)
            if len(inode.data) < size:
                raise failure(errno.ENOENT, path)
            return SimCellView(self, inode, path)

        return self.call("view_cell", path, act, discard=lambda view: view.close())

    def free_bytes(self, path: Path) -> int:
        return self.call("free_bytes", normal(path), lambda: self.free)

    # -- inside ------------------------------------------------------------------------------

    def descriptor(self, path: Path) -> int:
        number = next(self._numbers)
        self.process.descriptors[number] = path.name
        return number

    def call(
        self,
        kind: str,
        path: Path,
        act: Callable[[], _T],
        detail: str = "",
        *,
        changes: bool = False,
        part: Callable[[float], None] | None = None,
        discard: Callable[[_T], object] | None = None,
    ) -> _T:
        """Take time, then do a call, or fail it; ``part`` does a share of it."""
        thread = current()
        if thread is not None and not self.process.is_alive:
            raise Killed
        if thread is not None:
            if kind in CHANGING or self.disk.random.random() < _SEEN:
                thread.pause(self.weather.seconds(kind))
        elif not self.process.is_alive:
            raise Killed
        if self._is_closed:
            raise failure(errno.EBADF, path)
        fault = self.weather.fault(kind, path.name)
        text = f"{kind} {path.name} {detail}"
        if fault is not None:
            self._fail(fault, path, text, act, part, discard, changes=changes, kind=kind)
        try:
            result = act()
        except (OSError, WalLockedError) as error:
            self.watcher.on_call(self.process, f"{text} raises {type(error).__name__}")
            raise
        self.watcher.on_call(self.process, text)
        if changes:
            self.watcher.on_change(self.process, path, kind)
        if thread is not None and kind in _DAWDLES and self.disk.random.random() < 0.5:
            thread.pause(self.weather.seconds(kind) / 2)
        return result

    def _fail(
        self,
        fault: Fault,
        path: Path,
        text: str,
        act: Callable[[], Any],
        part: Callable[[float], None] | None,
        discard: Callable[[Any], object] | None,
        *,
        changes: bool,
        kind: str,
    ) -> None:
        name = errno.errorcode[fault.error]
        self.watcher.on_call(self.process, f"{text} FAILS {name}, {fault.share:.0%} done")
        if fault.share and (changes or kind in _DAWDLES):
            if changes:
                self.watcher.on_change(self.process, path, kind)
            if fault.share < 1 and part is not None:
                part(fault.share)
            elif fault.share == 1:
                result = act()
                if discard is not None:
                    discard(result)
        raise failure(fault.error, path)
