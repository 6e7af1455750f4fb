"""CloudSource: a log in object storage as one of its readers sees it; and the limits of a scan.

Owns only what is fetched ahead for that reader. The log decides which manifest is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Protocol

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.read.fragment_reader import FragmentReader, pieces
from uploader.read.read_ahead import ReadAhead
from uploader.runtime.task_groups import task_group
from walstore.batches.batch import Batch
from walstore.errors import InvalidSettingsError
from walstore.ports import Clock
from walstore.read.reader import ReadSource
from walstore.validation.arguments import as_count, as_seconds


class ManifestView(ReadSource, Protocol):
    """A log that reads its manifest again from time to time."""

    @property
    def manifest(self) -> Manifest:
        """The manifest as it was read last."""

    def check_open(self) -> None:
        """Raise WalClosedError if the log is closed."""


class CloudSource:
    """Implements :class:`walstore.read.reader.ReadSource` and ``StreamIndex`` for one reader."""

    def __init__(self, log: ManifestView, fragments: FragmentReader, ahead: ReadAhead) -> None:
        """Read ``log`` through ``ahead``, which this reader alone uses."""
        self._log = log
        self._fragments = fragments
        self._ahead = ahead

    @property
    def head(self) -> int:
        """First retained offset."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Offset after the last one in the manifest."""
        return self._log.limit

    @property
    def tail(self) -> int:
        """Same as :attr:`limit`."""
        return self._log.tail

    async def wait_limit(self, limit: int) -> None:
        """Return when the manifest names all offsets below ``limit``."""
        await self._log.wait_limit(limit)

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or the tail if all records are older."""
        return await self._log.offset_at(timestamp_us)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return the rest of the fragment that holds ``position``, up to ``limit``."""
        self._log.check_open()
        batch = await self._ahead.read(self._log.manifest, position, limit)
        return pieces(batch, position, limit, max_bytes)

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` before which there is no record of a stream."""
        self._log.check_open()
        manifest = self._log.manifest
        found = await self._fragments.skip_stream(manifest, name, position, limit)
        if found > position:
            self._ahead.pass_over(position, found)
        return found


async def within(
    fragments: AsyncIterable[Fragment],
    start: int,
    *,
    max_fragments: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
) -> AsyncGenerator[Fragment, None]:
    """Yield consecutive fragments within limits; the first contains ``start``.

    The first one is always yielded. Another one is yielded if it keeps within ``max_fragments`` and
    ``max_bytes`` (of objects), and those before it contain fewer than ``max_records`` records from
    ``start`` on.
    """
    count = size = 0
    async for fragment in fragments:
        count += 1
        size += fragment.num_bytes
        if count > 1 and (
            _exceeds(count, max_fragments)
            or _exceeds(size, max_bytes)
            or (max_records is not None and fragment.start - start >= max_records)
        ):
            return
        yield fragment
        if count == max_fragments:
            return


async def in_time(
    fragments: AsyncGenerator[Fragment, None], seconds: float, clock: Clock
) -> AsyncGenerator[Fragment, None]:
    """Yield what arrives within so many seconds from the first step; then cancel the pending request.

    The first one is always yielded if it needs no wait, even within 0 seconds.
    """
    deadline = clock.monotonic() + seconds
    left = seconds
    while True:
        async with task_group() as tasks:
            asking = tasks.create_task(_next_of(fragments))
            sleeping = tasks.create_task(clock.sleep(left))
            await asyncio.wait((asking, sleeping), return_when=asyncio.FIRST_COMPLETED)
            sleeping.cancel()
            asking.cancel()  # a no-op if it has ended
        found = None if asking.cancelled() else asking.result()
        if found is None:
            return
        yield found
        left = deadline - clock.monotonic()
        if left <= 0:
            return


async def _next_of(fragments: AsyncGenerator[Fragment, None]) -> Fragment | None:
    return await anext(fragments, None)


def check_max_wait(seconds: float) -> float:
    """Return the longest wait; TypeError, InvalidSettingsError if it is negative or not finite."""
    checked = as_seconds(seconds, "max_wait")
    if checked < 0:
        raise InvalidSettingsError(f"max_wait must not be negative, not {seconds!r}")
    return checked


def check_limits(**limits: int | None) -> None:
    """Raise InvalidSettingsError for a limit below 1, and TypeError for one that is not an int."""
    for name, limit in limits.items():
        if limit is not None:
            as_count(limit, name)


def _exceeds(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit
