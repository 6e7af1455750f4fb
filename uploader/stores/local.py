"""Objects as files below a directory, with real conditions and real durability.

``local_directory.py`` contains what runs on the threads, which all stores share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

from uploader.runtime.shared_worker import Purpose, SharedWorker
from uploader.stores.local_directory import Directory
from uploader.stores.port import (
    ListedObject,
    ObjectInfo,
    StoredObject,
    check_key,
    check_keys,
    check_range,
)
from uploader.stores.probe import Proof
from uploader.stores.range_reads import RangeReads
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.tasks import shield
from walstore.errors import InvalidSettingsError, WalClosedError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PAGE = 1000


class LocalStore:
    """The port over a directory; ``local_directory.py`` describes how it keeps its promises.

    Several stores, also of several processes, may use one directory. Nothing is read or created before
    the first call, and the directory not before the first write. ETags are hashes of the content. A
    key cannot be both an object and, followed by a slash, the beginning of another key.
    """

    def __init__(self, root: Path, *, threads: int = 4, clock: Clock | None = None) -> None:
        """Name the directory, absolute.

        Args:
            root: The directory of the objects.
            threads: Calls that may block on the disk at the same time; at least 1.
            clock: Determines the age of temporary files and directories.
        """
        if not root.is_absolute():
            raise InvalidSettingsError(f"a local store needs an absolute path, not {str(root)!r}")
        self._root = root
        self._directory = Directory(root, clock or SystemClock())
        self._threads = threads
        self._workers: dict[Purpose, SharedWorker] = {}
        self._reads = RangeReads(
            lambda wanted: self._begun("store", lambda: self._directory.read_ranges(wanted))
        )
        self._under_way: set[asyncio.Future[Any]] = set()
        self._swapping = asyncio.Lock()
        self._is_closed = False

    @property
    def url(self) -> str:
        """``file:///absolute/path``."""
        return f"file://{quote(str(self._root))}"

    def __repr__(self) -> str:
        return f"<LocalStore {self.url}>"

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object, of at most ``max_bytes``."""
        return await self._run(self._directory.read, check_key(key), max_bytes)

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, cut at the end of the object."""
        check_range(start, limit)
        wanted = (check_key(key), start, limit)
        self._check_open()
        return await self._noted(self._reads.request(wanted))

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag, or None. Reads the whole file, for its hash."""
        return await self._run(self._directory.inspect, check_key(key))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects in the order of their keys, a thousand per hop to a thread."""
        found = self._directory.walk(prefix, after)
        while page := await self._run(self._directory.take, found, _PAGE):
            for listed in page:
                yield listed

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object; durable when it returns. A cancelled call continues in its thread."""
        return await self._run(self._directory.create, check_key(key), data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object; durable when it returns. A cancelled call continues in its thread."""
        # At most one thread waits for another process's flock, and no reading one.
        checked = check_key(key)
        async with self._swapping:
            return await self._begin("lock", lambda: self._directory.swap(checked, data, etag))

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; durable when it returns. Empty directories stay."""
        checked = check_keys(keys)
        async with self._swapping:
            await self._begin("lock", lambda: self._directory.remove(checked))

    async def proof(self) -> Proof:
        """Return what the file system has proven."""
        return await self._run(self._directory.proof)

    async def aclose(self) -> None:
        """Let calls under way finish; twice is allowed."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        while pending := [call for call in self._under_way if call.get_loop() is loop]:
            await asyncio.wait(pending)

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._begin("store", lambda: call(*args, **kwargs))

    async def _begin(self, purpose: Purpose, call: Callable[[], _T]) -> _T:
        self._check_open()
        return await shield(self._begun(purpose, call))

    def _begun(self, purpose: Purpose, call: Callable[[], _T]) -> asyncio.Future[_T]:
        if purpose not in self._workers:
            self._workers[purpose] = SharedWorker(purpose, self._threads)
        return self._noted(self._workers[purpose].begin(call))

    def _check_open(self) -> None:
        if self._is_closed:
            raise WalClosedError(f"the store is closed: {self.url}")

    def _noted(self, call: asyncio.Future[_T]) -> asyncio.Future[_T]:
        oldest = next(iter(self._under_way), None)
        if oldest is not None and oldest.get_loop().is_closed():  # its calls never end
            self._under_way = {one for one in self._under_way if not one.get_loop().is_closed()}
        self._under_way.add(call)
        call.add_done_callback(self._note_done)
        return call

    def _note_done(self, call: asyncio.Future[Any]) -> None:
        self._under_way.discard(call)
        if not call.cancelled():
            call.exception()  # nothing else retrieves the error of an abandoned call
