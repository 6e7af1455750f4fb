"""Checkpoint and durable cell: they save recovery and other processes from reading segments.

Both are hints. The checkpoint bounds how much recovery re-reads and contains the head; the cell shows
the durable limit to readers in other processes. Either may be missing, damaged or old: then the log is
rebuilt from its segments. The layouts are specified in docs/format.md. Pure: no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import msgpack
from crc32c import crc32c

from walstore.core.format.ledger import Marks
from walstore.core.format.packed import (
    MOST_OFFSET,
    MOST_TIMESTAMP_US,
    SMALL_BYTES,
    MalformedError,
    Packed,
    require,
    require_number,
    unpack_pairs,
)
from walstore.core.format.segment import SegmentIndex, SegmentSummary
from walstore.errors import FormatVersionError

FILE_NAME: Final = "CHECKPOINT"
MAGIC: Final = b"WALCKPT\n"
VERSION: Final = 2
"""Version 1 can be read, too: it lacks ``tail_salt`` and ``own_epoch``."""
PREFIX: Final = struct.Struct("<8sIII")
PADDING_BYTES: Final = 4096
"""Files are padded to a multiple of this, so that on a full disk the next one can be written in place."""

CELL_FILE_NAME: Final = "DURABLE"
CELL_MAGIC: Final = b"WALDUR2\n"
UNSALTED_CELL_MAGIC: Final = b"WALDUR\r\n"
"""For version 1, which has its CRC in the place of ``tail_salt``."""
CELL_BYTES: Final = 64
CELL: Final = struct.Struct("<8sQQQQQQI")
_UNSALTED_CELL: Final = struct.Struct("<8sQQQQQQ")
_CELL_CRC: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a log at a time when everything named here was durable."""

    log_id: bytes
    epoch: int
    head: int
    """First retained offset; files wholly below it may be deleted."""
    sealed: tuple[SegmentSummary, ...]
    tail_start: int
    """First offset of the active segment."""
    tail_position: int
    """End of the durable frames in the active segment."""
    tail_index: SegmentIndex
    """Index of the active segment up to that position."""
    next_offset: int
    previous_crc: int
    timestamp_us: int
    uploaded_limit: int
    tier_url: str | None
    ledger: bytes = b""
    """Marks of the ledger at that position; empty for an empty ledger."""
    tail_salt: int | None = None
    """Salt of the active segment: distinguishes it from another of its name. None for one of version 1."""
    own_epoch: int = 0
    """Frames of earlier epochs were copied from another machine, so their information about syncs does not
    apply to this disk (see :class:`walstore.core.format.recovery.Evidence`). 0 for a log that was written
    here."""
    is_closed: bool = False
    """Whether it was written by a clean close: nothing was written, and nothing failed, since."""
    is_epoch_written: bool = False
    """Whether a frame before that position is known to be of :attr:`epoch`: a copy must not speak of an epoch
    without one. Only said of replicated logs, by their primaries."""

    @property
    def is_of_copy(self) -> bool:
        """Whether it was kept by a copy of a replicated log, which another machine wrote up to there."""
        return self.own_epoch > self.epoch

    @property
    def cell(self) -> DurableCell:
        """The durable cell of a log that ends there."""
        return DurableCell(
            head=self.head,
            durable_limit=self.next_offset,
            epoch=self.epoch,
            tail_start=self.tail_start,
            tail_position=self.tail_position,
            visible_limit=self.next_offset,
            tail_salt=self.tail_salt,
        )


class DurableCell(NamedTuple):
    """The durable end of a log, for readers in other processes."""

    head: int
    durable_limit: int
    epoch: int
    tail_start: int
    tail_position: int
    visible_limit: int
    """Where readers stop. More than ``durable_limit`` only if syncing is left to the system."""
    tail_salt: int | None = None
    """As in the checkpoint."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of the file ``CHECKPOINT``."""
    fields = {
        "log_id": checkpoint.log_id,
        "epoch": checkpoint.epoch,
        "head": checkpoint.head,
        "sealed": [
            [s.start, s.limit, s.data_bytes, s.last_crc, s.max_timestamp_us]
            for s in checkpoint.sealed
        ],
        "tail_start": checkpoint.tail_start,
        "tail_position": checkpoint.tail_position,
        "tail_index": checkpoint.tail_index.to_bytes(),
        "next_offset": checkpoint.next_offset,
        "previous_crc": checkpoint.previous_crc,
        "timestamp_us": checkpoint.timestamp_us,
        "uploaded_limit": checkpoint.uploaded_limit,
        "tier_url": checkpoint.tier_url,
        "ledger": checkpoint.ledger,
        "tail_salt": checkpoint.tail_salt,
        "own_epoch": checkpoint.own_epoch,
        "is_closed": checkpoint.is_closed,
    }
    if checkpoint.is_epoch_written:  # left out else: earlier versions do not know it
        fields["is_epoch_written"] = True
    body: bytes = msgpack.packb(fields)
    data = PREFIX.pack(MAGIC, VERSION, len(body), _crc(VERSION, body)) + body
    return data + bytes(-len(data) % PADDING_BYTES)


def decode_checkpoint(data: bytes, path: str) -> Checkpoint | None:
    """Parse a checkpoint; None if it is damaged or forged; FormatVersionError if it is newer."""
    if len(data) < PREFIX.size:
        return None
    magic, version, size, crc = PREFIX.unpack_from(data)
    body = data[PREFIX.size : PREFIX.size + size]
    if magic != MAGIC or len(body) != size or _crc(version, body) != crc:
        return None
    if data[PREFIX.size + size :].strip(b"\0"):
        return None
    if version > VERSION:
        raise FormatVersionError(
            "checkpoint was written by a newer version", path=path, found=version, supported=VERSION
        )
    try:
        return _decode_body(body)
    except ValueError:  # forged, or with marks of a newer version: then the frames show that, too
        return None


def _decode_body(body: bytes) -> Checkpoint:
    """Parse the map of a checkpoint; ValueError if no writer makes such a map."""
    fields: dict[str, Any] = {}
    for name, value in _pairs(body):
        fields[name] = _FIELDS.get(name, _refuse)(value, name)
    if missing := _REQUIRED - fields.keys():
        raise MalformedError(f"a checkpoint without {min(missing)}")
    found = Checkpoint(**fields)
    if found.ledger:
        Marks.decode(found.ledger)
    if found.tail_index.positions and found.tail_index.positions[-1] >= found.tail_position:
        raise MalformedError("an index with batches after its end")
    starts = [*(one.start for one in found.sealed), found.tail_start, found.next_offset]
    limits = [*(one.limit for one in found.sealed), found.tail_start]
    if starts != sorted(starts) or starts[1:-1] != limits[:-1] or found.head > found.next_offset:
        raise MalformedError("a checkpoint with segments that are not consecutive")
    return found


def _pairs(body: bytes) -> Iterable[tuple[str, Any]]:
    """Return the fields of a map; the sealed segments of a large one row by row."""
    return unpack_pairs(body, "a checkpoint") if len(body) <= SMALL_BYTES else _large_pairs(body)


def _large_pairs(body: bytes) -> Iterator[tuple[str, Any]]:
    packed = Packed(body, "a checkpoint", longest_row=len(_SUMMARY))
    for name in packed.fields():
        yield name, packed.rows() if name == "sealed" else packed.value()
    packed.end()


def _decode_sealed(rows: object, what: str) -> tuple[SegmentSummary, ...]:
    if not isinstance(rows, list | Iterator):
        raise MalformedError(f"{what} is not a list")
    return tuple(map(_decode_summary, rows))


def _decode_summary(row: object) -> SegmentSummary:
    fields = require(row, list, "a sealed segment")
    if len(fields) != len(_SUMMARY):
        raise MalformedError(f"a sealed segment of {len(fields)} fields")
    return SegmentSummary(
        *(
            require_number(value, "of a segment", most=most)
            for value, most in zip(fields, _SUMMARY, strict=True)
        )
    )


def _decode_index(value: object, what: str) -> SegmentIndex:
    packed = memoryview(require(value, bytes, what))
    return SegmentIndex.from_bytes(packed, len(packed) // SegmentIndex.ENTRY_BYTES)


def _decode_log_id(value: object, what: str) -> bytes:
    log_id = require(value, bytes, what)
    if len(log_id) != _LOG_ID_BYTES:
        raise MalformedError(f"{what} of {len(log_id)} bytes")
    return log_id


def _refuse(_: object, what: str) -> NoReturn:
    raise MalformedError(f"a checkpoint with {what!r}")


_LOG_ID_BYTES: Final = 16
_MOST_CRC: Final = (1 << 32) - 1
_SUMMARY: Final = (MOST_OFFSET, MOST_OFFSET, MOST_OFFSET, _MOST_CRC, MOST_TIMESTAMP_US)
"""Highest values of a sealed segment's fields."""
_FIELDS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "log_id": _decode_log_id,
    "sealed": _decode_sealed,
    "epoch": require_number,
    "head": partial(require_number, least=1),
    "tail_start": partial(require_number, least=1),
    "tail_position": require_number,
    "tail_index": _decode_index,
    "next_offset": partial(require_number, least=1),
    "previous_crc": partial(require_number, most=_MOST_CRC),
    "timestamp_us": partial(require_number, most=MOST_TIMESTAMP_US),
    "uploaded_limit": require_number,
    "tier_url": lambda value, what: None if value is None else require(value, str, what),
    "ledger": lambda value, what: require(value, bytes, what),
    "tail_salt": lambda value, what: (
        None if value is None else require_number(value, what, most=_MOST_CRC)
    ),
    "own_epoch": require_number,
    "is_closed": lambda value, what: require(value, bool, what),
    "is_epoch_written": lambda value, what: require(value, bool, what),
}
"""The fields of a checkpoint and their parsers."""
_REQUIRED: Final = frozenset(_FIELDS) - {
    "ledger",
    "tail_salt",
    "own_epoch",
    "is_closed",
    "is_epoch_written",
}


def _crc(version: int, body: bytes) -> int:
    """Return the CRC of everything after the magic except the CRC itself."""
    return crc32c(body, crc32c(struct.pack("<II", version, len(body))))


def encode_cell(cell: DurableCell) -> bytes:
    """Return the content of the file ``DURABLE``."""
    if cell.tail_salt is None:
        body = _UNSALTED_CELL.pack(UNSALTED_CELL_MAGIC, *cell[:-1])
    else:
        body = CELL.pack(CELL_MAGIC, *cell)
    return (body + _CELL_CRC.pack(crc32c(body))).ljust(CELL_BYTES, b"\0")


def decode_cell(data: bytes) -> DurableCell | None:
    """Parse a cell; None if it is damaged, forged or half updated."""
    if len(data) < CELL.size + _CELL_CRC.size:
        return None
    layout = {CELL_MAGIC: CELL, UNSALTED_CELL_MAGIC: _UNSALTED_CELL}.get(bytes(data[:8]))
    if layout is None:
        return None
    (crc,) = _CELL_CRC.unpack_from(data, layout.size)
    if crc32c(data[: layout.size]) != crc:
        return None
    cell = DurableCell(*layout.unpack_from(data)[1:])
    return cell if max(cell[:6]) <= MOST_OFFSET else None
