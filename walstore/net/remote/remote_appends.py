"""RemoteAppends: the way of appends into a served log, over a connection."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping

from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES, AppendRequest
from walstore.core.batches.conditions import AppendConditions
from walstore.core.faces.append_backend import AppendBackend, GroupAppend
from walstore.core.faces.transaction import too_large
from walstore.core.settings import parse_durability
from walstore.errors import RecordTooLargeError, RegisterMismatchError
from walstore.net.remote.client import Client
from walstore.net.remote.client_sequence import ClientSequence
from walstore.net.remote.outbox import Outbox
from walstore.net.remote.sent_records import SentRecords
from walstore.net.remote.source import LogMirror
from walstore.net.wire import verbs
from walstore.net.wire.records import pack_values
from walstore.records import AnyDurability, Durability


class RemoteAppends(AppendBackend):
    """The appends of one client. Belongs to its event loop."""

    def __init__(self, client: Client, mirror: LogMirror) -> None:
        self.max_record_bytes = self.most_group_bytes = self.producer_window = 0
        self._client = client
        self._mirror = mirror
        self._outbox = Outbox(client, budget_bytes=int(client.welcome["credit_bytes"]))

    def check_owner(self) -> None:
        """As of :class:`AppendBackend`."""
        self._client.check_owner()

    def level(self, durability: AnyDurability | None) -> Durability | None:
        """The server checks whether its log reaches the level."""
        return None if durability is None else parse_durability(durability)

    async def append(self, record: AppendRequest, level: Durability | None) -> int:
        """Append one record, together with others of this turn of the event loop."""
        self._client.check_home()
        size_bytes = record.size_bytes - RECORD_OVERHEAD_BYTES
        if size_bytes > self.max_record_bytes:
            raise too_large(size_bytes, self.max_record_bytes)
        offset = await self._outbox.append(record, level)
        self._mirror.note_appended(offset + 1, level)
        return offset

    async def submit(self, request: AppendRequest, level: Durability | None) -> range:
        """Append one atomic group under its conditions."""
        most = self.most_group_bytes
        if request.size_bytes > most:
            raise RecordTooLargeError(
                f"the group has {request.size_bytes} bytes; this server takes {most}: use transaction()",
                size_bytes=request.size_bytes,
                limit_bytes=most,
            )
        conditions = request.conditions or AppendConditions()
        self._outbox.flush()
        columns = (request.keys, request.streams, request.headers, request.timestamps_us)
        try:
            start, limit, registers = await self._client.call(
                verbs.APPEND_GROUP,
                level,
                pack_values(request.values),
                [None if column is None else column[0] for column in columns],  # all share them
                conditions,
                payload=request.values,
                fate=None if conditions.sequence is None else verbs.Fate.REPEATED,
            )
        except RegisterMismatchError as error:
            raise self._mirror.hear_refusal(error, conditions) from None
        self._mirror.hear_registers(registers, conditions.update)
        self._mirror.note_appended(limit, level)
        return range(start, limit)

    def appends_of(self, producer_id: str) -> GroupAppend:
        """Appends of one object have numbers of their own, unless the caller gives them."""
        made = ClientSequence(
            producer_id,
            self.append_group,
            make_tag=self._client.make_tag,
            window=self.producer_window,
        )
        return made.append

    def gather(self, conditions: AppendConditions, durability: AnyDurability | None) -> SentRecords:
        """Send records in parts."""
        return SentRecords(
            self._client,
            self._outbox,
            self._mirror,
            conditions,
            self.level(durability),
            max_record_bytes=self.max_record_bytes,
        )

    def register(self, name: str) -> str | None:
        """Return the value of a register, as last heard."""
        return self._mirror.registers.get(name)

    def last_sequence(self, producer_id: str) -> Callable[[], Awaitable[int]]:
        """Return what asks for the highest number that was given, or that a transaction got."""
        return functools.partial(self._client.call, verbs.LAST_SEQUENCE, producer_id)

    async def take_fence(self, owner: str, register: str) -> str:
        """As of :class:`AppendBackend`."""
        token: str = await self._client.call(verbs.FENCE, owner, register)
        self._mirror.registers = {**self._mirror.registers, register: token}
        return token

    async def open_stream(self, name: str, metadata: Mapping[str, str]) -> None:
        """As of :class:`AppendBackend`."""
        await self._client.call(verbs.OPEN_STREAM, name, dict(metadata))

    async def close_stream(self, name: str) -> None:
        """As of :class:`AppendBackend`."""
        self._outbox.flush()
        await self._client.call(verbs.CLOSE_STREAM, name)

    async def wait_durable(self, offset: int, level: Durability | None) -> None:
        """As of :class:`AppendBackend`."""
        self._outbox.flush()
        self._mirror.hear(await self._client.call(verbs.WAIT_DURABLE, offset, level))

    async def flush(self) -> None:
        """As of :class:`AppendBackend`."""
        self._outbox.flush()
        self._mirror.hear(await self._client.call(verbs.FLUSH))

    async def trim(self, before: int) -> int:
        """As of :class:`AppendBackend`."""
        head: int = await self._client.call(verbs.TRIM, before)
        self._mirror.head = max(self._mirror.head, head)
        return head

    async def rotate(self) -> None:
        """As of :class:`AppendBackend`."""
        await self._client.call(verbs.ROTATE)

    def send_gathered(self) -> None:
        """Send the records that were gathered: what is sent next was asked later."""
        self._outbox.flush()
