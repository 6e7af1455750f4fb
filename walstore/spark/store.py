"""A log in an object store, for callers without an event loop: planning and reading. Blocking I/O.

Each object here has one event loop, which runs during calls. None may be used inside another event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit

from uploader import CloudLog, open_store
from uploader.read.fragment_reader import FragmentReader
from uploader.stores import ObjectStore
from walstore import Batch, LogNotFoundError, WalError
from walstore.format.segment import parse_file_name
from walstore.runtime.threads import Worker
from walstore.spark.options import Location
from walstore.spark.plan import FragmentPart, FragmentPartition, LogPartition, Span, clip, group
from walstore.spark.rows import Projection

_T = TypeVar("_T")


class SyncRunner:
    """Runs one coroutine after another, on one event loop. Must not be used inside another loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        # Not Runner.run(): it restores a signal handler, and signal() formats the replaced handler
        # with its task and the whole result of that task.
        self._run = self._runner.get_loop().run_until_complete

    def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return its result."""
        return self._run(call)

    def close(self) -> None:
        """Cancel remaining tasks and close the event loop; may be called twice."""
        self._runner.close()


class StoreLog:
    """A log as of its manifest at construction. Close it after planning."""

    def __init__(
        self,
        location: Location,
        *,
        partition: int = 0,
        log: CloudLog | None = None,
        runner: SyncRunner | None = None,
    ) -> None:
        """Read the manifest; see :meth:`uploader.CloudLog.open` for the errors.

        ``partition`` is its number if it is one of a partitioned log. ``log`` is the same log if it is
        already open on ``runner``; it is not closed with this object.
        """
        self._topic = location.topic
        self._partition = partition
        self._runner = runner or SyncRunner()
        self._run = self._runner.run
        self._owns_log = log is None
        try:
            self._log = log or self._run(open_cloud_log(location.text))
        except BaseException:
            self._runner.close()
            raise

    def close(self) -> None:
        """Release connections and threads."""
        if self._owns_log:
            try:
                self._run(self._log.aclose())
            finally:
                self._runner.close()

    @property
    def head(self) -> int:
        """First retained offset."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Offset after the last one in the manifest."""
        return self._log.tail

    def is_trimmed(self, offset: int) -> bool:
        """Return whether garbage collection has passed the offset."""
        return offset < self.head

    def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None."""
        found = self._run(self._log.offset_at(timestamp_us))
        return None if found >= self.limit else found

    def partitions(self, start: int, limit: int, most_bytes: int) -> list[LogPartition]:
        """Return partitions of whole fragments, cut only at the ends of the interval."""
        entries = self._run(self._log.fragments(start, limit))
        parts = [
            FragmentPart(*clip((entry.start, entry.limit), start, limit), entry)
            for entry in entries
        ]
        return [
            FragmentPartition(
                topic=self._topic,
                partition=self._partition,
                url=self._log.url,
                parts=tuple(members),
            )
            for members in group(parts, most_bytes)
        ]

    def spans(self, start: int, limit: int, most_bytes: int) -> list[Span]:
        """Return the spans of ``[start, limit)`` in fragments, as many as ``most_bytes`` needs.

        Later fragments are not looked up. Raises OffsetTrimmedError if ``start`` was collected.
        """
        return self._run(self._spans(start, limit, most_bytes))

    async def _spans(self, start: int, limit: int, most_bytes: int) -> list[Span]:
        found: list[Span] = []
        total_bytes = 0
        async with aclosing(self._log.scan(start)) as entries:
            async for entry in entries:
                if entry.start >= limit or total_bytes >= most_bytes:
                    break
                low, high = clip((entry.start, entry.limit), start, limit)
                # A part of a fragment counts in proportion to its records.
                size_bytes = entry.num_bytes * (high - low) // (entry.limit - entry.start)
                found.append(Span(low, high, max(1, size_bytes)))
                total_bytes += size_bytes
        return found


async def open_cloud_log(url: str, *, store: ObjectStore | None = None) -> CloudLog:
    """Open a log, in ``store`` if given, else in the URL's store; see :meth:`uploader.CloudLog.open`."""
    try:
        return await CloudLog.open(url, store=store)
    except LogNotFoundError as error:
        await asyncio.to_thread(_hint, error, url)
        raise


def _hint(error: LogNotFoundError, url: str) -> None:
    """Add a note if the URL of a store names a log directory."""
    parts = urlsplit(url)
    directory = Path(unquote(parts.path))
    if parts.scheme == "file" and any(
        parse_file_name(found.name) is not None for found in directory.glob("*.wal")
    ):
        error.add_note(f"there is a log directory at that path: load it by its path, {directory}")


FOOTERS_AT_ONCE: Final = 16
_MOST_COLUMNS: Final = frozenset({"timestamp_us", "stream"})
"""Columns that are short next to values, keys and headers, so that reading them alone is worth requests."""


class FragmentSource:
    """Reads the fragments of one log. A context manager; the first request is made by the first read.

    Fragments whose footers exclude the requested streams are not read; footers are read some at a time."""

    def __init__(
        self, url: str, projection: Projection, *, store: ObjectStore | None = None
    ) -> None:
        """Read ``projection`` from the store at ``url``, or from ``store``, which is closed with this."""
        self._projection = projection
        self._store = store if store is not None else open_store(url)
        self._worker = Worker("spark")
        self._fragments = FragmentReader(store=self._store, worker=self._worker, cache_bytes=0)
        self._runner = SyncRunner()

    def holding(
        self, parts: Sequence[FragmentPart]
    ) -> Generator[tuple[FragmentPart, bool], None, None]:
        """Yield each part and whether it may contain a record of the projection."""
        if self._projection.streams is None:
            yield from ((part, True) for part in parts)
            return
        for at in range(0, len(parts), FOOTERS_AT_ONCE):
            window = parts[at : at + FOOTERS_AT_ONCE]
            yield from zip(window, self._runner.run(self._ask(window)), strict=True)

    def read(self, part: FragmentPart) -> Batch:
        """Return the records of a part, with all columns of the projection; others may be null.

        The fragment is checked against its entry (length, offsets). Raises OffsetTrimmedError for a
        fragment that was collected meanwhile, CorruptionError, StorageUnavailableError.
        """
        columns = self._projection.columns
        if columns <= _MOST_COLUMNS:
            reading = self._fragments.read_columns(part.entry, columns)
        else:
            reading = self._fragments.read(part.entry)
        return self._runner.run(reading).slice(part.start, part.limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._worker.close()
            self._runner.run(self._store.aclose())
        finally:
            self._runner.close()

    async def _ask(self, parts: Sequence[FragmentPart]) -> list[bool]:
        return list(await asyncio.gather(*map(self._may_hold, parts)))

    async def _may_hold(self, part: FragmentPart) -> bool:
        try:
            streams = (await self._fragments.footers.get(part.entry)).streams
        except WalError:
            return True  # reading it raises the error
        return any(streams.may_hold(name) for name in self._projection.streams or ())
