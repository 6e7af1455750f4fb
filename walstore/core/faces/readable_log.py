"""ReadableLog: a log that can be read, wherever it is. The base of all that a program may have of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Self

from walstore.core.batches.batch import Batch
from walstore.core.format.ledger import StreamInfo
from walstore.core.read.reader import Reader, ReadGuard, timestamp_at
from walstore.core.runtime.old_names import warn_old
from walstore.core.runtime.owned import Owned
from walstore.core.validation.arguments import as_bool, as_int, as_moment_us
from walstore.errors import InvalidSettingsError
from walstore.records import Start

if TYPE_CHECKING:
    import pyarrow as pa


class ReadableLog(Owned):
    """A log that can be read, wherever it is: what :meth:`walstore.Wal.open`,
    :meth:`walstore.Wal.open_readonly`, :func:`walstore.connect`, :func:`walstore.connect_readonly` and
    ``uploader.CloudLog.open`` give. What each promises beyond this stands at its class.
    """

    @property
    @abstractmethod
    def head(self) -> int:
        """First offset that can be read; equals :attr:`limit` where there is no record."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """Offset after the last record that can be read, as far as is known here; see :meth:`refresh`."""

    @property
    def visible_limit(self) -> int:
        """Same as :attr:`limit`: where readers stop."""
        return self.limit

    @property
    def is_sealed(self) -> bool:
        """Whether nothing is ever appended any more, as a log in a store can be; as far as is known here."""
        return False

    @abstractmethod
    async def refresh(self) -> None:
        """Ask for the present :attr:`head` and :attr:`limit`."""

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool | None = None,
    ) -> Reader:
        """Return a reader of the records that are there: it ends at the end of the log, or before ``stop``.

        ``start``, ``stop`` and ``stream`` are as of :meth:`walstore.Wal.reader`. :meth:`follow` waits for
        more, and so does ``follow=True``, for programs that choose at run time. Say ``follow=False`` in this
        version: left out, it still means True, with a DeprecationWarning, but for a log in a store.
        """
        return self._read(start, stop, stream, follow=follow_or_warn(follow=follow))

    def follow(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
    ) -> Reader:
        """Return a reader that waits for new records at the end of the log; with ``stop`` it ends there."""
        return self._read(start, stop, stream, follow=True)

    async def offset_at(self, timestamp_us: int | datetime) -> int:
        """Return the first offset at or after a time, or :attr:`limit` if all records are older.

        The time is an aware datetime, or microseconds since 1970 UTC. Costs a binary search. Raises as a
        reader does.
        """
        return await self._find_offset(as_moment_us(timestamp_us))

    async def timestamp_at(self, offset: int) -> int:
        """Return the timestamp of a record that can be read, in microseconds since 1970 UTC.

        Raises OffsetTrimmedError, OffsetNotWrittenError, and as a reader does.
        """
        return await self._find_timestamp(as_int(offset, "offset"))

    async def to_arrow(
        self,
        columns: Iterable[str] | None = None,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        stop: int | None = None,
        stream: str | None = None,
    ) -> pa.Table:
        """Return the records that are there as a ``pyarrow.Table``, all of them in memory.

        :meth:`walstore.Reader.arrow_batches` takes a bounded amount of memory. What is appended during the
        call may be there, too; ``stop=log.limit`` leaves it out. Raises as reading does.

        Args:
            columns: Which columns of ``walstore.arrow.SCHEMA``, in this order; None for all: ``offset``
                (int64), ``timestamp`` (microseconds, UTC), ``value`` and ``key`` (binary), ``stream``
                (string) and ``headers`` (map of string to binary; null for a record without any).
            start: Where it begins, as of :meth:`reader`.
            stop: Offset before which it ends; None for the end of the log.
            stream: The stream whose records are returned; None for all records.

        Raises:
            InvalidSettingsError: There is no such column.
            MissingExtraError: pyarrow is not installed; the extra ``cloud`` has it.
        """
        from walstore.core.batches.arrow import check_columns, table_of

        names = check_columns(columns)
        reader = self._read(start, stop, stream, follow=False)
        return table_of([batch async for batch in reader.arrow_batches(names)], names)

    async def streams(self) -> dict[str, StreamInfo]:
        """Return every stream that was opened or appended to, by name, in the order of opening.

        InvalidSettingsError at a machine that only has a copy of the log: it has the records alone.
        """
        return await self._find_streams()

    @abstractmethod
    async def aclose(self) -> None:
        """Release what it holds. Twice is allowed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @abstractmethod
    def _read(
        self,
        start: Start | str | int | datetime,
        stop: int | None,
        stream: str | None,
        *,
        follow: bool,
    ) -> Reader:
        """Return a reader."""

    @abstractmethod
    async def _find_offset(self, time_us: int) -> int:
        """Return it for a checked time."""

    @abstractmethod
    async def _find_timestamp(self, offset: int) -> int:
        """Return it for a checked offset."""

    async def _find_streams(self) -> dict[str, StreamInfo]:
        """Return what :meth:`streams` does."""
        raise InvalidSettingsError("only the machine that leads the log lists its streams")


class OneLimitLog(ReadableLog):
    """A log with one limit: what is known to be there can be read, and is durable. Readers read from it."""

    _read_guard: ReadGuard

    @property
    def tail(self) -> int:
        """Same as :attr:`limit`."""
        return self.limit

    @property
    def durable_limit(self) -> int:
        """Same as :attr:`limit`."""
        return self.limit

    @property
    def tier_head(self) -> int | None:
        """None: there is no other place from which earlier records are read."""
        return None

    @abstractmethod
    async def wait_limit(self, limit: int) -> None:
        """Return when records below ``limit`` can be read, or never will."""

    @abstractmethod
    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""

    def _read(
        self,
        start: Start | str | int | datetime,
        stop: int | None,
        stream: str | None,
        *,
        follow: bool,
    ) -> Reader:
        return Reader(
            self, start=start, stop=stop, stream=stream, follow=follow, guard=self._read_guard
        )

    async def _find_timestamp(self, offset: int) -> int:
        self._read_guard.check()
        return await timestamp_at(self, offset)


def follow_or_warn(*, follow: bool | None) -> bool:
    """Return whether a reader follows, with a warning if that was not said. TypeError if it is no bool."""
    if follow is not None:
        return as_bool(follow, "follow")
    warn_old(
        "reader() will stop at the end from the next version; write follow() for one that waits for new "
        "records, or reader(follow=False)"
    )
    return True
