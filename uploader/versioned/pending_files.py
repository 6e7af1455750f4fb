"""PendingFiles: reads the files of pending batches, many side by side, and keeps the short ones decoded.

A shard has many short batches. To read its end, whose length is 64 KiB, is to read all of such a file. So
its updates are decoded with its footer, and a reader that comes for them needs no second request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

from uploader.runtime.task_groups import map_all
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import TAIL_BYTES, BatchFooter
from uploader.versioned.pending_batch import PendingPart, check_schema
from uploader.versioned.schema import CollectionSchema
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError

PLUG: Final = b"the collection was deleted"
"""Put at the end of every shard of a deleted collection, where the next batch would be."""
KEPT_BYTES: Final = 32 << 20
"""Memory for decoded batches."""

_READ_AT_ONCE: Final = 16
"""Of each group that is read or decoded; a store limits its requests further."""
_DECODED_AT_ONCE: Final = 4
_GROUP_FILES: Final = 64
_GROUP_BYTES: Final = 1 << 20
_TABLE_BYTES: Final = 4096
"""About what a table takes in addition to its values."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A decoded batch."""

    footer: BatchFooter
    table: pa.Table
    held_bytes: int
    """How much memory it takes."""


class PendingFiles:
    """The files of one collection's pending batches. All methods pass on the store's errors."""

    def __init__(self, store: ObjectStore, worker: Worker, *, kept_bytes: int = KEPT_BYTES) -> None:
        """``kept_bytes``: the most memory for decoded batches."""
        self.held_bytes = 0
        """How much memory they take."""
        self._store = store
        self._worker = worker
        self._most_bytes = kept_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._decoding = asyncio.Semaphore(_DECODED_AT_ONCE)
        self._decoding_short = asyncio.Lock()

    async def footers(self, files: Sequence[tuple[str, int]]) -> list[BatchFooter | None]:
        """Return the footers of files by key and length.

        None for one that was removed, or marks a deleted collection. CorruptionError, FormatVersionError.
        """

        async def some(group: list[tuple[str, int]]) -> list[BatchFooter | None]:
            async with self._decoding:
                ends = await map_all(self._end, group, at_once=_READ_AT_ONCE)
                found = await self._decode(_decode_ends, group, ends)
            for (key, _), one in zip(group, found, strict=True):
                if isinstance(one, _Kept):
                    self._keep(key, one)
            return [one.footer if isinstance(one, _Kept) else one for one in found]

        return await _in_groups(files, lambda file: min(file[1], TAIL_BYTES), some)

    async def tables(
        self, parts: Iterable[PendingPart], schema: CollectionSchema
    ) -> list[pa.Table]:
        """Return the updates of all parts in ``schema``.

        ObjectNotFoundError if one of them was removed, StaleSchemaError if ``schema`` is too old,
        CorruptionError if it is damaged.
        """

        async def some(group: list[PendingPart]) -> list[pa.Table]:
            async with self._decoding:
                sources = await map_all(self._source, group, at_once=_READ_AT_ONCE)
                return await self._decode(_decode_parts, group, sources, schema)

        return await _in_groups(parts, lambda part: part.batch.size_bytes, some)

    async def _decode(self, call: Callable[..., _R], group: list[_T], *given: object) -> _R:
        """Run ``call`` for a group on a thread.

        Of short files one group at a time: two threads would wait for the interpreter's lock more than they
        work.
        """
        if len(group) == 1:
            return await self._worker.run(call, group, *given)
        async with self._decoding_short:
            return await self._worker.run(call, group, *given)

    def forget(self, is_there: Callable[[str], bool]) -> None:
        """Drop the updates of files that are not there any more."""
        for key in [key for key in self._kept if not is_there(key)]:
            self._drop(key)

    async def _end(self, file: tuple[str, int]) -> bytes | None:
        """Return the end of a file with its footer; None if it was removed, or marks a deleted collection."""
        key, size_bytes = file

        async def read(start: int, limit: int) -> bytes:
            return await self._store.get_range(key, start, max(limit, 1))

        with suppress(ObjectNotFoundError):
            if size_bytes == len(PLUG) and await read(0, size_bytes) == PLUG:
                return None
            return await batch_file.read_end(read, size_bytes, path=key)
        return None

    async def _source(self, part: PendingPart) -> bytes | _Kept:
        """Return the updates of a batch, or its file; ObjectNotFoundError if it was removed."""
        batch = part.batch
        kept = self._kept.get(batch.key)
        if kept is not None and kept.footer == batch.footer:
            self._kept.move_to_end(batch.key)
            return kept
        # One byte more, to see whether something longer came late in its place.
        data = await self._store.get_range(batch.key, 0, batch.size_bytes + 1)
        if len(data) != batch.size_bytes:
            raise _removed(batch.key)
        return data

    def _keep(self, key: str, decoded: _Kept) -> None:
        self._drop(key)
        self._kept[key] = decoded
        self.held_bytes += decoded.held_bytes
        while self.held_bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        decoded = self._kept.pop(key, None)
        if decoded is not None:
            self.held_bytes -= decoded.held_bytes


async def _in_groups(
    items: Iterable[_T],
    size_of: Callable[[_T], int],
    read: Callable[[list[_T]], Coroutine[Any, Any, list[_R]]],
) -> list[_R]:
    """Return what ``read`` returns for all items, in their order; it gets some of them at a time."""
    found = await map_all(read, _groups(items, size_of), at_once=_DECODED_AT_ONCE)
    return [one for some in found for one in some]


def _groups(items: Iterable[_T], size_of: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield the items in groups that are read and decoded together; a long file is alone."""
    group: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (len(group) == _GROUP_FILES or total + size > _GROUP_BYTES):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _decode_ends(
    files: list[tuple[str, int]], ends: list[bytes | None]
) -> list[_Kept | BatchFooter | None]:
    """Return the footers of files by their ends, and the updates of those that are there in whole."""
    whole = [
        (end, key)
        for (key, size), end in zip(files, ends, strict=True)
        if end is not None and len(end) == size
    ]
    decoded = dict(zip((key for _, key in whole), batch_file.decode_all(whole), strict=True))
    found: list[_Kept | BatchFooter | None] = []
    for (key, size), end in zip(files, ends, strict=True):
        one = decoded.get(key)
        if isinstance(one, tuple):
            found.append(_Kept(*one, one[1].get_total_buffer_size() + _TABLE_BYTES))
        elif end is not None:  # damage to its updates is reported to a reader of them
            found.append(batch_file.read_footer(end, size_bytes=size, path=key))
        else:
            found.append(None)
    return found


def _decode_parts(
    parts: list[PendingPart], sources: list[bytes | _Kept], schema: CollectionSchema
) -> list[pa.Table]:
    read = [
        (source, part.batch.key)
        for part, source in zip(parts, sources, strict=True)
        if isinstance(source, bytes)
    ]
    decoded = iter(batch_file.decode_all(read))
    stored = schema.stored
    found = []
    for part, source in zip(parts, sources, strict=True):
        key = part.batch.key
        one = (source.footer, source.table) if isinstance(source, _Kept) else next(decoded)
        if isinstance(one, CorruptionError):
            raise one
        footer, table = one
        if footer != part.batch.footer:  # in its place, something that came late
            raise _removed(key)
        check_schema(footer, schema, key)
        if not table.schema.equals(stored):
            table = updates.upgrade(table, schema, path=key)
        if (part.start, part.limit) != (footer.lower, footer.upper):
            table = updates.between(table, part.start, part.limit)
        found.append(table)
    return found


def _removed(key: str) -> ObjectNotFoundError:
    return ObjectNotFoundError("a pending batch was removed", key=key)
