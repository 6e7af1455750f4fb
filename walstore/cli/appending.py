"""Appending what stdin has: to a directory, a store or a server, with the same promise.

A record that the log refuses ends the input. What came before it is in the log, nothing behind it is sent,
and the error says how far it got.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from walstore import Durability, Settings, Wal
from walstore.cli.errors import UsageError
from walstore.cli.input import Splitter, read_records
from walstore.cli.location import connect_to
from walstore.cli.output import complain
from walstore.cli.row import Parser, Row, RowCheck
from walstore.cli.running import stop_on_signal
from walstore.core.runtime.clock import SystemClock
from walstore.core.settings import parse_durability
from walstore.core.tier_port import Tier
from walstore.errors import WalError, WouldBlock

Options = Mapping[str, Any]
"""Key and stream of every record whose line does not say its own."""

_GROUPS: Final = 16
"""Groups of records in flight at once."""
_GROUP_BYTES: Final = 1 << 20
_GROUP_RECORDS: Final = 32_768
"""A client checks so many values without letting others go before them."""


async def append_to_directory(
    path: Path,
    splitter: Splitter,
    parser: Parser,
    options: Options,
    *,
    level: str,
    tier: Tier | None,
) -> dict[str, Any]:
    """Append records until stdin ends or a signal comes; return what the verb reports."""
    most = splitter.max_record_bytes
    default = Settings(durability=Durability.DISK)
    settings = default.replace(
        max_record_bytes=most, channel_bytes=max(default.channel_bytes, most)
    )
    check = RowCheck(
        options,
        unit=splitter.unit,
        most_bytes=most,
        lead_seconds=default.max_timestamp_lead_seconds,
    )
    async with Wal.open(path, settings=settings, tier=tier) as wal:
        start, size = wal.tail, 0
        try:
            with stop_on_signal() as stop:
                async for values in read_records(splitter, stop):
                    size += await _append_rows(wal, check.rows(parser(values)))
                if wal.tail > start:
                    await wal.wait_durable(wal.tail - 1, parse_durability(level))
        except asyncio.CancelledError:
            complain(_on_disk(wal, start))
            raise
        except WalError as error:
            with suppress(WalError):  # of the input: the log itself continues
                if wal.tail > start:
                    await wal.wait_durable(wal.tail - 1, "disk")
            error.add_note(f"({_on_disk(wal, start)})")
            raise
        return {
            "directory": str(path),
            "start": start,
            "limit": wal.tail,
            "records": wal.tail - start,
            "bytes": size,
        }


def _on_disk(wal: Wal, start: int) -> str:
    """Return how much of the input is in the log when the verb ends early."""
    limit = max(start, wal.durable_limit)
    text = f"{limit - start} records before this are on disk"
    if limit > start:
        text += f": [{start}, {limit})"
    if wal.tail > limit:
        return f"{text}; {wal.tail - limit} more were taken and may not be"
    return f"{text}; none behind it"


async def _append_rows(wal: Wal, rows: Iterator[Row]) -> int:
    """Append rows without waiting for each; return their bytes. Waits only while the channel is full."""
    size = 0
    for value, chosen in rows:
        try:
            wal.append_nowait(value, **chosen)
        except WouldBlock:
            await wal.append(value, durability="memory", **chosen)
        size += len(value)
    return size


async def append_to_store(
    url: str,
    splitter: Splitter,
    parser: Parser,
    options: Options,
    placing: Mapping[str, Any],
) -> dict[str, Any]:
    """As :func:`append_to_directory`; ``placing`` is the layout of a new log."""
    from uploader import CloudWriter, WriterSettings

    most = splitter.max_record_bytes
    default = WriterSettings()
    settings = dataclasses.replace(
        default, max_record_bytes=most, pending_bytes=max(default.pending_bytes, 2 * most)
    )
    check = RowCheck(
        options,
        unit=splitter.unit,
        most_bytes=most,
        lead_seconds=default.max_timestamp_lead_seconds,
    )
    async with CloudWriter.open(url, settings=settings, **placing) as log:
        appending = _Appending(log.append_many, check)
        await appending.all(splitter, parser)
        return {"url": log.url, **appending.done(log.tail)}


async def append_to_server(
    address: str, splitter: Splitter, parser: Parser, options: Options
) -> dict[str, Any]:
    """As :func:`append_to_directory`, each record once, whatever becomes of the connection meanwhile."""
    async with await connect_to(address, create=True) as log:
        producer = log.producer(f"walstore append {os.urandom(8).hex()}")
        most = min(splitter.max_record_bytes, log.max_record_bytes)
        check = RowCheck(options, unit=splitter.unit, most_bytes=most)
        appending = _Appending(producer.append_many, check)
        await appending.all(splitter, parser)
        return {"address": address, **appending.done(log.tail)}


@dataclasses.dataclass(slots=True)
class _RowGroup:
    """Records that are appended together, and what became of them."""

    first: int
    """Number of its first record in the input."""
    values: list[bytes]
    chosen: Mapping[str, Any]
    found: range | None = None
    failure: Exception | None = None


@dataclasses.dataclass(slots=True)
class _Appending:
    """The records that were read and are being appended, in order."""

    _append_many: Callable[..., Awaitable[range]]
    _check: RowCheck
    _under_way: deque[tuple[_RowGroup, asyncio.Task[None]]] = dataclasses.field(
        default_factory=deque
    )
    _streams: set[str | None] = dataclasses.field(default_factory=lambda: {None})
    """Streams to which the log took records of this input."""
    _sent: int = 0
    _failure: WalError | None = None
    """Of the first group that failed."""
    records: int = 0
    """Records that are committed; of the input's first ones, without a gap."""
    size_bytes: int = 0
    span: tuple[int, int] | None = None
    """From the first to the last of them. Other writers may have appended some of the records between."""
    _behind: int = 0
    """Records that are committed although one before them is not: the log failed meanwhile."""
    _unknown: int = 0

    async def all(self, splitter: Splitter, parser: Parser) -> None:
        """Append what stdin has, until it ends or a signal comes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                refusal: WalError | None = None
                try:
                    with stop_on_signal() as stop:
                        async for values in read_records(splitter, stop):
                            await self._add(tasks, parser(values))
                except WalError as error:  # of the input, or of a group
                    refusal = error
                self._failure = await self._drained() or refusal
        except asyncio.CancelledError:
            complain(f"{self.records} records were committed before this; more may be")
            raise
        if self._failure is not None:
            self._failure.add_note(f"({self._how_far()})")
            raise self._failure

    def done(self, tail: int) -> dict[str, Any]:
        """Return what the verb reports, of a log with this tail."""
        start, limit = self.span or (tail, tail)
        return {
            "start": start,
            "limit": limit,
            "records": self.records,
            "bytes": self.size_bytes,
        }

    async def _add(self, tasks: asyncio.TaskGroup, found: Iterator[Row]) -> None:
        """Append rows, also those before an error; those with equal options together.

        Waits while enough groups are in flight, and for each group that the log may refuse.
        """
        rows: list[Row] = []
        failure: WalError | None = None
        try:
            rows.extend(self._check.rows(found))  # what came before an error stays
        except WalError as error:
            failure = error
        for values, chosen in _groups(rows):
            is_doubtful = self._is_doubtful(chosen)
            await self._settle(0 if is_doubtful else _GROUPS - 1)
            group = _RowGroup(self._sent + 1, values, chosen)
            self._sent += len(values)
            self._under_way.append((group, tasks.create_task(self._append(group))))
            if is_doubtful:
                await self._settle(0)
                self._streams.add(chosen.get("stream"))
        if failure is not None:
            raise failure

    def _is_doubtful(self, chosen: Mapping[str, Any]) -> bool:
        """Return whether only the log knows if it takes such records: nothing behind them is sent until then.

        A stream may be closed, or one too many; a time may be too far ahead for its clock.
        """
        is_ahead = chosen.get("timestamp_us", 0) > SystemClock().now_us()
        return is_ahead or chosen.get("stream") not in self._streams

    async def _append(self, group: _RowGroup) -> None:
        try:
            group.found = await self._append_many(group.values, **group.chosen)
        except (WalError, ValueError, TypeError) as error:
            group.failure = error

    async def _drained(self) -> WalError | None:
        """Wait for all groups; return the error of the first one that failed."""
        while self._under_way:
            with suppress(WalError):
                await self._settle(0)
        return self._failure

    async def _settle(self, most: int) -> None:
        """Wait until at most so many groups are under way, and raise the error of one that failed."""
        while len(self._under_way) > most:
            group, task = self._under_way[0]
            await asyncio.wait([task])
            self._under_way.popleft()
            self._count(group)
            if self._failure is not None:
                raise self._failure

    def _count(self, group: _RowGroup) -> None:
        count = len(group.values)
        if group.found is None:
            self._unknown += count * (getattr(group.failure, "outcome", None) not in _NOT_WRITTEN)
            self._failure = self._failure or self._refusal(group)
        elif self._failure is not None:
            self._behind += count
        else:
            self.records += count
            self.size_bytes += sum(map(len, group.values))
            start, limit = self.span or (group.found.start, group.found.stop)
            self.span = min(start, group.found.start), max(limit, group.found.stop)

    def _refusal(self, group: _RowGroup) -> WalError:
        """Return the error of a group with the numbers of its lines."""
        assert group.failure is not None
        unit, last = self._check.unit, group.first + len(group.values) - 1
        where = (
            f"{unit} {group.first}" if last == group.first else f"{unit}s {group.first} to {last}"
        )
        failure = group.failure
        if not isinstance(failure, WalError):
            return UsageError(f"{where}: {failure}")
        failure.add_note(f"({where} of the input)")
        return failure

    def _how_far(self) -> str:
        """Return how much of the input is in the log."""
        text = f"{self.records} records before this are committed"
        if self.span is not None:
            start, limit = self.span
            place = f"[{start}, {limit})"
            text += f": {place}" if limit - start == self.records else f", within {place}"
        if self._unknown:
            text += f"; {self._unknown} more may be, or not"
        return f"{text}; {self._behind or 'none'} behind it"


_NOT_WRITTEN: Final = (None, "not_written")


def _groups(rows: Iterable[Row]) -> Iterator[tuple[list[bytes], Mapping[str, Any]]]:
    """Yield the values of rows that come together and have equal options, and these."""
    for chosen, together in groupby(rows, itemgetter(1)):
        values: list[bytes] = []
        size = 0
        for value, _ in together:
            if values and (size + len(value) > _GROUP_BYTES or len(values) == _GROUP_RECORDS):
                yield values, chosen
                values, size = [], 0
            values.append(value)
            size += len(value)
        yield values, chosen
