"""Stream: one stream of the protocol, which is a log with its state in registers.

A message is a record. What the protocol keeps of a stream beside its content is kept in registers whose names
begin with ``http.``, and changes in one step with the records that it belongs to: after a crash a producer's
number, a close and the content agree.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from walstore.core.batches.append_request import pack_headers
from walstore.core.faces.transaction import Transaction
from walstore.core.offset_range import OffsetRange
from walstore.http.accepted import CLOSED_REGISTER, Accepted, closing
from walstore.http.content import MOST_MESSAGES
from walstore.http.protocol import (
    CLOSED,
    NEXT_OFFSET,
    ProducerMark,
    RefusedError,
    format_offset,
)
from walstore.log.wal import Wal
from walstore.records import Durability
from walstore.serve.fetching import Fetching

FIRST_OFFSET: Final = 1
"""Of every log."""
_CONFIG: Final = "http.stream"
_DELETED: Final = "http.deleted"
_FORK: Final = "http.fork."
MOST_FORKS: Final = 200
_MOST_RECORDS: Final = 16_384
"""Of one answer, however short they are."""
_TURN_RECORDS: Final = 500
"""After so many the event loop has a turn."""
_SHARED_BYTES: Final = 64 * 1024
_ANY: Final = 1 << 62
_FOLLOWING: Final = "http.following"
"""Header of a record: how many messages of the same request come after it, if any."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a stream was created with."""

    content_type: str = "application/octet-stream"
    ttl_seconds: int | None = None
    expires_at: str | None = None
    """RFC 3339, as it was given."""
    source: str | None = None
    """Name of the log that it is a fork of."""
    source_id: str | None = None
    """Log ID of that one."""
    fork_offset: str | None = None
    """As it was given; None for the tail at that time."""
    sub_offset: int = 0
    base: int = FIRST_OFFSET
    """Offset of the first record of its own: those below are the source's."""

    @property
    def has_lifetime(self) -> bool:
        """Whether it is deleted some time."""
        return self.ttl_seconds is not None or self.expires_at is not None


class Appended(NamedTuple):
    """What became of an append."""

    tail: int
    is_new: bool
    is_closed: bool
    mark: ProducerMark | None
    """The last that was accepted of the producer."""


class StreamChunk(NamedTuple):
    """Records from an offset on."""

    values: Sequence[bytes]
    start: int
    limit: int
    is_up_to_date: bool
    is_closed: bool
    """Whether nothing will ever follow."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no records."""
        return self.limit == self.start

    @property
    def size_bytes(self) -> int:
        """Bytes of the records."""
        return sum(map(len, self.values))


class Stream:
    """One stream. Its log belongs to whoever opened it."""

    def __init__(
        self, name: str, wal: Wal, source: Stream | None, fetching: Fetching | None = None
    ) -> None:
        """Take over a log; ``source`` is the stream that it is a fork of, if it is one.

        ``fetching`` reads for all streams of a server.
        """
        self.name = name
        self.wal = wal
        self._fetching = fetching or Fetching()
        self.source = source
        self.config = StreamConfig(**json.loads(wal.registers.get(_CONFIG, "{}")))
        self.touched = 0.0
        """When it was last read or appended to, for its time to live."""
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Timeout] = set()
        self.has_ended = False
        """Whether live readers that have read everything shall go: closed, deleted, or the server stops."""
        # The last short chunk up to the tail, and what it was read at: all live readers need the same.
        self._last: tuple[int, int, bool, StreamChunk] | None = None
        self._accepted = Accepted(wal.registers)
        self._is_sure = True

    # -- state -------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether its log is open, and those that it is a fork of."""
        return not self.wal.is_closing and (self.source is None or self.source.is_usable)

    @property
    def is_new(self) -> bool:
        """Whether the log was made and nothing more: a creation may go on from there."""
        return _CONFIG not in self.wal.registers and self.wal.tail == self.wal.head

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for ever, durably."""
        return CLOSED_REGISTER in self.wal.registers

    @property
    def is_deleted(self) -> bool:
        """Whether it is kept only for its forks."""
        return _DELETED in self.wal.registers

    @property
    def _shift(self) -> int:
        """How much higher offsets of the stream are than those of its log."""
        return self.config.base - FIRST_OFFSET

    @property
    def head(self) -> int:
        """Offset of the first record that is still there."""
        if self.source is not None and self.source.head < self.config.base:
            return self.source.head
        return self._shift + self.wal.head

    @property
    def tail(self) -> int:
        """Offset after the last record that can be read."""
        return self._shift + self.wal.visible_limit

    def forks(self) -> dict[str, str]:
        """Return the log IDs of its forks by their names, as noted; some may be gone."""
        return {
            name.removeprefix(_FORK): log_id
            for name, log_id in self.wal.registers.items()
            if name.startswith(_FORK)
        }

    # -- creating ----------------------------------------------------------------------------

    async def create(
        self, config: StreamConfig, values: Sequence[bytes], *, is_closed: bool
    ) -> None:
        """Give a new log its configuration and first records, all at once."""
        update = {_CONFIG: json.dumps(asdict(config))}
        if is_closed:
            update.update(closing())
        async with self.wal.transaction(
            update=update, durability=_synced(self.wal.level(None))
        ) as txn:
            await _add(txn, values)
        self._accepted = Accepted({**self.wal.registers, **update})
        self.config = config

    async def note_fork(self, name: str, log_id: str) -> None:
        """Note a fork, before it begins to exist."""
        noted = self.forks()
        if name not in noted and len(noted) >= MOST_FORKS:
            raise RefusedError(429, f"a stream has up to {MOST_FORKS} forks")
        await self._set({_FORK + name: log_id})

    async def forget_fork(self, name: str) -> None:
        """Forget a fork that is gone."""
        await self._set({_FORK + name: None})

    async def delete_softly(self) -> None:
        """Keep it for its forks only."""
        await self._set({_DELETED: "deleted"})
        self.end()

    async def _set(self, update: Mapping[str, str | None]) -> None:
        async with self.wal.transaction(update=update, durability=Durability.DISK):
            pass

    # -- appending ---------------------------------------------------------------------------

    async def append(
        self,
        values: Sequence[bytes],
        *,
        sequence: str | None,
        producer: ProducerMark | None,
        is_last: bool,
        is_empty: bool,
        durability: str | None,
    ) -> Appended:
        """Append records, close the stream, or both, in one step.

        ``is_empty``: nothing was given, so that closing is all there is to do. Returns once that is as
        safe as ``durability`` says. RefusedError if the protocol forbids it: also that is told only when
        what it goes by is safe.
        """
        level = self.wal.level(durability)  # type: ignore[arg-type]
        async with self._turn:
            if not self._is_sure:
                await self.wal.flush()
                self._accepted = Accepted(self.wal.registers)
                self._is_sure = True
            known = self._accepted
            try:
                update = known.check(sequence, producer, is_last=is_last, is_empty=is_empty)
            except RefusedError as error:
                if known.is_closed:
                    error.headers = {
                        CLOSED: "true",
                        NEXT_OFFSET: format_offset(self._shift + self.wal.tail),
                        **error.headers,
                    }
                await self.wal.flush()
                raise
            if update is not None:
                self._is_sure = False  # cancelled or failed half way, it may have been accepted
                await self._accept(values, update)
                known.remember(update)
                self._is_sure = True
            tail, is_closed, mark = self.wal.tail, known.is_closed, known.mark(producer)
        if update is None or not values:
            await self.wal.flush()
        if level is not Durability.MEMORY and tail > FIRST_OFFSET:
            await self.wal.wait_durable(tail - 1, level)
        if is_last:
            self.end()
        return Appended(self._shift + tail, update is not None, is_closed, mark)

    async def _accept(self, values: Sequence[bytes], update: Mapping[str, str | None]) -> None:
        if len(values) == 1 and not update:
            await self.wal.append(values[0], durability=Durability.MEMORY)
            return
        if len(values) == 1:
            await self.wal.append_many(values, update=update, durability=Durability.MEMORY)
            return
        async with self.wal.transaction(update=update, durability=Durability.MEMORY) as txn:
            await _add(txn, values)

    # -- reading -----------------------------------------------------------------------------

    async def read(
        self, start: int, most_bytes: int, stop: int | None = None, most_record_bytes: int = _ANY
    ) -> StreamChunk:
        """Return records from ``start`` on, below ``stop``, without waiting for any.

        They end before one that is larger than ``most_record_bytes``; if it is the first, only its place is
        returned. OffsetTrimmedError if they were removed.
        """
        is_closed = self.is_closed  # before the tail: what was closed has its last record
        tail = self.tail
        last = self._last
        if last is not None and last[:3] == (start, tail, is_closed):
            return last[3]
        values: list[bytes] = []
        limit = tail if stop is None else min(stop, tail)
        at = await self.gather(values, start, limit, most_bytes, most_record_bytes)
        chunk = StreamChunk(values, start, at, at == tail, is_closed and at == tail)
        if values and at == tail and sum(map(len, values)) <= _SHARED_BYTES:
            self._last = (start, tail, is_closed, chunk)
        return chunk

    def seen(self, chunk: StreamChunk) -> StreamChunk:
        """Return a chunk that was read before as it would be read now."""
        is_closed, tail = self.is_closed, self.tail
        at_end = chunk.limit == tail
        return chunk._replace(is_up_to_date=at_end, is_closed=is_closed and at_end)

    async def gather(
        self,
        values: list[bytes],
        at: int,
        limit: int,
        most_bytes: int,
        most_record_bytes: int = _ANY,
    ) -> int:
        """Add records to ``values`` until there are ``most_bytes``; return the offset after them.

        They end before one that is larger than ``most_record_bytes``; if it is the first, after it.
        """
        base = self.config.base
        size = 0
        if self.source is not None and at < base:
            found = len(values)
            start, end = at, min(limit, base)
            at = await self.source.gather(values, at, end, most_bytes, most_record_bytes)
            if at > start and not values:
                return at
            size = sum(map(len, values[found:]))
        OffsetRange(self.head, self.tail).check_head(at)
        while at < limit and at >= base and size < most_bytes and len(values) < _MOST_RECORDS:
            reader = self.wal.reader(at - self._shift, stop=limit - self._shift, follow=False)
            batch = await self._fetching.fetch(
                self.wal,
                reader,
                at - self._shift,
                stop=limit - self._shift,
                most_records=_MOST_RECORDS - len(values),
                most_bytes=most_bytes - size,
            )
            if not len(batch):
                break
            if next(batch.record_sizes()) > most_record_bytes:
                return at if values else at + 1
            for value in batch.first(most_bytes - size).values:
                at += 1
                size += len(value)
                values.append(value)
                if size >= most_bytes:
                    break
        return at

    async def wait(self, start: int, seconds: float) -> None:
        """Wait until there are records from ``start`` on, or the stream has ended, or time is up."""
        if self.tail > start or self.has_ended:
            return
        reader = self.wal.follow(start - self._shift)
        waiting = asyncio.timeout(seconds)
        try:
            async with waiting:
                self._waiting.add(waiting)
                await reader.fetch(max_records=1, max_bytes=1)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(waiting)

    def end(self) -> None:
        """Let live readers look again: the stream was closed or deleted."""
        self.has_ended = True
        now = asyncio.get_running_loop().time()
        while self._waiting:  # each is ended once, whoever else ends the stream
            waiting = self._waiting.pop()
            if not waiting.expired():  # its time may be up just now
                waiting.reschedule(now)

    async def following(self, offset: int) -> tuple[int, int]:
        """Return how many messages one request wrote from an offset on, and the bytes of the first.

        (0, 0) at the tail. It is what a fork may take beyond that offset.
        """
        if self.source is not None and offset < self.config.base:
            return await self.source.following(offset)
        if offset >= self.tail:
            return 0, 0
        reader = self.wal.reader(offset - self._shift, follow=False)
        batch = await reader.fetch(max_records=1, max_bytes=1)
        more = batch.headers[0].get(_FOLLOWING, b"0")
        return 1 + int(more), len(batch.values[0])


def _synced(level: Durability) -> Durability:
    """Return a level that a creation needs at least."""
    return Durability.DISK if level is Durability.MEMORY else level


async def _add(txn: Transaction, values: Sequence[bytes]) -> None:
    headers = [_packed(left) for left in reversed(range(len(values)))]
    for at in range(0, len(values), _TURN_RECORDS):
        if at:
            await asyncio.sleep(0)  # noqa: TID251 - no wait is meant
        end = at + _TURN_RECORDS
        await txn.append_rows(values[at:end], headers[at:end])


@lru_cache(MOST_MESSAGES)
def _packed(following: int) -> bytes | None:
    """Return the headers of a record that so many messages of the same request come after."""
    return pack_headers({_FOLLOWING: str(following).encode()}) if following else None
