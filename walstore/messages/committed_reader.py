"""CommittedReader: an iterator over the committed messages of one log. The sequencer decides; this
reads."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Self

from walstore.core.batches.batch import Batch
from walstore.core.faces.readable_log import ReadableLog
from walstore.errors import CorruptionError
from walstore.messages.producers import ReadCheckpoint
from walstore.messages.sequencer import (
    HORIZON_SECONDS,
    RING_BYTES,
    RING_RECORDS,
    Outcome,
    Sequencer,
)
from walstore.records import Record, Start

logger = logging.getLogger("walstore.messages")


class CommittedReader:
    """Yields the committed messages of a log, each once, and follows the log with ``follow=True``.

    Messages of one transaction come together, at the place of their acknowledgement, so offsets are not
    in order between producers; those of one producer are. A transaction that waits for its
    acknowledgement delays no other producer. Records without a stamp are yielded at their place.

    Use with ``async for`` or ``anext``; one task at a time. Errors are those of
    :class:`walstore.Reader`, and FormatVersionError for a stamp of a newer version. After an error or a
    cancellation it continues with the first message not yet delivered.
    """

    def __init__(
        self,
        log: ReadableLog,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        checkpoint: ReadCheckpoint | None = None,
        stop: int | None = None,
        follow: bool = True,
        ring_records: int = RING_RECORDS,
        ring_bytes: int = RING_BYTES,
        horizon_seconds: float = HORIZON_SECONDS,
    ) -> None:
        """Begin at ``start``, or where ``checkpoint`` was taken; then ``start`` is ignored.

        ``stop`` is an exclusive last offset, ``follow`` waits for new records at the end, both as for
        :meth:`walstore.Wal.reader`; the rest as for :class:`Sequencer`. A transaction whose first
        messages are below ``start`` is delivered without them; begin at "earliest" or at a checkpoint
        where that matters.
        """
        self._log = log
        self._sequencer = Sequencer(
            checkpoint,
            ring_records=ring_records,
            ring_bytes=ring_bytes,
            horizon_seconds=horizon_seconds,
        )
        self._reader = log.reader(
            checkpoint.position if checkpoint else start, stop=stop, follow=follow
        )
        self._batches: AsyncIterator[Batch] = self._reader.batches()
        self._records: Sequence[Record] = ()
        self._next = 0
        self._replay: AsyncIterator[Record] | None = None

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._replay = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        sequencer = self._sequencer
        while True:
            if sequencer.is_delivering:
                message = await self._deliver()
                if message is not None:
                    return message
                continue
            if self._next == len(self._records):
                self._records = (await anext(self._batches)).records()
                self._next = 0
            record = self._records[self._next]
            outcome = sequencer.step(record)
            self._next += 1
            if outcome is Outcome.ROLLED_BACK_TO_EARLIER:
                logger.warning(
                    "record %d goes back to an older state of its producer; its messages may be "
                    "delivered twice from here on",
                    record.offset,
                )

    @property
    def position(self) -> int:
        """Every record below it is settled or pending; reading continues there after a restart.

        It stays at an acknowledgement until the last message of its transaction was delivered and the
        next one is requested.
        """
        if self._sequencer.position:
            return self._sequencer.position
        if self._records:
            return self._records[0].offset
        return self._reader.position

    @property
    def pending(self) -> dict[bytes, int]:
        """Producers with a transaction that is not settled, and the offset at which it begins."""
        return dict(self._sequencer.pending)

    def checkpoint(self) -> ReadCheckpoint:
        """Return where the messages delivered so far end, also in the middle of a transaction.

        Save it together with the results of the messages, and pass it to the next reader, which
        continues with the message after the last one delivered. Keep the log from ``pin`` on until
        then.
        """
        found = self._sequencer.checkpoint()
        return ReadCheckpoint(self.position, found.producers)

    async def _deliver(self) -> Record | None:
        """Return the next message of the commit, or None if that was the last."""
        sequencer = self._sequencer
        while missing := sequencer.replay:
            try:
                if self._replay is None:
                    self._replay = self._log.reader(missing.start, stop=missing.stop, follow=False)
                message = sequencer.replayed(await anext(self._replay))
            except StopAsyncIteration:
                self._replay = None
                raise CorruptionError(
                    f"the records {missing} of a transaction are not there when read again",
                    path=repr(self._log),
                ) from None
            except BaseException:
                self._replay = None  # the next call begins where this one ended
                raise
            if message is not None:
                return message
        self._replay = None
        return sequencer.take()
