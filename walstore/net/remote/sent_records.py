"""SentRecords: the records of a transaction of a served log, which travel in parts.

The server keeps them as it keeps those of any transaction, and rolls back when the connection is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import count
from typing import Any, Final, TypeVar

from walstore.core.batches.batch_builder import AppendRequest
from walstore.core.batches.conditions import AppendConditions
from walstore.core.faces.transaction import TransactionRecords
from walstore.core.runtime.tasks import shield
from walstore.errors import (
    OutcomeUnknownError,
    RegisterMismatchError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)
from walstore.net.remote.client import Answer, Client
from walstore.net.remote.outbox import Outbox, options_of
from walstore.net.remote.source import LogMirror
from walstore.net.wire.records import NO_OPTIONS, RecordOptions, pack_options, pack_values
from walstore.net.wire.verbs import ADD, BEGIN, COMMIT, ROLLBACK
from walstore.records import Durability

_T = TypeVar("_T")

_PART_BYTES: Final = 1 << 20
_numbers = count(1)


class SentRecords(TransactionRecords):
    """The records of one transaction on their way. Owned by the task that uses it."""

    def __init__(
        self,
        client: Client,
        outbox: Outbox,
        mirror: LogMirror,
        conditions: AppendConditions,
        level: Durability | None,
        *,
        max_record_bytes: int,
    ) -> None:
        self.max_record_bytes = max_record_bytes
        self._client = client
        self._outbox = outbox
        self._mirror = mirror
        self._conditions = conditions
        self._level = level
        self._number = next(_numbers)
        self._values: list[bytes] = []
        self._rows: list[RecordOptions] = []
        self._size_bytes = 0
        self._is_begun = False
        self._is_committing = False
        self._begun_at = client.reconnects
        self._sent_update = conditions.update
        self._outcome: BaseException | None = None

    @property
    def held_bytes(self) -> int:
        """Of what was not sent yet."""
        return self._size_bytes

    def check_owner(self) -> None:
        """As of :class:`TransactionRecords`."""
        self._client.check_owner()

    def check_caller(self) -> None:
        """As of :class:`TransactionRecords`; raises once the client is closed, too."""
        self._client.check_home()

    def begin(self) -> None:
        """Raise what the client raises that is closed."""
        self._client.check_home()

    def add(self, request: AppendRequest) -> bool:
        """Keep a record; whether a part is full."""
        self._values.append(request.values[0])
        self._rows.append(options_of(request))
        self._size_bytes += request.size_bytes
        return self._size_bytes >= _PART_BYTES

    async def write_out(self) -> None:
        """Send the records that were not sent. Raises what the server raises, which rolled back then."""
        await self._begin()
        if not self._values:
            return
        values, self._values = self._values, []
        rows, self._rows = self._rows, []
        self._size_bytes = 0
        options: list[Any] | None = None
        if any(row != NO_OPTIONS for row in rows):
            options = pack_options(rows)
        await self._call(ADD, self._number, pack_values(values), options, payload=values)

    async def finish(self) -> None:
        """Send what is left, behind the appends that were gathered before."""
        self._outbox.flush()
        await self.write_out()

    async def commit(self) -> None:
        """Let the server commit. Cancelled, it waits for the answer, unless it is cancelled again."""
        update = self._conditions.update
        changed = {} if update is self._sent_update else update
        request = self._client.send(COMMIT, self._number, changed)
        self._is_committing = True
        try:
            answer = await self._same_server(shield(request.future))
        except RegisterMismatchError as error:
            raise self._mirror.hear_refusal(error, self._conditions) from None
        except asyncio.CancelledError:
            self._outcome = OutcomeUnknownError("the commit was cancelled before it was answered")
            await asyncio.wait((request.future,))
            if not request.future.cancelled():
                self._outcome = request.future.exception()
                if self._outcome is None:
                    self._note_committed(request.future.result())
            raise
        self._note_committed(answer)

    def failure_of(self, error: BaseException) -> WalError:
        """Return it, if nobody knows what became of the transaction."""
        outcome = self._outcome or error
        if isinstance(outcome, OutcomeUnknownError):
            return outcome
        return WalClosedError("the transaction was not committed")

    async def end(self, *, is_committed: bool) -> None:
        """Roll back at the server, which does so itself when a commit fails or the connection is lost."""
        self._values.clear()
        self._rows.clear()
        if self._is_begun and not self._is_committing and not self._client.is_closing:
            try:
                await self._client.call(ROLLBACK, self._number)
            except StorageUnavailableError:
                return  # the server rolls back what a lost connection leaves

    # -- inside ------------------------------------------------------------------------------

    def _note_committed(self, answer: Answer) -> None:
        start, limit, is_duplicate, registers = answer[0]
        conditions = self._conditions
        conditions.span, conditions.is_duplicate = range(start, limit), is_duplicate
        self._mirror.hear_registers(registers, conditions.update)
        self._mirror.note_appended(limit, self._level)

    async def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._sent_update = self._conditions.update
            await self._call(BEGIN, self._number, self._level, self._conditions)
            self._begun_at = self._client.reconnects

    async def _call(self, *call: Any, payload: list[bytes] | None = None) -> None:
        await self._same_server(self._client.call(*call, payload=payload or ()))

    async def _same_server(self, answer: Awaitable[_T]) -> _T:
        """Await an answer. A server that does not know the transaction is another than it was begun at."""
        client = self._client
        try:
            return await answer
        except WalClosedError as error:
            if client.is_closing or client.reconnects == self._begun_at:
                raise
            raise StorageUnavailableError(
                "the connection ended before the commit, and the transaction with it: it was rolled back, "
                "nothing was written; make it again"
            ) from error
