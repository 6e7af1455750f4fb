"""Framer: turns batch builders into consecutive frames. No I/O; owned by the writer thread.

Owns the state that the next frame continues: the chain, and its ledger.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from walstore.core.batches.batch_builder import BatchBuilder, marks_column
from walstore.core.format import codec, frame
from walstore.core.format.recovery import Chain

Spot = tuple[bytes, int, int]
"""Where a frame will be (see :func:`walstore.core.format.frame.place`), and what is synced by then: the
limit, and the position in the segment of the frame."""


class Framed(NamedTuple):
    """The written form of a builder."""

    data: bytearray
    base_timestamp_us: int
    """Time of the first record."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last one; equals ``start`` if the frame contains only marks."""
    plain: bytearray
    """The same frame without compression, for readers in this process; maybe the same object."""


class Framer:
    """Builds the frames that continue a log."""

    def __init__(self, chain: Chain, *, compress: bool) -> None:
        """Continue ``chain``, which advances with each frame, as does its ledger."""
        assert chain.ledger is not None
        self._chain = chain
        self._ledger = chain.ledger
        self._compress = compress

    def frame(self, builder: BatchBuilder, now_us: int, spot: Spot) -> Framed:
        """Frame a builder after the previous frames."""
        value = builder.only_value
        if value is not None and not (self._compress and len(value) + 4 >= codec.LEAST_BYTES):
            return self._frame_value(builder.start, value, now_us, spot)
        chain = self._chain
        base_us, last_us, deltas = builder.times(now_us, chain.timestamp_us)
        encode = partial(
            frame.encode,
            builder.columns(deltas),
            start=builder.start,
            count=len(builder.values),
            base_timestamp_us=base_us,
            max_timestamp_us=last_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=spot[1],
            synced_position=spot[2],
            at=spot[0],
        )
        data, crc = encode(compress=self._compress)
        plain = encode()[0] if self._compress and frame.is_compressed(data) else data
        chain.next_offset = builder.limit
        chain.previous_crc = crc
        chain.timestamp_us = last_us
        if builder.marks is not None:
            self._ledger.apply(builder.marks)
        return Framed(data, base_us, builder.start, builder.limit, plain)

    def frame_ledger(self, spot: Spot) -> bytearray:
        """Return the frame that begins a segment: no records, and the whole ledger."""
        chain = self._chain
        data, chain.previous_crc = frame.encode(
            [marks_column(self._ledger.whole())],
            start=chain.next_offset,
            count=0,
            base_timestamp_us=chain.timestamp_us,
            max_timestamp_us=chain.timestamp_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=spot[1],
            synced_position=spot[2],
            at=spot[0],
        )
        return data

    def _frame_value(self, start: int, value: bytes, now_us: int, spot: Spot) -> Framed:
        chain = self._chain
        timestamp_us = max(now_us, chain.timestamp_us)
        data, chain.previous_crc = frame.encode_value(
            value,
            start=start,
            timestamp_us=timestamp_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=spot[1],
            synced_position=spot[2],
            at=spot[0],
        )
        chain.next_offset = start + 1
        chain.timestamp_us = timestamp_us
        return Framed(data, timestamp_us, start, start + 1, data)
