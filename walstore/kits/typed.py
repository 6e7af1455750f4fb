"""TypedLog: a log of values of a type, over any log: opened, served, or stored.

``orders = TypedLog(wal, Schema(Order))``, then ``await orders.append(order)`` and
``async for record in orders.follow(): record.value``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar, Unpack

from walstore.core.batches.conditions import Expected
from walstore.core.faces.append_backend import AppendOptions
from walstore.core.faces.readable_log import ReadableLog
from walstore.core.read.reader import Reader
from walstore.kits.schema import HEADER, Schema, SchemaError
from walstore.log.log import Log
from walstore.records import AnyDurability, Start, from_timestamp_us

__all__ = ["Schema", "SchemaError", "TypedLog", "TypedReader", "TypedRecord", "TypedView"]

T = TypeVar("T")
OnError: TypeAlias = Literal["raise", "skip"] | Callable[[SchemaError], Awaitable[None]]
"""What a reader does with a record that cannot be decoded."""


class TypedRecord(NamedTuple, Generic[T]):
    """One record with its decoded value; else as :class:`walstore.Record`."""

    offset: int
    """Position in the log."""
    value: T
    """What was appended, decoded."""
    key: bytes | None
    """Its key, if any."""
    stream: str | None
    """The stream it was appended to, if any."""
    headers: Mapping[str, bytes]
    """Its headers, that of the schema included."""
    timestamp_us: int
    """Microseconds since 1970 UTC."""

    @property
    def timestamp(self) -> datetime:
        """``timestamp_us`` as an aware datetime in UTC."""
        return from_timestamp_us(self.timestamp_us)


class TypedReader(Generic[T]):
    """Reads the values of a log in offset order; made by :meth:`TypedView.reader` and ``follow``.

    Raises what :class:`walstore.Reader` does, and SchemaError for a record that cannot be decoded: its
    position is then that of the record, so ``reader.seek(error.offset + 1)`` continues after it. One task
    at a time. Cancelling loses nothing.
    """

    def __init__(self, reader: Reader, schema: Schema[T], on_error: OnError) -> None:
        """Not for callers; see :class:`TypedView`."""
        if on_error not in ("raise", "skip") and not callable(on_error):
            raise ValueError(f"on_error must be 'raise', 'skip' or a coroutine, not {on_error!r}")
        self.reader: Final = reader
        """The reader of the records as they are; both have one position."""
        self.schema: Final = schema
        """As given."""
        self._on_error = on_error

    @property
    def position(self) -> int:
        """Offset of the next record to be delivered, as of :attr:`walstore.Reader.position`."""
        return self.reader.position

    def seek(self, start: Start | str | int | datetime) -> None:
        """Continue at another place, as :meth:`walstore.Reader.seek`."""
        self.reader.seek(start)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TypedRecord[T]:
        while True:
            record = await anext(self.reader)
            try:
                value = self.schema.decode(record)
            except SchemaError as error:
                await self._refused(error)
            else:
                return TypedRecord(
                    record.offset,
                    value,
                    record.key,
                    record.stream,
                    record.headers,
                    record.timestamp_us,
                )

    async def _refused(self, error: SchemaError) -> None:
        """Return if the record is passed over; else the reader is still at it."""
        if self._on_error == "skip":
            await asyncio.sleep(0)  # noqa: TID251 - many may come in a row, and none of them waits
            return
        self.reader.seek(error.offset)
        if self._on_error == "raise":
            raise error
        await self._on_error(error)
        self.reader.seek(error.offset + 1)


class TypedView(Generic[T]):
    """The values of a log that is only read: a stored one, a copy, or that of another process."""

    def __init__(self, log: ReadableLog, schema: Schema[T], *, on_error: OnError = "raise") -> None:
        """Wrap an open log, which stays the caller's to close.

        ``on_error`` is what readers do with a record that cannot be decoded: ``"raise"`` the SchemaError,
        ``"skip"`` the record, or await a coroutine function with the error, which has the raw record, and
        then skip it. If that raises or is cancelled, the same record comes again.
        """
        self.schema: Final = schema
        """As given."""
        self._readable = log
        self._on_error: OnError = on_error

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
    ) -> TypedReader[T]:
        """Return a reader of the records that are there; the arguments are those of the log's ``reader``."""
        found = self._readable.reader(start, stop=stop, stream=stream, follow=False)
        return TypedReader(found, self.schema, self._on_error)

    def follow(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
    ) -> TypedReader[T]:
        """Return a reader that waits for new records; the arguments are those of the log's ``follow``."""
        found = self._readable.follow(start, stop=stop, stream=stream)
        return TypedReader(found, self.schema, self._on_error)


class TypedLog(TypedView[T]):
    """A log of values of a type. Methods raise what those of the log do, and are cancelled as they are."""

    def __init__(self, log: Log, schema: Schema[T], *, on_error: OnError = "raise") -> None:
        """Wrap an open log, as :class:`TypedView`."""
        super().__init__(log, schema, on_error=on_error)
        self._log = log

    async def append(
        self,
        value: T,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one value and return its offset, as :meth:`walstore.Wal.append`.

        Raises TypeError, or what ``dumps`` of the schema raises, for a value that cannot be encoded; nothing
        is appended then. ValueError if ``headers`` has the schema's own.
        """
        data, known = self.schema.encode(value), self._headers(headers)
        return await self._log.append(data, key, stream, known, timestamp_us, durability)

    async def append_many(
        self,
        values: Iterable[T],
        *,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        **options: Unpack[AppendOptions],
    ) -> range:
        """Append values as one atomic group, as :meth:`walstore.Wal.append_many`; as :meth:`append`."""
        if isinstance(values, str):
            raise TypeError("append_many() takes several values, not one str")
        options["headers"] = self._headers(options.get("headers"))
        encoded = map(self.schema.encode, values)
        return await self._log.append_many(
            encoded, expect_offset=expect_offset, expect=expect, update=update, **options
        )

    def _headers(self, given: Mapping[str, bytes] | None) -> Mapping[str, bytes]:
        if not given:
            return self.schema.headers
        if HEADER in given:
            raise ValueError(f"the header {HEADER} is the schema's; leave it out")
        return {**given, **self.schema.headers}
