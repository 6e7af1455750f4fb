"""Recovery: which bytes of a segment survive a crash. Pure: bytes in, verdicts out.

Recovery walks the frames from a known position, checking CRC, chain and offsets, and stops at the first
bytes that are not a frame continuing the log. Those bytes decide (docs/design.md, "Torn or corrupt"):

  * nothing but zeroes: the log ends here;
  * a cut-off or half-written batch that was never synced: a torn tail, which may be removed;
  * a batch that had been synced once: corruption, which is never removed silently.

Whether a batch had been synced follows from the log itself: each later frame contains the offset and
the byte of its segment up to which everything was synced when it was written; the checkpoint and the
durable cell add their limits. The byte decides for frames without records, which share one offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from walstore.core.format import frame
from walstore.core.format.frame_scan import FrameScan, LookalikesError
from walstore.core.format.ledger import Ledger, Marks
from walstore.core.format.packed import MalformedError
from walstore.core.format.segment import SegmentHeader, SegmentIndex


class Verdict(Enum):
    """The kind of bytes after the last whole frame."""

    END = "end"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class Chain:
    """The end of the log: the values that the next frame must contain to continue it."""

    next_offset: int
    previous_crc: int
    timestamp_us: int
    """Timestamp of the last record; later records must not be older."""
    epoch: int
    ledger: Ledger | None = None
    """The ledger at that position, for continuing to write there."""

    def follows(self, header: frame.FrameHeader) -> bool:
        """Return whether the frame continues the log."""
        return (
            header.start == self.next_offset
            and header.previous_crc == self.previous_crc
            and header.epoch >= self.epoch
        )

    def advance(self, header: frame.FrameHeader) -> None:
        """Advance past a frame."""
        self.next_offset = header.limit
        self.previous_crc = header.crc
        self.timestamp_us = header.max_timestamp_us
        self.epoch = header.epoch


def follow(scan: FrameScan, chain: Chain, index: SegmentIndex, position: int) -> int:
    """Follow whole frames from byte ``position``, updating ``chain`` and ``index``; return where those end
    that continue the log. Raises as :func:`walstore.core.format.frame.directory`.
    """
    for at, header, view in scan.frames(position):
        if not chain.follows(header):
            break
        take(chain, index, at, header, view)
        position = at + header.length
    return position


def take(
    chain: Chain, index: SegmentIndex, at: int, header: frame.FrameHeader, view: memoryview
) -> None:
    """Take a whole frame at byte ``at``, which continues the log, into account. Raises as :func:`follow`."""
    try:
        names = frame.stream_names(view, header) if index.streams.is_known else ()
        marks = None if chain.ledger is None else frame.marks_of(view, header)
        changes = None if marks is None else Marks.decode(marks)
    except MalformedError as error:
        error.position = at
        raise
    index.add(header.start, at, header.base_timestamp_us)
    index.streams.add(names)
    chain.advance(header)
    if changes is not None and chain.ledger is not None:
        chain.ledger.apply(changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about syncs of a segment in addition to its frames."""

    durable_limit: int = 0
    """Every offset below was synced, according to the checkpoint or the durable cell. A lower value is
    safe."""
    durable_position: int = 0
    """The same in bytes of the segment; 0 if neither refers to this segment."""
    own_epoch: int = 0
    """Frames of earlier epochs were copied from another machine: their information about syncs applies
    there."""
    is_strict: bool = False
    """Whether a log that ends before ``durable_position`` is damaged, whatever the bytes look like: a copy
    of a replicated log, which must not take part with less than it acknowledged."""


def judge(
    rest: memoryview,
    chain: Chain,
    evidence: Evidence,
    *,
    position: int = 0,
    header: SegmentHeader | None = None,
) -> tuple[Verdict, str]:
    """Return the verdict on the bytes after the last good frame, and its reason.

    ``rest`` extends from byte ``position`` of the segment to the last nonzero byte; ``header`` is
    the segment's, None for one of version 1.
    """
    if evidence.is_strict and evidence.durable_position > position:
        return Verdict.CORRUPT, (
            f"batches from offset {chain.next_offset} on, up to byte {evidence.durable_position}, were "
            "synced here, and are damaged or gone"
        )
    if not any_nonzero(rest):
        return Verdict.END, "no bytes after the last batch"
    salt = None if header is None else header.salt
    where = f"at offset {chain.next_offset}"
    first = frame.parse_header(rest, 0)
    if first is not None and frame.is_whole(rest, first, frame.place(salt, position)):
        return Verdict.CORRUPT, (
            f"a batch [{first.start}, {first.limit}) that does not continue the log at "
            f"{chain.next_offset}"
        )
    try:
        testified = _testified(rest, chain, evidence, position, salt, first)
    except LookalikesError as error:
        # In a file that is used again they may be in any value of earlier segments, not only in what is torn.
        testified = False
        if header is None or not (header.reuses_blocks and evidence.durable_position):
            return Verdict.CORRUPT, f"{error}: it is unclear whether the batch {where} was synced"
    # Batches of equal size begin at the same bytes in each use of a file.
    is_earlier = header is not None and first is not None and _is_earlier(first, header, chain)
    is_noted = (
        evidence.durable_limit > chain.next_offset or evidence.durable_position > position
    ) and (not is_earlier and _reaches_its_end(rest, first))
    if testified or is_noted:
        return Verdict.CORRUPT, f"a damaged batch {where} that was synced"
    seems_begun = first is not None and first.previous_crc == chain.previous_crc
    if header is not None and header.reuses_blocks and not seems_begun:
        return Verdict.END, "bytes of an earlier use of the file after the last batch"
    return Verdict.TORN, f"an unfinished batch at offset {chain.next_offset}"


def _is_earlier(first: frame.FrameHeader, header: SegmentHeader, chain: Chain) -> bool:
    """Return whether a frame is of an earlier use of the file, and not one of ours with a flipped bit."""
    is_linked = first.previous_crc == chain.previous_crc
    return (
        header.reuses_blocks and not is_linked and first.start > 0 and first.limit <= header.start
    )


def _testified(
    rest: memoryview,
    chain: Chain,
    evidence: Evidence,
    position: int,
    salt: int | None,
    first: frame.FrameHeader | None,
) -> bool:
    """Return whether a later frame shows that the frame at the start of ``rest`` was synced."""
    scan, behind = FrameScan.of(rest, position, salt), position
    if salt is None:  # whole frames inside a value look like those of the log
        behind = next(scan.trailer_limits(position), position)
        if first is not None and _is_sound(first, chain):
            behind = max(behind, position + first.end)
    least = 0 if salt is None else chain.next_offset
    for _, later in scan.whole_frames(behind, least):
        if later.epoch < max(evidence.own_epoch, chain.epoch) or later.start < chain.next_offset:
            continue
        if later.synced_position > position or later.synced_limit > chain.next_offset:
            return True
    return False


def _is_sound(header: frame.FrameHeader, chain: Chain) -> bool:
    """Return whether the length in the header of a damaged frame can be trusted.

    Then whole frames within that length are inside values, not frames of this log.
    """
    unpadded = frame.HEADER_BYTES + frame.DIRECTORY_ENTRY.size * header.column_count
    unpadded += header.stored_bytes
    length = unpadded + -unpadded % frame.ALIGNMENT + frame.TRAILER.size
    return chain.follows(header) and header.length == length


def _reaches_its_end(rest: memoryview, header: frame.FrameHeader | None) -> bool:
    """Return whether the frame at the start of ``rest`` was written to its last byte.

    The last byte of a frame is never zero, nor is it after any single flipped bit.
    """
    if header is not None and header.end <= len(rest) and rest[header.end - 1]:
        return True
    return any(FrameScan.of(rest, 0, None).trailer_limits(0))


def any_nonzero(data: memoryview) -> bool:
    """Return whether any byte is nonzero."""
    zeroes = bytes(1 << 16)
    step = len(zeroes)
    # As bytes: views are compared element by element, which takes forty times as long.
    return any(
        bytes(data[at : at + step]) != zeroes[: len(data) - at] for at in range(0, len(data), step)
    )
