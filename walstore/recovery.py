"""Recovery: which bytes of a segment survive a crash. Pure: bytes in, verdicts out.

Recovery walks the frames from a known place, checking CRC, chain and offsets, and stops at the first
bytes that are no frame continuing the log. What lies there decides (docs/design.md, "Torn or corrupt"):

  * nothing but zeroes: the log ends here;
  * a cut-off or half-written batch that was never synced: a torn tail, which may be removed;
  * a batch that had been synced once: corruption, which is never removed silently.

Whether a batch had been synced follows from the log itself: each later frame carries the limit that
was synced when it was written; the checkpoint and the durable cell add what they know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from walstore import frame
from walstore.ledger import Ledger, Marks
from walstore.segment import SegmentIndex


class Verdict(Enum):
    """What lies behind the last whole frame."""

    END = "end"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class Chain:
    """Where the log stands: what the next frame must say to continue it."""

    next_offset: int
    previous_crc: int
    timestamp_us: int
    """Timestamp of the last record; later ones are not allowed to be older."""
    epoch: int
    ledger: Ledger | None = None
    """What the log remembers at that place, for those who go on writing there."""

    def follows(self, header: frame.FrameHeader) -> bool:
        """Return whether the frame continues the log from here."""
        return (
            header.start == self.next_offset
            and header.previous_crc == self.previous_crc
            and header.epoch >= self.epoch
        )

    def advance(self, header: frame.FrameHeader) -> None:
        """Take a frame into account."""
        self.next_offset = header.limit
        self.previous_crc = header.crc
        self.timestamp_us = header.max_timestamp_us
        self.epoch = header.epoch


def walk(buffer: memoryview, chain: Chain, index: SegmentIndex, position: int) -> int:
    """Follow whole frames from the start of ``buffer``, updating ``chain`` and ``index``.

    ``position`` is the place of the buffer in its file. Returns how many bytes of the buffer are
    frames that continue the log.
    """
    at = 0
    while True:
        header = frame.parse_header(buffer, at)
        if header is None or not chain.follows(header) or not frame.is_whole(buffer, header):
            return at
        index.add(header.start, position + at, header.base_timestamp_us)
        if index.streams.is_known:
            index.streams.add(frame.stream_names(buffer, header))
        chain.advance(header)
        if chain.ledger is not None:
            marks = frame.marks_of(buffer, header)
            if marks is not None:
                chain.ledger.apply(Marks.decode(marks))
        at = header.end


def needed_bytes(buffer: memoryview) -> int:
    """Return how long the buffer must be to hold the frame that seems to begin it, or 0."""
    header = frame.parse_header(buffer, 0)
    return 0 if header is None else header.length


def judge(rest: memoryview, chain: Chain, durable_limit: int) -> tuple[Verdict, str]:
    """Say what the bytes behind the last good frame are, and why.

    ``rest`` reaches to the end of the file; ``durable_limit`` is the highest limit that the checkpoint
    or the durable cell knows to have been synced (a lower value is always safe).
    """
    if not any_nonzero(rest):
        return Verdict.END, "no bytes behind the last batch"
    header = frame.parse_header(rest, 0)
    if header is not None and frame.is_whole(rest, header):
        return Verdict.CORRUPT, (
            f"a batch [{header.start}, {header.limit}) that does not continue the log at "
            f"{chain.next_offset}"
        )
    inside = header.end if header is not None and _is_sound(header, chain) else 0
    for later in _whole_frames(rest, inside):
        if later.start > chain.next_offset and later.synced_limit > chain.next_offset:
            return Verdict.CORRUPT, f"a damaged batch at offset {chain.next_offset} that was synced"
    if durable_limit > chain.next_offset and _reaches_its_end(rest, header):
        return Verdict.CORRUPT, f"a damaged batch at offset {chain.next_offset} that was synced"
    return Verdict.TORN, f"an unfinished batch at offset {chain.next_offset}"


def _is_sound(header: frame.FrameHeader, chain: Chain) -> bool:
    """Return whether the length in the header of a damaged frame can be believed.

    Then whole frames within that length are values, not frames of this log.
    """
    unpadded = frame.HEADER_BYTES + frame.DIRECTORY_ENTRY.size * header.column_count
    unpadded += header.stored_bytes
    length = unpadded + -unpadded % frame.ALIGNMENT + frame.TRAILER.size
    return chain.follows(header) and header.length == length


def _whole_frames(rest: memoryview, at: int) -> Iterator[frame.FrameHeader]:
    """Yield the whole frames at or behind ``at``, at any aligned place."""
    found = frame.find_whole_frame(rest, at)
    while found is not None:
        yield found
        following = frame.parse_header(rest, found.end)  # nearly always there, and no search
        if following is not None and frame.is_whole(rest, following):
            found = following
        else:
            found = frame.find_whole_frame(rest, found.end)


def _reaches_its_end(rest: memoryview, header: frame.FrameHeader | None) -> bool:
    """Return whether the frame that begins ``rest`` was written to its last byte.

    The last byte of a frame is never zero, nor is it after any single flipped bit.
    """
    if header is not None and header.end <= len(rest) and rest[header.end - 1]:
        return True
    return frame.ends_with_trailer(rest, 0)


def any_nonzero(data: memoryview) -> bool:
    """Return whether some byte is not zero."""
    zeroes = bytes(1 << 16)
    step = len(zeroes)
    return any(data[at : at + step] != zeroes[: len(data) - at] for at in range(0, len(data), step))


def used_bytes(data: bytes) -> int:
    """Return the length of ``data`` without the zeroes at its end."""
    return len(data.rstrip(b"\0"))
