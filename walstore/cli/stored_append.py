"""Appending stdin straight to object storage, for ``walstore append``."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from walstore.cli.output import complain
from walstore.cli.running import stop_on_signal
from walstore.cli.splitting import Splitter
from walstore.cli.stdin import read_stdin
from walstore.errors import WalError

if TYPE_CHECKING:
    from uploader import CloudWriter

_GROUPS: Final = 16
"""Groups of records in flight at once; a group is what one read of stdin returned."""


async def append_to_store(
    url: str, splitter: Splitter, options: dict[str, Any], placing: Mapping[str, Any]
) -> dict[str, Any]:
    """Append records until stdin ends or a signal comes; return what the verb reports.

    ``placing`` is the layout of a new log (``layout.py``).
    """
    from uploader import CloudWriter, WriterSettings
    from uploader.runtime.task_groups import first_of

    most = splitter.max_record_bytes
    default = WriterSettings()
    settings = dataclasses.replace(
        default, max_record_bytes=most, pending_bytes=max(default.pending_bytes, 2 * most)
    )
    async with CloudWriter.open(url, settings=settings, **placing) as log:
        appending = _Appending(log, options)
        failure: WalError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    with stop_on_signal() as stop:
                        async for chunk in read_stdin(stop):
                            await appending.add(group, splitter.feed(chunk))
                        if stop.is_set():
                            complain_of_rest(splitter)
                        else:
                            await appending.add(group, splitter.finish())
                except WalError as error:  # reported once what came before is committed
                    failure = error
        except BaseExceptionGroup as errors:
            failure = first_of(errors)
        if failure is not None:
            complain(f"{appending.records} records were committed before this")
            raise failure
        start, limit = appending.span or (log.tail, log.tail)
        return {
            "url": log.url,
            "start": start,
            "limit": limit,
            "records": appending.records,
            "bytes": appending.size_bytes,
        }


def complain_of_rest(splitter: Splitter) -> None:
    """Report a record that a signal cut off: half a record is not appended."""
    if splitter.pending_bytes:
        complain(
            f"stopped within a record: its first {splitter.pending_bytes} bytes were not appended"
        )


class _Appending:
    """The records that were read and are being appended, in order."""

    def __init__(self, log: CloudWriter, options: dict[str, Any]) -> None:
        self._log = log
        self._options = options
        self._under_way: deque[asyncio.Task[None]] = deque()
        self.records = 0
        """Records that are committed."""
        self.size_bytes = 0
        self.span: tuple[int, int] | None = None
        """From the first to the last of them. Other writers may have appended some of the records between."""

    async def add(self, group: asyncio.TaskGroup, found: Iterator[bytes]) -> None:
        """Append values together, also those before an error; waits while enough groups are in flight."""
        values: list[bytes] = []
        try:
            values.extend(found)  # what came before an error stays
        finally:
            await self._add(group, values)

    async def _add(self, group: asyncio.TaskGroup, values: list[bytes]) -> None:
        if not values:
            return
        if len(self._under_way) == _GROUPS:
            await asyncio.wait([self._under_way.popleft()])
        self._under_way.append(group.create_task(self._append(values)))

    async def _append(self, values: list[bytes]) -> None:
        found = await self._log.append_many(values, **self._options)
        self.records += len(values)
        self.size_bytes += sum(map(len, values))
        start, limit = self.span or (found.start, found.stop)
        self.span = min(start, found.start), max(limit, found.stop)
