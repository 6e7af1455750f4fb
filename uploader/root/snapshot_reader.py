"""SnapshotReader: fetches and checks snapshots, and keeps those read last.

Owns a cache bounded by bytes. ``tree.py`` knows how snapshots are linked; this module does not. Never writes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from uploader.format.entries import Snapshot, SnapshotPointer
from uploader.root.stored_document import read_stored
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from walstore.errors import CorruptionError
from walstore.runtime.threads import Worker

MEMORY_FACTOR: Final = 4
"""Bytes that a snapshot takes in memory for each byte of its object, rounded up."""


class SnapshotMissingError(Exception):
    """A snapshot is not there; whether that is damage depends on the newest manifest."""

    def __init__(self, path: str) -> None:
        """``path`` is its key."""
        super().__init__(path)
        self.path = path

    def as_corruption(self) -> CorruptionError:
        """Return the error for a snapshot that should be there."""
        return CorruptionError("snapshot is missing", path=self.path)


@dataclass(frozen=True, slots=True)
class _Node:
    """A snapshot in memory."""

    snapshot: Snapshot
    pointer: SnapshotPointer
    memory_bytes: int


class SnapshotReader:
    """Reads snapshots of one log. Belongs to one event loop; any number of tasks may call it."""

    def __init__(self, store: ObjectStore, worker: Worker, *, cache_bytes: int) -> None:
        """``worker`` takes snapshots apart; ``cache_bytes`` bounds those that are kept."""
        self._store = store
        self._worker = worker
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[str, _Node] = OrderedDict()
        self.cached_bytes = 0
        """Memory that the kept snapshots take, as estimated."""
        # Tasks that want the same snapshot at the same time fetch it once.
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, pointer: SnapshotPointer) -> Snapshot:
        """Return the snapshot that is pointed at.

        SnapshotMissingError if it is not there, CorruptionError if it is damaged or not what is said of
        it, else the store's errors.
        """
        path = pointer.path_to_snapshot
        lock = self._fetching.setdefault(path, asyncio.Lock())
        async with lock:
            node = self._cached.get(path)
            if node is None:
                try:
                    parse = partial(_parse, path=path)
                    found = await read_stored(self._store, path, parse, worker=self._worker)
                except ObjectNotFoundError as error:
                    raise SnapshotMissingError(path) from error
                node = found.value
                self._keep(path, node)
            else:
                self._cached.move_to_end(path)
        _check_pointer(node.pointer, pointer)
        return node.snapshot

    async def get_all(self, pointers: Sequence[SnapshotPointer]) -> list[Snapshot]:
        """Return several at once, read in parallel; raises for the first that cannot be read."""
        if len(pointers) == 1:
            return [await self.get(pointers[0])]
        results = await asyncio.gather(*map(self.get, pointers), return_exceptions=True)
        snapshots: list[Snapshot] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            snapshots.append(result)
        return snapshots

    def _keep(self, path: str, node: _Node) -> None:
        if node.memory_bytes > self._cache_bytes:
            return
        self._cached[path] = node
        self.cached_bytes += node.memory_bytes
        while self.cached_bytes > self._cache_bytes:
            _, oldest = self._cached.popitem(last=False)
            self.cached_bytes -= oldest.memory_bytes


def _parse(data: bytes, path: str) -> _Node:
    snapshot = Snapshot.parse(data, path=path)
    snapshot.scrub()
    return _Node(snapshot, snapshot.pointer(), MEMORY_FACTOR * len(data))


def _check_pointer(own: SnapshotPointer, pointer: SnapshotPointer) -> None:
    """Raise CorruptionError unless the snapshot holds what the level above says.

    It may be less deep than that: wal3 stores one object for snapshots of the same sum, such as one that
    holds only another. It is never deeper, so following snapshots ends.
    """
    stated = pointer.path_to_snapshot, pointer.setsum, pointer.start, pointer.limit
    found = own.path_to_snapshot, own.setsum, own.start, own.limit
    if stated != found or own.depth > pointer.depth:
        raise CorruptionError(
            "a snapshot is not what is said of it",
            path=pointer.path_to_snapshot,
            expected=pointer,
            found=own,
        )
