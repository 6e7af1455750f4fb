"""Outbox: gathers the records of many callers into messages, each answered once for all of them.

Records that are appended in one turn of the event loop travel together. So a hundred tasks that append cost
one message, one commit and one answer, and what each costs is little more than its bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from walstore.core.batches.batch_builder import AppendRequest
from walstore.core.runtime.admissions import Admissions
from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import OutcomeUnknownError, WalError
from walstore.net.remote.client import Answer, Client
from walstore.net.wire.errors import unpack_error
from walstore.net.wire.message import MESSAGE_OVERHEAD_BYTES
from walstore.net.wire.records import NO_OPTIONS, RecordOptions, pack_options, pack_values
from walstore.net.wire.verbs import APPEND

_MESSAGE_BYTES: Final = 256 << 10
_MESSAGE_RECORDS: Final = 4096


class _Gathered:
    """Records that travel in one message."""

    __slots__ = ("durability", "futures", "rows", "size_bytes", "values")

    def __init__(self, durability: str | None) -> None:
        self.durability = durability
        self.values: list[bytes] = []
        self.rows: list[RecordOptions] | None = None
        self.futures: list[asyncio.Future[int]] = []
        self.size_bytes = MESSAGE_OVERHEAD_BYTES


class Outbox:
    """The records of one client on their way. Belongs to its event loop."""

    def __init__(self, client: Client, *, budget_bytes: int) -> None:
        """Keep at most about ``budget_bytes`` on the way; callers beyond that wait their turn."""
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._gathered: _Gathered | None = None
        self._admissions: Admissions[tuple[AppendRequest, str | None], asyncio.Future[int]] = (
            Admissions(self._loop, has_room=self._has_room, accept=self._accept)
        )

    async def append(self, record: AppendRequest, durability: str | None) -> int:
        """Send a record and return its offset once it is as safe as ``durability`` says.

        If cancelled while it waits for room, it was not appended; later it is, nevertheless.
        """
        request = record, durability
        if self._admissions.waiting or not self._has_room(request):
            future = await self._admissions.wait(request)
        else:
            future = self._accept(request)
        return await future

    def flush(self) -> None:
        """Send what was gathered: what is sent next was asked later."""
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return
        options: list[Any] | None = None
        if gathered.rows is not None:
            options = pack_options(gathered.rows)
        sizes = pack_values(gathered.values)
        try:
            request = self._client.send(
                APPEND, gathered.durability, sizes, options, payload=gathered.values
            )
        except WalError as error:
            self._settle(gathered, error)
            return
        request.future.add_done_callback(lambda future: self._answered(gathered, future))

    # -- inside ------------------------------------------------------------------------------

    def _has_room(self, request: tuple[AppendRequest, str | None]) -> bool:
        return not self._used_bytes or (
            self._used_bytes + request[0].size_bytes <= self._budget_bytes
        )

    def _accept(self, request: tuple[AppendRequest, str | None]) -> asyncio.Future[int]:
        self._client.check_home()
        record, durability = request
        gathered = self._gathered
        if gathered is not None and gathered.durability != durability:
            self.flush()
            gathered = None
        if gathered is None:
            self._gathered = gathered = _Gathered(durability)
            self._used_bytes += MESSAGE_OVERHEAD_BYTES
            self._loop.call_soon(self._flush_this, gathered)
        self._add(gathered, record)
        future: asyncio.Future[int] = self._loop.create_future()
        gathered.futures.append(future)
        if gathered.size_bytes >= _MESSAGE_BYTES or len(gathered.values) >= _MESSAGE_RECORDS:
            self.flush()
        return future

    def _add(self, gathered: _Gathered, record: AppendRequest) -> None:
        options = options_of(record)
        if options != NO_OPTIONS and gathered.rows is None:
            gathered.rows = [NO_OPTIONS] * len(gathered.values)
        if gathered.rows is not None:
            gathered.rows.append(options)
        gathered.values.append(record.values[0])
        gathered.size_bytes += record.size_bytes
        self._used_bytes += record.size_bytes

    def _flush_this(self, gathered: _Gathered) -> None:
        if self._gathered is gathered:
            self.flush()

    def _answered(self, gathered: _Gathered, future: asyncio.Future[Answer]) -> None:
        error = future.exception()
        if error is not None:
            self._settle(gathered, error)
            return
        match future.result()[0]:
            case [int(start), int(count), None] if count == len(gathered.futures):
                for at, waiter in enumerate(gathered.futures):
                    if not waiter.done():
                        waiter.set_result(start + at)
            case [_, int(count), list(each)] if count == len(gathered.futures) == len(each):
                for outcome, waiter in zip(each, gathered.futures, strict=True):
                    _settle_one(
                        waiter, outcome if isinstance(outcome, int) else unpack_error(outcome)
                    )
            case _:
                self._settle(gathered, OutcomeUnknownError("the server's answer is none"))
                return
        self._release(gathered)

    def _settle(self, gathered: _Gathered, error: BaseException) -> None:
        for waiter in gathered.futures:
            _settle_one(waiter, copy_error(error) if isinstance(error, WalError) else error)
        self._release(gathered)

    def _release(self, gathered: _Gathered) -> None:
        self._used_bytes -= gathered.size_bytes
        if self._admissions.waiting:
            self._admissions.admit()


def _settle_one(waiter: asyncio.Future[int], outcome: int | BaseException) -> None:
    if waiter.done():
        return
    if isinstance(outcome, int):
        waiter.set_result(outcome)
    else:
        waiter.set_exception(outcome)
        waiter.exception()  # its caller may have been cancelled


def options_of(record: Any) -> RecordOptions:
    """Return the options of a request of one record."""
    return (
        None if record.keys is None else record.keys[0],
        None if record.streams is None else record.streams[0],
        None if record.headers is None else record.headers[0],
        None if record.timestamps_us is None else record.timestamps_us[0],
    )
