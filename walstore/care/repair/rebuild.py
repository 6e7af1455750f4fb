"""Rebuilding damaged batches from stored records: bit for bit if possible. Pure: no I/O but the copy's.

The original is known in part: the records, the rest of the damaged bytes, and the CRC of each batch, which
its header contains and the next batch repeats as ``previous_crc``. So a batch is built again with each of the
few values that the unknown fields can have had; if the CRC matches, it is the original.

Where no attempt succeeds, new batches are made of the records. The last of them gets the CRC that the next
batch of the log names, by four bytes in a column that readers skip, so the next batch stays as it is.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import msgpack
from crc32c import crc32c

from walstore.core.batches.batch import Batch
from walstore.core.batches.batch_builder import BatchBuilder, marks_column, split
from walstore.core.batches.derived import ConcatBatch
from walstore.core.format import codec, frame
from walstore.core.format.frame import Column, ColumnKind
from walstore.core.format.ledger import Ledger, Marks, StreamInfo

BATCH_BYTES: Final = 1 << 20
"""New batches have about as many bytes of values."""
FILLER_KIND: Final = 128
"""Column of a new batch that contains only the four bytes that give it its CRC."""
_FILLER_BYTES: Final = 4
_MOST_PLACES: Final = 4
_WORD: Final = struct.Struct("<I")


@dataclass(slots=True, kw_only=True)
class Gap:
    """Bytes between, before or after the whole batches of a segment."""

    position: int
    """Where they begin in the file."""
    data: bytes = b""
    """The bytes that are left."""
    size: int | None = None
    """Their original number; None if unknown."""
    start: int
    limit: int
    """The offsets ``[start, limit)`` were there."""
    previous_crc: int
    wanted_crc: int | None
    """CRC of the last batch there; None if nothing repeats it."""
    epoch: int
    next_epoch: int
    timestamp_us: int
    """Of the record before."""
    ledger: bytes
    """The ledger before the gap, as marks."""
    synced_limit: int
    salt: int | None = None
    """Of the segment; None for one of version 1."""
    is_last: bool = False
    """Whether the log ends with it."""


class Rebuilder:
    """Makes the batches of one gap, in order. Use :meth:`exact`, then :meth:`new`."""

    def __init__(self, gap: Gap, read: Callable[[int, int], Iterator[Batch]]) -> None:
        """``read`` returns the stored records of an interval of offsets, in order."""
        self.gap = gap
        self.next_offset = gap.start
        self.size_bytes = 0
        """Of the batches that were made."""
        self._read_copy = read
        self._previous_crc, self._epoch = gap.previous_crc, gap.epoch
        self._timestamp_us = gap.timestamp_us
        self._ledger = Ledger()
        if gap.ledger:
            self._ledger.apply(Marks.decode(gap.ledger))

    @property
    def is_done(self) -> bool:
        """Whether all of the gap is made, exactly as it was."""
        gap = self.gap
        is_filled = gap.size is None or self.size_bytes == gap.size
        is_chained = gap.wanted_crc in (None, self._previous_crc)
        return self.next_offset == gap.limit and is_filled and is_chained

    @property
    def _position(self) -> int:
        """Where the next batch begins in its file."""
        return self.gap.position + self.size_bytes

    @property
    def _at(self) -> bytes:
        return frame.place(self.gap.salt, self._position)

    # -- as it was ---------------------------------------------------------------------------

    def exact(self) -> Iterator[bytes]:
        """Yield batches that are what was written, until that is all or one cannot be made."""
        while not self.is_done:
            found = self._kept() or self._matching()
            if found is None:
                return
            header = frame.parse_header(memoryview(found), 0)
            assert header is not None
            marks = frame.marks_of(memoryview(found), header)
            if marks is not None:
                self._ledger.apply(Marks.decode(marks))
            self._advance(header.limit, header.crc, header.max_timestamp_us, header.length)
            self._epoch = header.epoch
            yield found

    def _kept(self) -> bytes | None:
        """Return the batch that is still whole, if there is one."""
        view = memoryview(self.gap.data)
        header = frame.parse_header(view, self.size_bytes)
        if (
            header is None
            or (header.start, header.previous_crc) != (self.next_offset, self._previous_crc)
            or not self._epoch <= header.epoch <= self.gap.next_epoch
            or not frame.is_whole(view, header, self._at)
        ):
            return None
        return bytes(view[header.position : header.end])

    def _matching(self) -> bytes | None:
        for length, limit, crcs in self._places():
            if self.next_offset <= limit <= self.gap.limit:
                found = self._build(length, limit, crcs)
                if found is not None:
                    return found
        return None

    def _places(self) -> Iterator[tuple[int, int, set[int]]]:
        """Yield the length, the limit and the CRC that the next batch may have had."""
        gap, at = self.gap, self.size_bytes
        raw = self._raw(at)
        most = len(gap.data) if gap.size is None else gap.size
        if raw is not None and raw.length % frame.ALIGNMENT == 0:
            yield raw.length, self.next_offset + raw.count, {raw.crc, *self._named(at + raw.length)}
        magic = _WORD.pack(frame.FRAME_MAGIC)
        found = gap.data.find(magic, at + 1)
        for _ in range(_MOST_PLACES):
            if found < 0:
                break
            following = self._raw(found)
            if following is not None and (found - at) % frame.ALIGNMENT == 0:
                own = {raw.crc} if raw is not None else set()
                yield found - at, following.start, {following.previous_crc, *own}
            found = gap.data.find(magic, found + 1)
        if gap.size is not None:
            yield most - at, gap.limit, self._named(most)

    def _named(self, at: int) -> set[int]:
        """Return the CRC of the batch before byte ``at`` of the gap, from the batch that begins there."""
        if at == self.gap.size:
            return set() if self.gap.wanted_crc is None else {self.gap.wanted_crc}
        following = self._raw(at)
        return set() if following is None else {following.previous_crc}

    def _raw(self, at: int) -> frame.FrameHeader | None:
        """Return the bytes at a position as a header, although they may be damaged."""
        data = self.gap.data[at : at + frame.HEADER_BYTES]
        if len(data) < frame.HEADER_BYTES:
            return None
        mended = bytearray(data)
        mended[:4] = _WORD.pack(frame.FRAME_MAGIC)
        length = int.from_bytes(data[8:12], "little")
        if length % frame.ALIGNMENT or length < frame.HEADER_BYTES + frame.TRAILER.size:
            mended[8:12] = _WORD.pack(frame.HEADER_BYTES + frame.TRAILER.size)
        return frame.parse_header(memoryview(mended), 0)

    def _build(self, length: int, limit: int, crcs: set[int]) -> bytes | None:
        """Return the batch ``[next_offset, limit)`` of that length that has one of the CRCs."""
        raw = self._raw(self.size_bytes)
        draft = self._draft(limit)
        if draft is None or not crcs:
            return None
        base_us, last_us, deltas = draft.times(0, self._timestamp_us)
        columns = draft.columns(deltas)
        epochs = {self._epoch, self.gap.next_epoch}
        limits = {self.next_offset, self.gap.synced_limit}
        positions = {self._position, 0} if self.gap.salt is not None else {0}
        if raw is not None:
            epochs |= {raw.epoch} if self._epoch <= raw.epoch <= self.gap.next_epoch else set()
            limits.add(raw.synced_limit)
            positions.add(raw.synced_position)
        for marks in self._marks(draft, len(columns)):
            if marks is None and not columns:
                continue
            first = (
                [] if marks is None else [frame.blob_column(ColumnKind.MARKS, (marks,), len(marks))]
            )
            for data, body in _bodies([*first, *columns], limit - self.next_offset, length):
                for epoch, synced_limit, synced_position in product(epochs, limits, positions):
                    header, crc = frame.encode_header(
                        body,
                        start=self.next_offset,
                        base_timestamp_us=base_us,
                        max_timestamp_us=last_us,
                        epoch=epoch,
                        previous_crc=self._previous_crc,
                        synced_limit=synced_limit,
                        synced_position=synced_position,
                        at=self._at,
                    )
                    if crc in crcs:
                        data[: frame.HEADER_BYTES] = header
                        return bytes(data)
        return None

    def _marks(self, draft: BatchBuilder, columns: int) -> Iterator[bytes | None]:
        """Yield the marks that the batch may have had: those that are left, or those that follow."""
        data, at = self.gap.data, self.size_bytes + frame.HEADER_BYTES
        if len(data) >= at + frame.DIRECTORY_ENTRY.size:
            kind, _, _, size = frame.DIRECTORY_ENTRY.unpack_from(data, at)
            begin = at + frame.DIRECTORY_ENTRY.size * (columns + 1)
            if kind == ColumnKind.MARKS and begin + size <= len(data):
                yield data[begin : begin + size]
        opened = self._opened(draft)
        if opened:
            yield Marks(streams=opened).encode()
        if not draft.values:
            yield self._ledger.whole().encode()
        yield None

    def _opened(self, draft: BatchBuilder) -> dict[str, StreamInfo]:
        """Return the streams that the records open."""
        found: dict[str, StreamInfo] = {}
        for row, name in enumerate(draft.streams or ()):
            if name is not None and name not in self._ledger.streams and name not in found:
                found[name] = StreamInfo(is_open=True, metadata={}, opened_at=draft.start + row)
        return found

    def _draft(self, limit: int) -> BatchBuilder | None:
        """Return the records up to an offset."""
        batches = list(self._read(limit))
        draft = _to_draft(ConcatBatch(batches)) if batches else BatchBuilder(self.next_offset)
        return draft if draft.limit == limit else None

    # -- new ---------------------------------------------------------------------------------

    def new(self) -> Iterator[bytes]:
        """Yield new batches of the records that are left, the last of which fits what follows."""
        if self.next_offset == self.gap.limit and self.gap.wanted_crc in (None, self._previous_crc):
            return
        waiting: BatchBuilder | None = None
        for batch in self._read(self.gap.limit):
            for part in split(_to_draft(batch), BATCH_BYTES):
                if waiting is not None:
                    yield self._frame(waiting, None)
                waiting = part
        yield self._frame(waiting or BatchBuilder(self.next_offset), self.gap.wanted_crc)

    def remember(self, ledger: bytes) -> Iterator[bytes]:
        """Yield a batch without records that contains the ledger; nothing for an empty ledger."""
        if not ledger:
            return
        known = self._ledger = Ledger()
        known.apply(Marks.decode(ledger))
        column = marks_column(known.whole())
        data, body = frame.encode_body([column], count=0, compress=False)
        times = (self._timestamp_us, self._timestamp_us)
        header, crc = self._place(body, self.next_offset, times)
        data[: frame.HEADER_BYTES] = header
        self._advance(self.next_offset, crc, self._timestamp_us, len(data))
        yield bytes(data)

    def _frame(self, draft: BatchBuilder, wanted_crc: int | None) -> bytes:
        base_us, last_us, deltas = draft.times(0, self._timestamp_us)
        marks = Marks(streams=self._opened(draft))
        columns = draft.columns(deltas)
        if marks.streams or not columns:
            columns = [marks_column(marks), *columns]
        filler = bytes(_FILLER_BYTES)
        if wanted_crc is not None:
            columns.append(frame.blob_column(FILLER_KIND, (filler,), len(filler)))  # type: ignore[arg-type]
        data, body = frame.encode_body(columns, count=len(draft.values), compress=False)

        def place(body_crc: int) -> tuple[bytes, int]:
            body.crc = body_crc
            return self._place(body, draft.start, (base_us, last_us))

        if wanted_crc is not None:
            entries = frame.DIRECTORY_ENTRY.size * len(columns)
            at = frame.HEADER_BYTES + entries + body.stored_bytes - _FILLER_BYTES
            before = crc32c(memoryview(data)[frame.HEADER_BYTES : at])
            behind = bytes(data[at + _FILLER_BYTES :])

            def crc_with(word: int) -> int:
                return place(crc32c(_WORD.pack(word) + behind, before))[1]

            word = solve(crc_with, wanted_crc)
            data[at : at + _FILLER_BYTES] = _WORD.pack(word)
            header, crc = place(crc32c(memoryview(data)[frame.HEADER_BYTES :]))
            assert crc == wanted_crc
        else:
            header, crc = place(body.crc)
        data[: frame.HEADER_BYTES] = header
        self._ledger.apply(marks)
        self._advance(draft.limit, crc, last_us, len(data))
        return bytes(data)

    def _place(self, body: frame.Body, start: int, times_us: tuple[int, int]) -> tuple[bytes, int]:
        """Return header and CRC of a new batch that is next."""
        return frame.encode_header(
            body,
            start=start,
            base_timestamp_us=times_us[0],
            max_timestamp_us=times_us[1],
            epoch=self._epoch,
            previous_crc=self._previous_crc,
            synced_limit=min(self.gap.synced_limit, start),
            at=self._at,
        )

    # -- both --------------------------------------------------------------------------------

    def _read(self, limit: int) -> Iterable[Batch]:
        return self._read_copy(self.next_offset, limit) if self.next_offset < limit else ()

    def _advance(self, limit: int, crc: int, timestamp_us: int, size: int) -> None:
        self.next_offset, self._previous_crc = limit, crc
        self._timestamp_us = timestamp_us
        self.size_bytes += size


def solve(crc_with: Callable[[int], int], wanted: int) -> int:
    """Return the 32-bit number for which a CRC over it, and any other bytes, has a value.

    A CRC is linear: each bit of the number flips the same bits of the CRC, whatever the others are. The
    32 equations always have a solution.
    """
    zero = crc_with(0)
    rows: list[tuple[int, int]] = []  # effect on the CRC, bits of the number that have it
    for bit in range(32):
        effect, word = crc_with(1 << bit) ^ zero, 1 << bit
        for known, known_word in rows:
            if effect ^ known < effect:
                effect, word = effect ^ known, word ^ known_word
        if effect:
            rows.append((effect, word))
            rows.sort(reverse=True)
    rest, found = wanted ^ zero, 0
    for effect, word in rows:
        if rest ^ effect < rest:
            rest, found = rest ^ effect, found ^ word
    assert not rest
    return found


def _bodies(
    columns: list[Column], count: int, length: int
) -> Iterator[tuple[bytearray, frame.Body]]:
    """Yield the columns as a batch of that length, as they are and compressed."""
    for compress in (False, True):
        with contextlib.suppress(ValueError):  # also if there is no library that compresses
            data, body = frame.encode_body(columns, count=count, compress=compress)
            if body.length == length and (not compress or body.codec != codec.NONE):
                yield data, body


def _to_draft(batch: Batch) -> BatchBuilder:
    keys, streams = list(batch.keys), list(batch.streams)
    headers = [msgpack.packb(dict(item)) if item else None for item in batch.headers]
    return BatchBuilder(
        batch.offsets[0],
        list(batch.values),
        keys if any(key is not None for key in keys) else None,
        streams if any(name is not None for name in streams) else None,
        headers if any(headers) else None,
        list(batch.timestamps_us),
    )
