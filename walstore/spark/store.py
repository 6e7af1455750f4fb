"""A log in an object store, for callers without an event loop: planning and reading.

Each object here owns one event loop, run on demand. Nothing of it may be used inside another loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from uploader.cloud_log import CloudLog
from uploader.fragment import decode_fragment
from uploader.manifest import Fragment
from uploader.stores import ObjectNotFoundError, ObjectStore, RetryPolicy, open_store
from walstore.batch import Batch
from walstore.clock import SystemClock
from walstore.errors import LogNotFoundError, OffsetTrimmedError
from walstore.segment import parse_file_name
from walstore.spark.location import Location
from walstore.spark.partition import FragmentPart, FragmentPartition, LogPartition
from walstore.spark.plan import clip, group


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


def read_fragments(url: str, parts: Sequence[FragmentPart]) -> Iterator[Batch]:
    """Yield the records of fragments, each checked against its entry (length, offsets).

    Holds one fragment at a time. Raises OffsetTrimmedError for a fragment that was collected meanwhile,
    CorruptionError, StorageUnavailableError.
    """
    store, retry = open_store(url), RetryPolicy(clock=SystemClock())
    with asyncio.Runner() as runner:
        run = runner.get_loop().run_until_complete  # see StoreLog
        try:
            for part in parts:
                data = run(_get(store, retry, part.entry))
                batch = decode_fragment(data, part.entry)
                del data
                yield batch.slice(part.start, part.limit)
                del batch
        finally:
            run(store.aclose())


async def _open(url: str) -> CloudLog:
    return await CloudLog.open(url)


async def _get(store: ObjectStore, retry: RetryPolicy, entry: Fragment) -> bytes:
    """Return an object's bytes; by a range, because ETags are not needed and may cost a hash.

    One byte more is asked for than there should be, so that a longer object shows too.
    """
    try:
        return await retry.call(lambda: store.get_range(entry.path, 0, entry.num_bytes + 1))
    except ObjectNotFoundError as error:
        raise OffsetTrimmedError(
            f"{entry.path} was collected from {store.url} since the read was planned",
            requested=entry.start,
            head=entry.limit,
            tail=entry.limit,
        ) from error


def _hint(error: LogNotFoundError, url: str) -> None:
    """Say so if a log directory was named as if it were a store."""
    parts = urlsplit(url)
    directory = Path(unquote(parts.path))
    if parts.scheme == "file" and any(
        parse_file_name(found.name) is not None for found in directory.glob("*.wal")
    ):
        error.add_note(f"a log directory lies there: load it by its path, {directory}")
