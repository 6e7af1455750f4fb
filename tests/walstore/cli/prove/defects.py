"""File systems and a store that do not do what they report: what ``walstore prove`` has to notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from uploader.stores.wrapper import Request, StoreWrapper
from walstore.core.ports import File, FileSystem
from walstore.testing.calls import Call, WrappedFile, WrappedFileSystem

_T = TypeVar("_T")


class LyingFileSystem(WrappedFileSystem):
    """Reports that files are synced and does not sync them; or loses some writes of batches."""

    def __init__(self, inner: FileSystem, *, lost_write: int | None = None) -> None:
        super().__init__(inner)
        self.lost_write = lost_write
        self.writes = 0

    def run(
        self, call: Call, act: Callable[[], _T], discard: Callable[[_T], None] | None = None
    ) -> _T:
        return act()

    def open(self, path: Path, mode: str) -> File:
        return _LyingFile(self, self._inner.open(path, mode), path)

    def replace(self, source: Path, target: Path) -> None:
        self._inner.replace(source, target)

    def remove(self, path: Path) -> None:
        self._inner.remove(path)

    def remove_tree(self, path: Path) -> None:
        self._inner.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        self._inner.sync_directory(path)

    def cell(self, path: Path, size: int):
        return self._inner.cell(path, size)


class _LyingFile(WrappedFile):
    def __init__(self, system: LyingFileSystem, inner: File, path: Path) -> None:
        super().__init__(system, inner, path)
        self._system = system

    def pwrite(self, pieces, position: int) -> None:
        nth = self._system.lost_write
        if nth is not None and position and self._path.suffix in {".wal", ".tmp"}:
            self._system.writes += 1
            if self._system.writes % nth == 0:
                return
        self._inner.pwrite(pieces, position)

    def datasync(self) -> None:
        if self._system.lost_write is not None:
            self._inner.datasync()

    def allocate(self, size: int) -> None:
        self._inner.allocate(size)

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def close(self) -> None:
        self._inner.close()


class LosingStore(StoreWrapper):
    """Reports success for a put of a fragment that it does not make, from the ``nth`` one on."""

    def __init__(self, inner, nth: int) -> None:
        super().__init__(inner)
        self.nth = nth
        self.puts = 0

    async def _call(self, request: Request[_T]) -> _T:
        if request.kind == "put_if_absent" and request.key.endswith(".parquet"):
            self.puts += 1
            if self.puts == self.nth:
                return "an ETag that no object has"  # type: ignore[return-value]
        return await request()
