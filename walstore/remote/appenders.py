"""Groups, producers and fences of a served log: appends with conditions, over a connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from walstore.batches.append_request import check_records, gather_group
from walstore.batches.batch_builder import AppendRequest
from walstore.batches.conditions import MAX_NAME_CHARS, Expected
from walstore.errors import (
    FencedError,
    RecordTooLargeError,
    RegisterMismatchError,
    SequenceMismatchError,
    WalError,
)
from walstore.records import AnyDurability
from walstore.remote.append_port import Conditions, RemoteLog
from walstore.remote.client import Fate
from walstore.remote.transaction import RemoteTransaction
from walstore.runtime.owned import Owned
from walstore.settings import parse_durability
from walstore.wire.records import pack_values

TAG_BYTES: Final = 8
_NAME_CHARS: Final = MAX_NAME_CHARS - 1 - 2 * TAG_BYTES


async def append_group(
    log: RemoteLog,
    values: Iterable[bytes],
    *,
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | None,
    durability: AnyDurability | None,
    conditions: Conditions,
) -> range:
    """Append one atomic group under its conditions; see :meth:`walstore.Wal.append_many`."""
    level = None if durability is None else parse_durability(durability)
    most = log.most_group_bytes
    request = await gather_group(values, key, stream, headers, timestamp_us, None, most_bytes=most)
    if request.size_bytes > most:
        raise RecordTooLargeError(
            f"the group has {request.size_bytes} bytes; this server takes {most}: use transaction()",
            size_bytes=request.size_bytes,
            limit_bytes=most,
        )
    check_records(request, log.max_record_bytes)
    log.client.check_home()
    log.outbox.flush()
    start, limit, registers = await log.client.call(
        "append_group",
        level,
        pack_values(request.values),
        _shared(request),
        conditions.packed(),
        payload=request.values,
        fate=Fate.UNKNOWN if conditions.sequence is None else Fate.REPEATED,
        is_write=True,
    )
    log.mirror.hear_registers(registers, conditions.update)
    log.mirror.note_appended(limit, level)
    return range(start, limit)


def _shared(request: AppendRequest) -> list[Any]:
    """Return the options that all records of a group share."""
    columns = (request.keys, request.streams, request.headers, request.timestamps_us)
    return [None if column is None else column[0] for column in columns]


class RemoteProducer(Owned):
    """Appends with sequence numbers to a served log; as :class:`walstore.Producer`.

    An append with a number is sent again when its answer is lost, and is in the log once. Without
    ``sequence`` this object counts, under a name of its own that begins with the producer's: so appends of
    two clients with the same producer do not take each other's numbers. At most as many appends as the log
    remembers (the setting ``producer_window``) are on their way; others wait. Made by
    :meth:`RemoteWal.producer`.
    """

    def __init__(self, log: RemoteLog, producer_id: str) -> None:
        """Not for callers; see :meth:`RemoteWal.producer`."""
        self.id = producer_id
        """Name of the producer in the log."""
        self._log = log
        # An append that is sent again must not be older than what the log remembers, or nobody can say
        # at which offset it is.
        self._room = asyncio.Semaphore(log.producer_window)
        self._begin_session()

    async def append(
        self,
        value: bytes,
        *,
        sequence: int | None = None,
        repeated: bool = False,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record once and return its offset; see :meth:`append_many`."""
        span = await self.append_many(
            (value,),
            sequence=sequence,
            repeated=repeated,
            key=key,
            stream=stream,
            headers=headers,
            timestamp_us=timestamp_us,
            durability=durability,
        )
        return span.start

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        sequence: int | None = None,
        repeated: bool = False,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> range:
        """Append a group once, with one number; see :meth:`walstore.Producer.append_many`.

        Without ``sequence``, an append that is refused takes no part: later ones that are on their way are
        sent again with other numbers, and may then come after one that was called still later.
        """
        given = Conditions(producer=self.id, sequence=sequence, repeated=repeated)
        append = functools.partial(
            append_group,
            self._log,
            list(values),
            key=key,
            stream=stream,
            headers=headers,
            timestamp_us=timestamp_us,
            durability=durability,
        )
        async with self._room:
            if sequence is not None:
                return await append(conditions=given)
            return await self._append_next(append)

    def transaction(
        self,
        *,
        sequence: int | None = None,
        repeated: bool = False,
        durability: AnyDurability | None = None,
    ) -> RemoteTransaction:
        """Return a transaction that commits once with its number; see :meth:`walstore.Producer.transaction`.

        Without ``sequence`` it gets the next number of the producer at the commit.
        """
        conditions = Conditions(producer=self.id, sequence=sequence, repeated=repeated)
        return RemoteTransaction(self._log, conditions, durability)

    async def last_sequence(self) -> int:
        """Return the highest number that was given with ``sequence``, or by a transaction; 0 for none."""
        found: int = await self._log.client.call("last_sequence", self.id)
        return found

    def __repr__(self) -> str:
        return f"<RemoteProducer {self.id!r}>"

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._log.client.check_owner()

    # -- inside ------------------------------------------------------------------------------

    def _begin_session(self) -> None:
        self._name = f"{self.id[:_NAME_CHARS]}~{self._log.client.make_tag().hex()}"
        self._last = 0

    async def _append_next(self, append: Callable[..., Awaitable[range]]) -> range:
        """Append with a number that no other append of this session has, or ever had and got in with."""
        while True:
            name = self._name
            self._last = number = self._last + 1
            try:
                return await append(conditions=Conditions(producer=name, sequence=number))
            except SequenceMismatchError as error:
                if error.outcome != "not_written":
                    raise
                # An append before this one was refused, or the log has forgotten the session for newer
                # producers. Its numbers are not given away again: an older append may still have one.
                if name == self._name:
                    self._begin_session()
            except WalError as error:
                if error.outcome == "not_written" and (name, number) == (self._name, self._last):
                    self._last = number - 1
                raise


class RemoteFence(Owned):
    """Appends for one owner of a served log; as :class:`walstore.Fence`. Made by :meth:`RemoteWal.fence`."""

    def __init__(self, log: RemoteLog, owner: str, register: str, token: str) -> None:
        """Not for callers; see :meth:`RemoteWal.fence`."""
        self.owner = owner
        """The owner that took it."""
        self.register = register
        """Register that contains the fence."""
        self.token = token
        """Its value while this fence holds."""
        self._log = log

    @property
    def holds(self) -> bool:
        """Whether this client has not heard of another takeover."""
        return self._log.mirror.registers.get(self.register) == self.token

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record under the fence; FencedError if it no longer holds."""
        span = await self.append_many(
            (value,),
            key=key,
            stream=stream,
            headers=headers,
            timestamp_us=timestamp_us,
            durability=durability,
        )
        return span.start

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: AnyDurability | None = None,
    ) -> range:
        """Append an atomic group under the fence; FencedError if it no longer holds."""
        conditions = Conditions(None, {self.register: self.token}, None)
        try:
            return await append_group(
                self._log,
                values,
                key=key,
                stream=stream,
                headers=headers,
                timestamp_us=timestamp_us,
                durability=durability,
                conditions=conditions,
            )
        except RegisterMismatchError as error:
            raise self._fenced(error) from None

    def transaction(
        self,
        *,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        durability: AnyDurability | None = None,
    ) -> RemoteTransaction:
        """Return a transaction that commits only while the fence holds, else FencedError."""
        conditions = Conditions(None, {**(expect or {}), self.register: self.token}, update)
        return RemoteTransaction(self._log, conditions, durability, refused=self._fenced)

    def __repr__(self) -> str:
        return f"<RemoteFence {self.register!r} of {self.owner!r}{'' if self.holds else ', lost'}>"

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.runtime.owned.Owned`."""
        self._log.client.check_owner()

    def _fenced(self, error: RegisterMismatchError) -> FencedError | RegisterMismatchError:
        """Return the error of a refused append: another owner, or another condition that failed."""
        self._log.mirror.registers = dict(error.actual)
        found = error.actual.get(self.register)
        if found == self.token:
            return error
        return FencedError(f"{found!r} took over from {self.token!r}; nothing was written")
