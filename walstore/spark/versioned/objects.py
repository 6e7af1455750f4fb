"""Objects of a scan: reads footers and row groups in a task or in a plan. Blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from uploader import CollectionScan, ScanFile
from uploader.runtime.task_groups import gather_all
from uploader.stores import ObjectStore
from uploader.stores.port import ObjectNotFoundError
from uploader.versioned import updates
from uploader.versioned.batch_file import read_end
from uploader.versioned.batch_groups import GroupedFile, RowGroup
from uploader.versioned.schema import CollectionSchema
from walstore import CorruptionError, LeaseExpiredError
from walstore.spark.blocking import StoreReading

AT_ONCE: Final = 16
"""Requests at a time."""
_WHOLE_BYTES: Final = 1 << 20
"""A file up to this length is fetched at once."""
_TAIL_BYTES: Final = 64 << 10

_T = TypeVar("_T")


class ScanObjects(StoreReading):
    """Reads the objects of a scan.

    LeaseExpiredError for an object that was removed, CorruptionError for one that is not the planned one, and
    the store's errors.
    """

    def __init__(self, url: str, scan: CollectionScan, *, store: ObjectStore | None = None) -> None:
        """Read from the store at ``url``, or from ``store``, which is closed with this."""
        super().__init__(url, store=store, threads=2)
        self._scan = scan
        self._files: dict[str, GroupedFile] = {}

    def open(self, files: Iterable[ScanFile]) -> list[GroupedFile]:
        """Return files by their footers, which are kept."""
        return self._all(partial(self._open, file) for file in files)

    def read(
        self, wanted: Iterable[tuple[ScanFile, RowGroup]], schema: CollectionSchema
    ) -> list[pa.Table]:
        """Return the updates of row groups of open files that count, as far as their times do."""
        return self._all(partial(self._read, file, group, schema) for file, group in wanted)

    def forget(self, file: ScanFile) -> None:
        """Keep a file no longer."""
        self._files.pop(file.key, None)

    def _all(self, calls: Iterable[Callable[[], Awaitable[_T]]]) -> list[_T]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(call: Callable[[], Awaitable[_T]]) -> _T:
            async with turns:
                return await call()

        async def every() -> list[_T]:
            return list(await gather_all(one(call) for call in calls))

        return self.run(every())

    async def _open(self, file: ScanFile) -> GroupedFile:
        known = self._files.get(file.key)
        if known is not None:
            return known
        size_bytes = file.size_bytes
        if file.digest is None:  # one of several objects, of which only the average is known
            found = await self.store.head(file.key)
            if found is None:
                raise _removed(file.key)
            size_bytes = found.size_bytes
        end = await read_end(
            partial(self._range, file.key),
            size_bytes,
            path=file.key,
            tail_bytes=_tail(size_bytes),
        )
        opened = await self.worker.run(_parse, end, size_bytes, self._scan.schema, file.key)
        self._check(file, opened)
        self._files[file.key] = opened
        return opened

    async def _read(self, file: ScanFile, group: RowGroup, schema: CollectionSchema) -> pa.Table:
        opened = await self._open(file)
        known = opened.size_bytes - len(opened.end)
        if group.start >= known:
            data = opened.end[group.start - known : group.limit - known]
        else:
            data = await self._range(file.key, group.start, group.limit)
        return await self.worker.run(_decode, opened, group, data, schema, file)

    async def _range(self, key: str, start: int, limit: int) -> bytes:
        try:
            return await self.store.get_range(key, start, max(limit, start + 1))
        except ObjectNotFoundError:
            raise _removed(key) from None

    def _check(self, file: ScanFile, opened: GroupedFile) -> None:
        scan, footer = self._scan, opened.footer
        found = (footer.collection, footer.digest)
        expected = (scan.collection, footer.digest if file.digest is None else file.digest)
        if found != expected or footer.schema_id > scan.schema.id:
            raise CorruptionError(
                "a batch is not the one that was planned",
                path=file.key,
                expected=expected,
                found=found,
            )


def _tail(size_bytes: int) -> int:
    return size_bytes if size_bytes <= _WHOLE_BYTES else _TAIL_BYTES


def _removed(key: str) -> LeaseExpiredError:
    return LeaseExpiredError(
        f"{key} was removed since the read was planned, which was longer ago than leaseSeconds; nothing is "
        "lost: read again, with more leaseSeconds or more tasks",
        reader="shared",
    )


def _parse(end: bytes, size_bytes: int, schema: CollectionSchema, path: str) -> GroupedFile:
    return GroupedFile.read(end, size_bytes=size_bytes, schema=schema, path=path)


def _decode(
    opened: GroupedFile, group: RowGroup, data: bytes, schema: CollectionSchema, file: ScanFile
) -> pa.Table:
    return updates.between(opened.decode(group, data, schema), file.start, file.limit)
