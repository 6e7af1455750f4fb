"""FragmentCache: fragments on local disk, so that reading them again needs no request.

Owns one directory: its files, their sizes, and which are evicted when it is full. The cache is only a hint:
the directory may be deleted at any time, several processes may share it, and a disk that is full or broken
only makes it useless. Never contacts a store.

Each file is a fragment's bytes and a trailer of 8: their CRC-32C and a magic. Files are written under a
temporary name and renamed, without a sync: the CRC detects a torn file. A file's modification time is
when it was last used. The directory is counted when the cache is first used, and again when it seems full;
that is when the changes of other processes are noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c

from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.core.validation.arguments import as_int
from walstore.errors import InvalidSettingsError

logger = logging.getLogger("walstore.read")

SUFFIX: Final = ".fragment"
_PASSING: Final = ".tmp"
_TRAILER: Final = struct.Struct("<I4s")
_MAGIC: Final = b"WFC1"
_STALE_SECONDS: Final = 3600
"""Temporary files older than this were left by processes that died."""
_FULLNESS: Final = 0.9
"""Files are removed until this share of the budget is used."""
_MOST_WRITES: Final = 4
"""Limit of fragments that wait to be written: a slow disk must not hold more in memory."""


class FragmentCache:
    """A directory of fragments, bounded by bytes. For any number of logs and readers of one event loop.

    Pass one to :meth:`uploader.CloudLog.open`. Nothing in it raises because of the disk.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_bytes: int = 1 << 30,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        """Name the directory; it is made when the first fragment is kept.

        ``max_bytes`` bounds the files together, at least 0. Each process that shares the directory may
        exceed it by an eighth before it looks at what the others did.
        """
        max_bytes = as_int(max_bytes, "max_bytes")
        if max_bytes < 0:
            raise InvalidSettingsError(f"max_bytes must not be negative, not {max_bytes}")
        self.directory = Path(directory)
        self._files = _Directory(self.directory, max_bytes, clock or SystemClock(), fs)
        self._worker = Worker("fragment-cache")
        self._writes = 0
        self.hits = 0
        """Fragments that were found."""
        self.misses = 0
        """Fragments that were not."""

    def __repr__(self) -> str:
        return f"<FragmentCache {self.directory}>"

    async def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a key, or None. The CRC proves that they are what was put."""
        found = await self._worker.run(self._files.read, _name(key))
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    async def put(self, key: str, data: bytes) -> None:
        """Keep bytes under a key, unless four others are still being written."""
        if self._writes >= _MOST_WRITES:
            return
        self._writes += 1
        try:
            await self._worker.run(self._files.write, _name(key), data)
        finally:
            self._writes -= 1

    async def drop(self, key: str) -> None:
        """Remove what is kept under a key."""
        await self._worker.run(self._files.remove, _name(key))


class _Directory:
    """The blocking half. One thread at a time."""

    def __init__(
        self, directory: Path, max_bytes: int, clock: Clock, fs: FileSystem | None
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._clock = clock
        self._fs = fs or PosixFileSystem()
        # None until counted. Then: bytes that we added, and all bytes as far as we know.
        self._used_bytes: int | None = None
        self._added_bytes = 0
        self._has_failed = False

    def read(self, name: str) -> bytes | None:
        """Return a file's contents if it is whole; remove it if it is not."""
        path = self._directory / name
        try:
            whole = path.read_bytes()
        except OSError:
            return None
        data = whole[: -_TRAILER.size]
        if whole[-_TRAILER.size :] != _TRAILER.pack(crc32c(data), _MAGIC):
            self.remove(name)
            return None
        now = self._clock.now_us() * 1000
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now, now))
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file and make room for it; logs the first failure of the disk."""
        size = len(data) + _TRAILER.size
        if size > self._max_bytes:
            return
        try:
            try:
                self._make_room(size)
                self._write(self._directory / name, data)
            except FileNotFoundError:  # the directory was deleted
                self._used_bytes = None
                self._make_room(size)
                self._write(self._directory / name, data)
        except OSError as error:
            if not self._has_failed:
                logger.warning("fragments are not cached in %s: %s", self._directory, error)
            self._has_failed = True
            self._used_bytes = None
            return
        self._has_failed = False
        assert self._used_bytes is not None
        self._used_bytes += size
        self._added_bytes += size

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def _write(self, path: Path, data: bytes) -> None:
        passing = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{_PASSING}")
        try:
            with passing.open("xb", buffering=0) as file:
                for piece in (data, _TRAILER.pack(crc32c(data), _MAGIC)):
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
            now = self._clock.now_us() * 1000
            os.utime(passing, ns=(now, now))
            self._fs.replace(passing, path)
        except OSError:
            with contextlib.suppress(OSError):
                passing.unlink()
            raise

    def _make_room(self, size: int) -> None:
        """Remove the least recently used files if the directory would become too full."""
        if (
            self._used_bytes is None
            or self._used_bytes + size > self._max_bytes
            or self._added_bytes > self._max_bytes // 8
        ):
            self._directory.mkdir(parents=True, exist_ok=True)
            files = sorted(self._list())
            used = sum(length for _, length, _ in files)
            self._added_bytes = 0
            if used + size > self._max_bytes:
                goal = min(int(self._max_bytes * _FULLNESS), self._max_bytes - size)
                for _, length, name in files:
                    if used <= goal:
                        break
                    self.remove(name)
                    used -= length
            self._used_bytes = used

    def _list(self) -> Iterator[tuple[int, int, str]]:
        """Yield when each file was last used, its size, and its name; remove what dead processes left."""
        stale = self._clock.now_us() * 1000 - _STALE_SECONDS * 10**9
        with os.scandir(self._directory) as found:
            for file in found:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    status = file.stat()
                    if file.name.endswith(SUFFIX):
                        yield status.st_mtime_ns, status.st_size, file.name
                    elif file.name.endswith(_PASSING) and status.st_mtime_ns < stale:
                        self.remove(file.name)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40] + SUFFIX
