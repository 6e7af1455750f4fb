"""CursorMixin: the cursor methods of a log, open here or served."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Any, cast, overload

from walstore.core.ports import Clock
from walstore.core.runtime.owned import Owned
from walstore.positions.cursor import Cursor, CursorBackend
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.cursors.consumer import Consumer, ConsumerLog
from walstore.positions.cursors.consumer_transaction import OutputLog, OutputT, OutputTransaction
from walstore.records import Start


class CursorMixin(Owned):
    """Named cursors, and consumers that keep their position in one. For logs with ``log_id`` and
    ``reader()``."""

    @abstractmethod
    def _cursor_store(self) -> tuple[CursorBackend, Clock]:
        """Return the log's cursors, made on first use, and its clock."""

    async def cursor(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the named cursor: a durable position that retention never passes.

        A new one begins at ``start``. With ``lease_seconds`` it holds retention back only for that long
        after its last commit. Details and errors: :meth:`walstore.positions.cursors.store.CursorStore.open`.
        """
        cursors, _ = self._cursor_store()
        return await cursors.open(name, start=start, lease_seconds=lease_seconds)

    async def cursors(self) -> list[CursorInfo]:
        """Return all cursors of the log by name; damaged ones carry an error."""
        cursors, _ = self._cursor_store()
        return await cursors.list()

    async def delete_cursor(self, name: str) -> bool:
        """Remove a cursor, even one in use, so that retention may pass it; return whether there was one."""
        cursors, _ = self._cursor_store()
        return await cursors.delete(name)

    @overload
    def consumer(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        auto_commit_seconds: float | None = 5.0,
        lease_seconds: float | None = None,
        stream: str | None = None,
        follow: bool = True,
        output: None = None,
        concurrency: int = 1,
    ) -> Consumer[OutputTransaction]: ...

    @overload
    def consumer(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        auto_commit_seconds: float | None = 5.0,
        lease_seconds: float | None = None,
        stream: str | None = None,
        follow: bool = True,
        output: OutputLog[OutputT] | None,
        concurrency: int = 1,
    ) -> Consumer[OutputT]: ...

    def consumer(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        auto_commit_seconds: float | None = 5.0,
        lease_seconds: float | None = None,
        stream: str | None = None,
        follow: bool = True,
        output: OutputLog[Any] | None = None,
        concurrency: int = 1,
    ) -> Consumer[Any]:
        """Return a consumer: a reader that keeps its position in the cursor of that name.

        ``async with log.consumer("billing") as consumer: async for record in consumer: ...``. It begins
        at ``start`` the first time. Processed records are committed every ``auto_commit_seconds`` and
        at the end of the block; None leaves that to :meth:`Consumer.commit`. With ``output``, a log,
        its ``transaction()`` changes the position and the output together: exactly once. With
        ``concurrency`` of more than 1, up to 100 000, so many records are handled side by side, by
        :meth:`Consumer.run`; committed is what lies before the first that is not done.
        """
        cursors, clock = self._cursor_store()
        return Consumer(
            cast(ConsumerLog, self),
            cursors,
            name,
            clock=clock,
            start=start,
            auto_commit_seconds=auto_commit_seconds,
            lease_seconds=lease_seconds,
            stream=stream,
            follow=follow,
            output=output,
            concurrency=concurrency,
        )
