"""RemoteSource: the records of a served log for a reader, and what the client knows of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

from walstore.core.batches.batch import Batch
from walstore.core.batches.conditions import AppendConditions
from walstore.errors import (
    FencedError,
    OffsetTrimmedError,
    RegisterMismatchError,
    StorageUnavailableError,
    WalError,
)
from walstore.net.remote.client import Answer, Client
from walstore.net.remote.kept_answer import KeptAnswer
from walstore.net.wire.message import ProtocolViolationError
from walstore.net.wire.records import unpack_batches
from walstore.net.wire.verbs import OFFSET_AT, READ, REFRESH
from walstore.records import Durability

_WAIT_SECONDS: Final = 30.0
"""How long the server waits for records before it answers without any."""
_BEHIND_SECONDS: Final = 5.0
"""How long a copy has to get records that the client has heard of."""
_READ_BYTES: Final = 1 << 20


class LogMirror:
    """The limits and registers of a served log, as last heard. Limits go back with a new epoch only."""

    __slots__ = (
        "durability",
        "durable_limit",
        "epoch",
        "head",
        "registers",
        "replicated_limit",
        "tail",
        "tier_head",
        "uploaded_limit",
        "visible_limit",
    )

    def __init__(self) -> None:
        self.head = self.tail = self.durable_limit = self.visible_limit = self.uploaded_limit = 1
        self.tier_head: int | None = None
        self.replicated_limit: int | None = None
        self.registers: Mapping[str, str] = {}
        self.durability = Durability.DISK
        """Level of an append that names none."""
        self.epoch = 0

    def begin(self, limits: Any, epoch: int) -> None:
        """Take over what a server said when it greeted: what is not durable may be gone in a new epoch."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.tail = self.durable_limit = self.visible_limit = 1
            self.replicated_limit = None
        self.hear(limits)

    def hear_registers(
        self, registers: Mapping[str, str] | None, update: Mapping[str, str | None] | None
    ) -> None:
        """Take over the registers after a change; None if they are many: then only the change is known."""
        if registers is None:
            changed = {**self.registers, **(update or {})}
            registers = {name: value for name, value in changed.items() if value is not None}
        self.registers = registers

    def hear_refusal(self, error: RegisterMismatchError, conditions: AppendConditions) -> WalError:
        """Return the error of a refused append: another owner of its fence, or a condition that failed."""
        fence = conditions.fence
        if fence is None:
            return error
        self.registers = dict(error.actual)
        found, token = error.actual.get(fence), (conditions.expect or {})[fence]
        if found == token:
            return error
        return FencedError(f"{found!r} took over from {token!r}; nothing was written")

    def hear(self, limits: Any) -> None:
        """Take over what the server said: see :func:`walstore.serve.calls.limits`."""
        match limits:
            case [
                int(head),
                int(tail),
                int(durable),
                int(visible),
                int(uploaded),
                tier_head,
                replicated,
            ]:
                self.head = max(self.head, head)
                self.tail = max(self.tail, tail)
                self.durable_limit = max(self.durable_limit, durable)
                self.visible_limit = max(self.visible_limit, visible)
                self.uploaded_limit = max(self.uploaded_limit, uploaded)
                self.tier_head = tier_head
                if replicated is not None:
                    self.replicated_limit = max(self.replicated_limit or 1, replicated)
            case _:
                raise StorageUnavailableError("the server's limits of the log are none")

    def note_appended(self, limit: int, level: Durability | None) -> None:
        """Take over that this client appended below ``limit``; None is the log's own level."""
        level = level or self.durability
        self.tail = max(self.tail, limit)
        if level is Durability.MEMORY:
            return
        self.durable_limit = max(self.durable_limit, limit)
        if self.replicated_limit is None:
            self.visible_limit = max(self.visible_limit, limit)
        elif level is not Durability.DISK:
            self.replicated_limit = max(self.replicated_limit, limit)
            self.visible_limit = max(self.visible_limit, limit)


class RemoteSource:
    """What one reader reads from. Answers the reader's wait together with the records that ended it."""

    def __init__(
        self, client: Client, mirror: LogMirror, visibility: Literal["durable", "accepted"]
    ) -> None:
        self._client = client
        self._mirror = mirror
        self._visibility = visibility
        # Records that came with the answer to a wait, from the position that was waited for.
        self._arrived: list[Batch] = []
        self._seen_limit = 1
        # What a cancelled call asked for, for the next one.
        self._reading, self._searching = KeptAnswer(client), KeptAnswer(client)
        self._found: tuple[tuple[int, int], int] | None = None

    @property
    def head(self) -> int:
        """First offset that can be read."""
        return self._mirror.head

    @property
    def limit(self) -> int:
        """Offset after the last record that is visible, as last heard."""
        if self._visibility == "accepted":
            return max(self._mirror.tail, self._seen_limit)
        return max(self._mirror.visible_limit, self._seen_limit)

    @property
    def tail(self) -> int:
        """Next offset to be assigned, as last heard."""
        return max(self._mirror.tail, self._seen_limit)

    async def refresh(self) -> None:
        """Ask for the present limits. If cancelled they are heard nevertheless, when they come."""
        request = self._client.send(REFRESH)
        request.future.add_done_callback(self._refreshed)
        await asyncio.wait((request.future,))
        request.future.result()

    async def wait_limit(self, limit: int) -> None:
        """Return when the visible limit has reached ``limit``; raises when the log or the client closes."""
        while self.limit < limit:
            self._arrived = await self._request(limit - 1, None, _READ_BYTES, _WAIT_SECONDS)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""
        arrived, self._arrived = self._arrived, []
        while not arrived or arrived[0].start != position:
            # The records are there, so the server answers at once; unless it has a copy that lacks them.
            arrived = await self._request(position, limit, max_bytes, _BEHIND_SECONDS)
            if not arrived:
                raise StorageUnavailableError(
                    f"the copy at {self._client.address} has less of the log than another one had; "
                    "read again later, or elsewhere"
                )
        return [
            batch if batch.limit <= limit else batch.slice(batch.start, limit)
            for batch in arrived
            if batch.start < limit
        ]

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first visible offset at or after a time, or the limit if all are older."""
        key = timestamp_us, self._mirror.epoch
        if self._found is None or self._found[0] != key:
            asked = partial(self._client.send, OFFSET_AT, timestamp_us)
            found, _ = await self._searching.get(key, asked)
            self._found = key, found  # until a read there has its answer
        self._seen_limit = max(self._seen_limit, self._found[1])
        return self._found[1]

    def _refreshed(self, answer: asyncio.Future[Answer]) -> None:
        if answer.exception() is None:
            limits, self._mirror.registers = answer.result()[0]
            self._mirror.hear(limits)

    async def _request(
        self, position: int, stop: int | None, max_bytes: int, seconds: float
    ) -> list[Batch]:
        wanted = position, stop, max_bytes, seconds, self._visibility
        key = position, self._mirror.epoch
        try:
            answer, payload = await self._reading.get(
                key, partial(self._client.send, READ, *wanted)
            )
        except OffsetTrimmedError as error:
            self._mirror.head = max(self._mirror.head, error.head)
            raise
        match answer:
            case [list(intervals), limits, int(visible)]:
                pass
            case _:
                raise StorageUnavailableError("the server's answer to a read is none")
        self._mirror.hear(limits)
        self._seen_limit = max(self._seen_limit, visible)
        self._found = None
        try:
            return unpack_batches(intervals, payload)
        except ProtocolViolationError as error:
            raise StorageUnavailableError(f"the server sent {error}") from error
