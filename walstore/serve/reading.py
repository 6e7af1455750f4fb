"""Reading: the answers to READ requests, each of what there is room for, or of one record."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from walstore.batches.batch import Batch
from walstore.batches.derived import ConcatBatch
from walstore.read.reader import Reader
from walstore.serve.answer import PackedAnswer, PreparedAnswer
from walstore.serve.services import Service
from walstore.wire.message import Message, ProtocolViolationError
from walstore.wire.records import pack_batch

_MOST_WAIT_SECONDS: Final = 60.0
_MOST_RECORDS: Final = 65_536
_WHOLE_BYTES: Final = 8 << 20
"""A batch of up to so much is sent whole if there is room."""


class Reading:
    """Reads for all clients of a server. Belongs to its event loop.

    Of a batch that is too large for one answer each client is sent one part after the other, and many clients
    read the same: it stays in memory until another one is read, or nobody has read of it for a moment.
    """

    def __init__(self) -> None:
        # The log of that batch, the batch, and whether it was used since the last look.
        self._kept: tuple[object, Batch] | None = None
        self._is_used = False
        self._turns: WeakValueDictionary[tuple[int, int], asyncio.Lock] = WeakValueDictionary()

    def tidy(self) -> None:
        """Forget what nobody has read since this was called last."""
        if not self._is_used:
            self._kept = None
        self._is_used = False

    async def read(
        self, service: Service, message: Message, most_bytes: int
    ) -> PackedAnswer | PreparedAnswer:
        """Return records from a position: what there is, or what comes within the time.

        A group that has more than about ``most_bytes`` is sent in parts: all of it is safe before anybody
        reads a record of it.
        """
        match message.head:
            case [
                int(position),
                int() | None as stop,
                int(wanted_bytes),
                int() | float() as wait,
                str(shown),
            ]:
                pass
            case _:
                raise ProtocolViolationError(
                    "a read that is none: its head is position, stop or nil, bytes, seconds and visibility"
                )
        if shown not in {"durable", "accepted"}:
            raise ValueError(f"visibility must be 'durable' or 'accepted', not {shown!r}")
        seconds = max(0.0, min(float(wait), _MOST_WAIT_SECONDS))
        reader = await service.reader(position, stop, shown, seconds)
        if reader is None or not await reader.wait(seconds):
            return PackedAnswer([[], *service.limits(shown)], ())
        wanted_bytes = max(1, min(wanted_bytes, most_bytes))
        log = service.log if shown == "durable" else None

        async def make(room_bytes: int) -> PackedAnswer:
            reader.seek(position)
            batch = await self._fetch(log, reader, position, stop, room_bytes)
            if room_bytes < wanted_bytes or batch.nbytes > _WHOLE_BYTES:
                batch = batch.first(room_bytes)
            reader.seek(position)  # what was read beyond that is not kept
            intervals, frames = pack_batch(batch) if len(batch) else ([], [])
            return PackedAnswer([intervals, *service.limits(shown)], frames)

        return PreparedAnswer(make, wanted_bytes)

    async def _fetch(
        self, log: object, reader: Reader, position: int, stop: int | None, most_bytes: int
    ) -> Batch:
        # Those who ask for the same at the same time wait for the first of them.
        turn = self._turns.setdefault((id(log), position), asyncio.Lock())
        async with turn:
            if await reader.wait(0) and (kept := self._find(log, position)) is not None:
                limit = min(kept.limit, position + _MOST_RECORDS)
                return kept.slice(position, limit if stop is None else min(stop, limit))
            batch = await reader.fetch(max_records=_MOST_RECORDS, max_bytes=most_bytes, max_wait=0)
            last = batch.parts[-1] if isinstance(batch, ConcatBatch) else batch
            if log is not None and last.nbytes > max(most_bytes, _WHOLE_BYTES):
                self._kept, self._is_used = (log, last), True
            return batch

    def _find(self, log: object, position: int) -> Batch | None:
        if self._kept is None or self._kept[0] is not log:
            return None
        batch = self._kept[1]
        if not batch.start <= position < batch.limit:
            return None
        self._is_used = True
        return batch
