"""Framer: drafts become frames, one behind the other. No I/O; owned by the writer thread.

Owns what the next frame must say to continue the log: the chain, and the ledger that goes with it.
"""

from __future__ import annotations

from walstore import frame
from walstore.batch import FrameBatch
from walstore.draft import Draft, marks_column
from walstore.recovery import Chain


class Framer:
    """Builds the frames that continue a log."""

    def __init__(self, chain: Chain, *, compress: bool) -> None:
        """Go on from ``chain``, which moves with every frame; so does its ledger."""
        assert chain.ledger is not None
        self._chain = chain
        self._ledger = chain.ledger
        self._compress = compress

    def frame(self, draft: Draft, now_us: int, synced_limit: int) -> tuple[bytearray, int]:
        """Return the frame of a draft, and the timestamp of its first record."""
        chain = self._chain
        base_us, last_us, deltas = draft.times(now_us, chain.timestamp_us)
        data, crc = frame.encode(
            draft.columns(deltas),
            start=draft.start,
            count=len(draft.values),
            base_timestamp_us=base_us,
            max_timestamp_us=last_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=synced_limit,
            compress=self._compress,
        )
        chain.next_offset = draft.limit
        chain.previous_crc = crc
        chain.timestamp_us = last_us
        if draft.marks is not None:
            self._ledger.apply(draft.marks)
        return data, base_us

    def frame_ledger(self, synced_limit: int) -> bytearray:
        """Return the frame that begins a segment: no records, and all that the log remembers."""
        chain = self._chain
        data, chain.previous_crc = frame.encode(
            [marks_column(self._ledger.whole())],
            start=chain.next_offset,
            count=0,
            base_timestamp_us=chain.timestamp_us,
            max_timestamp_us=chain.timestamp_us,
            epoch=chain.epoch,
            previous_crc=chain.previous_crc,
            synced_limit=synced_limit,
        )
        return data

    @staticmethod
    def batch(data: bytearray) -> FrameBatch:
        """Return a frame of records as readers see it, sharing its bytes."""
        view = memoryview(data).toreadonly()
        header = frame.parse_header(view, 0)
        assert header is not None
        return FrameBatch(view, header)
