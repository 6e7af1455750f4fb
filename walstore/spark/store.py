"""A log in an object store, for callers without an event loop: planning and reading.

Each object here owns one event loop, run on demand. Nothing of it may be used inside another loop.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from uploader import CloudLog, open_store
from uploader.fragments.fragment_reader import FragmentReader
from walstore.batch import Batch
from walstore.errors import LogNotFoundError
from walstore.segment import parse_file_name
from walstore.spark.location import Location
from walstore.spark.partition import FragmentPart, FragmentPartition, LogPartition
from walstore.spark.plan import clip, group
from walstore.threads import Worker


class StoreLog:
    """A log as its manifest was when this was made. Close it after planning."""

    def __init__(self, location: Location) -> None:
        """Read the manifest; see :meth:`uploader.CloudLog.open` for the errors."""
        self._topic = location.topic
        self._runner = asyncio.Runner()
        # Not Runner.run(): it restores a signal handler, and signal() formats the one it replaces,
        # with the task it holds and all of its result.
        self._run = self._runner.get_loop().run_until_complete
        try:
            self._log = self._run(_open(location.text))
        except BaseException as error:
            self._runner.close()
            if isinstance(error, LogNotFoundError):
                _hint(error, location.text)
            raise

    def close(self) -> None:
        """Release connections and threads."""
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
        """Offset after the last one that the manifest names."""
        return self._log.tail

    def is_trimmed(self, offset: int) -> bool:
        """Return whether garbage collection has passed the offset."""
        return offset < self.head

    def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset that is not older than a time, or None."""
        found = self._run(self._log.offset_at(timestamp_us))
        return None if found >= self.limit else found

    def partitions(self, start: int, limit: int, most_bytes: int) -> list[LogPartition]:
        """Return partitions of whole fragments, cut only where the interval begins and ends."""
        entries = self._run(self._log.fragments(start, limit))
        parts = [
            FragmentPart(*clip((entry.start, entry.limit), start, limit), entry)
            for entry in entries
        ]
        return [
            FragmentPartition(topic=self._topic, url=self._log.url, parts=tuple(members))
            for members in group(parts, most_bytes)
        ]


class FragmentSource:
    """Fetches fragments for a task, one at a time. A context manager; nothing happens before a read."""

    def __init__(self, url: str) -> None:
        """Read from the store at ``url``."""
        self._store = open_store(url)
        self._worker = Worker("spark")
        self._fragments = FragmentReader(store=self._store, worker=self._worker, cache_bytes=0)
        self._runner = asyncio.Runner()
        self._run = self._runner.get_loop().run_until_complete  # as in StoreLog

    def read(self, part: FragmentPart) -> Batch:
        """Return the records of a part; the fragment is checked against its entry (length, offsets).

        Raises OffsetTrimmedError for a fragment that was collected meanwhile, CorruptionError,
        StorageUnavailableError.
        """
        return self._run(self._fragments.read(part.entry)).slice(part.start, part.limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._worker.close()
            self._run(self._store.aclose())
        finally:
            self._runner.close()


async def _open(url: str) -> CloudLog:
    return await CloudLog.open(url)


def _hint(error: LogNotFoundError, url: str) -> None:
    """Say so if a log directory was named as if it were a store."""
    parts = urlsplit(url)
    directory = Path(unquote(parts.path))
    if parts.scheme == "file" and any(
        parse_file_name(found.name) is not None for found in directory.glob("*.wal")
    ):
        error.add_note(f"a log directory lies there: load it by its path, {directory}")
