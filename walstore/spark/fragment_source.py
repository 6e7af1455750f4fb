"""Fetches fragments for a task: whole, or the columns that are wanted, or not at all. Blocking I/O.

Runs on an executor, one fragment at a time. Fragments whose footers deny the streams that are wanted are not
read; footers are asked for some at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Final, Self

from uploader import open_store
from uploader.read.fragment_reader import FragmentReader
from uploader.stores.port import ObjectStore
from walstore.batches.batch import Batch
from walstore.errors import WalError
from walstore.runtime.threads import Worker
from walstore.spark.partition import FragmentPart
from walstore.spark.projection import Wanted
from walstore.spark.sync_runner import Loop

FOOTERS_AT_ONCE: Final = 16
_MOST_COLUMNS: Final = frozenset({"timestamp_us", "stream"})
"""Columns that are short beside values, keys and headers, so that reading them alone is worth requests."""


class FragmentSource:
    """The fragments of one log. A context manager; nothing happens before a read."""

    def __init__(self, url: str, wanted: Wanted, *, store: ObjectStore | None = None) -> None:
        """Read what is ``wanted`` from the store at ``url``, or from ``store``, which is closed then."""
        self._wanted = wanted
        self._store = store if store is not None else open_store(url)
        self._worker = Worker("spark")
        self._fragments = FragmentReader(store=self._store, worker=self._worker, cache_bytes=0)
        self._loop = Loop()

    def holding(
        self, parts: Sequence[FragmentPart]
    ) -> Generator[tuple[FragmentPart, bool], None, None]:
        """Yield each part and whether it may hold any record that is wanted."""
        if self._wanted.streams is None:
            yield from ((part, True) for part in parts)
            return
        for at in range(0, len(parts), FOOTERS_AT_ONCE):
            window = parts[at : at + FOOTERS_AT_ONCE]
            yield from zip(window, self._loop.run(self._ask(window)), strict=True)

    def read(self, part: FragmentPart) -> Batch:
        """Return the records of a part, with all columns that are wanted; others may be null.

        The fragment is checked against its entry (length, offsets). Raises OffsetTrimmedError for a
        fragment that was collected meanwhile, CorruptionError, StorageUnavailableError.
        """
        columns = self._wanted.columns
        if columns <= _MOST_COLUMNS:
            reading = self._fragments.read_columns(part.entry, columns)
        else:
            reading = self._fragments.read(part.entry)
        return self._loop.run(reading).slice(part.start, part.limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._worker.close()
            self._loop.run(self._store.aclose())
        finally:
            self._loop.close()

    async def _ask(self, parts: Sequence[FragmentPart]) -> list[bool]:
        return list(await asyncio.gather(*map(self._may_hold, parts)))

    async def _may_hold(self, part: FragmentPart) -> bool:
        try:
            streams = (await self._fragments.footers.get(part.entry)).streams
        except WalError:
            return True  # reading it tells what is wrong
        return any(streams.may_hold(name) for name in self._wanted.streams or ())
