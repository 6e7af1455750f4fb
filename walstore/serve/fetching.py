"""Fetching: reads records for the answers of a server, large batches one at a time.

A batch that is larger than an answer is read whole, since its checksum covers all of it. Of such a batch each
client is sent one part after the other, and many clients read the same. So a few of them stay in memory, and
what all of them take is bounded, however many are asked for at the same time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from walstore.core.batches.batch import Batch
from walstore.core.batches.derived import ConcatBatch
from walstore.core.read.reader import Reader

_MOST_RECORDS: Final = 65_536
_LARGE_BYTES: Final = 1 << 20
"""Batches of up to so much are read side by side."""
_MOST_BYTES: Final = 64 << 20


class Fetching:
    """Reads for all clients of a server. Belongs to its event loop."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        """Large batches in memory take up to ``most_bytes`` together, unless one alone takes more."""
        self._most_bytes = most_bytes
        # Large batches by their log and first offset, the one used last at the end; whether each was used
        # since the last look.
        self._kept: OrderedDict[tuple[int, int], tuple[object, Batch]] = OrderedDict()
        self._used: set[tuple[int, int]] = set()
        # Set while no large batch is being read; another one for each that is.
        self._has_read = asyncio.Event()
        self._has_read.set()
        self._turns: WeakValueDictionary[tuple[int, int], asyncio.Lock] = WeakValueDictionary()

    @property
    def kept_bytes(self) -> int:
        """What the batches that are kept take."""
        return sum(batch.nbytes for _, batch in self._kept.values())

    def tidy(self) -> None:
        """Forget what nobody has read since this was called last."""
        for key in self._kept.keys() - self._used:
            del self._kept[key]
        self._used.clear()

    async def fetch(
        self,
        log: object | None,
        reader: Reader,
        position: int,
        *,
        stop: int | None = None,
        most_records: int = _MOST_RECORDS,
        most_bytes: int,
    ) -> Batch:
        """Return what a reader of ``log`` finds at a position, without waiting for it; None for a log whose
        records may still change.

        As :meth:`walstore.core.read.reader.Reader.fetch`, whose batch may be larger than ``most_bytes``: use
        what is needed of it, and drop it before anything is waited for.
        """
        # Those who ask for the same at the same time wait for the first of them.
        turn = self._turns.setdefault((id(log), position), asyncio.Lock())
        async with turn:
            reader.seek(position)
            await reader.wait(0)  # raises what reading would
            part = partial(self._part, log, position, stop, most_records)
            if (kept := part()) is not None:
                return kept
            coming = await reader.coming_bytes()
            if coming <= max(most_bytes, _LARGE_BYTES):
                return await self._read(log, reader, most_records, most_bytes)
            while not self._has_read.is_set():
                await self._has_read.wait()
                if (kept := part()) is not None:
                    return kept
                await asyncio.sleep(0)  # noqa: TID251 - who needs what was just read goes first
            self._has_read = asyncio.Event()
            try:
                self._make_room(coming)
                return await self._read(log, reader, most_records, most_bytes)
            finally:
                self._has_read.set()

    def _part(
        self, log: object | None, position: int, stop: int | None, most_records: int
    ) -> Batch | None:
        """Return what is kept from a position on."""
        for key, (owner, batch) in self._kept.items():
            if owner is log and batch.start <= position < batch.limit:
                self._kept.move_to_end(key)
                self._used.add(key)
                limit = min(batch.limit, position + most_records)
                return batch.slice(position, limit if stop is None else min(stop, limit))
        return None

    async def _read(
        self, log: object | None, reader: Reader, most_records: int, most_bytes: int
    ) -> Batch:
        batch = await reader.fetch(
            max_records=most_records, max_bytes=most_bytes, max_wait_seconds=0
        )
        reader.seek(batch.limit)  # what was read beyond that is not kept
        last = batch.parts[-1] if isinstance(batch, ConcatBatch) else batch
        if log is not None and last.nbytes > max(most_bytes, _LARGE_BYTES):
            self._make_room(last.nbytes)
            key = id(log), last.start
            self._kept[key] = log, last
            self._used.add(key)
        return batch

    def _make_room(self, size_bytes: int) -> None:
        """Forget those used longest ago until there is room for another one, or nothing is left."""
        while self._kept and self.kept_bytes + size_bytes > self._most_bytes:
            self._kept.popitem(last=False)
