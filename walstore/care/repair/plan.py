"""Repair plans as values: damages, steps and losses. Pure: no I/O.

The file that makes a repair restartable (``repair/repairing.py``) contains the plan as JSON with a CRC.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from crc32c import crc32c

from walstore.care.repair.overlay import OverlayBytes
from walstore.care.verify.segment import Problem
from walstore.core.files.directory import REPAIR_NAME
from walstore.errors import FormatVersionError

VERSION: Final = 2
"""Version 1 is read, too: it has no copies."""
JOURNAL_NAME: Final = REPAIR_NAME
"""The file that contains a plan while it is carried out."""
STAGED_NAME: Final = "repair.frames"
"""The file with the batches of a copy, while they are put into segments."""
KEPT_NAME: Final = "damaged"
"""Directory of what was set aside, inside the log's."""


class RepairKind(StrEnum):
    """What a step of a repair does, from harmless to lossy."""

    FINISH = "finish"
    """Finish a repair that was interrupted."""
    REBUILD_CHECKPOINT = "rebuild-checkpoint"
    """Write a checkpoint that agrees with the segments."""
    REBUILD_CELL = "rebuild-cell"
    """Write a durable cell that agrees with the segments."""
    RENAME = "rename"
    """Rename a segment to the first offset of its batches."""
    REBUILD_HEADER = "rebuild-header"
    """Write a segment's header again from its batches and the rest of the log."""
    REBUILD_FOOTER = "rebuild-footer"
    """Write a sealed segment's footer again from its batches."""
    CORRECT_BIT = "correct-bit"
    """Correct the one flipped bit of a batch that its checksum reveals."""
    RESTORE = "restore"
    """Fill the place of damaged or missing batches with the records of a copy."""
    CUT_TAIL = "cut-tail"
    """Cut off bytes after the last batch that hold no acknowledged record. If they were synced batches
    without records, write the known part of the ledger after the last batch that is left."""
    SET_ASIDE = "set-aside"
    """Move a file that is not part of the log (any more) away."""
    TRUNCATE = "truncate"
    """End the log before the damage. Lossy."""
    ADVANCE_HEAD = "advance-head"
    """Begin the log after the damage. Lossy."""


@dataclass(frozen=True, slots=True)
class Damage(Problem):
    """Something in the log's directory that is not as it was written."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a repair."""

    kind: RepairKind
    path: str
    message: str

    @property
    def is_lossy(self) -> bool:
        """Whether records are given up by it."""
        return self.kind in (RepairKind.TRUNCATE, RepairKind.ADVANCE_HEAD)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Offsets ``[start, limit)``."""

    start: int
    limit: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.limit})"


@dataclass(frozen=True, slots=True)
class Move:
    """A file of the log's directory that is set aside."""

    name: str
    kept_as: str
    """Its name in the directory :data:`KEPT_NAME`."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A byte that is wrong in a file."""

    position: int
    value: int
    """What it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A segment that is rewritten from whole frames of one that was set aside."""

    name: str
    source: str | None
    """Name under which the old segment is kept; None for a segment without records."""
    position: int
    end: int
    """The frames are bytes ``[position, end)`` of the source."""
    start: int
    limit: int
    header_epoch: int
    created_us: int
    previous_crc: int
    last_crc: int
    timestamp_us: int
    patches: tuple[Patch, ...]
    """Bytes of the source to correct."""
    extents: tuple[OverlayBytes, ...] = ()
    """Pieces of the source, if it includes a copy's records: then positions refer to them."""
    is_sealed: bool
    needs_ledger: bool
    """Whether it must end with the ledger because it does not begin with it."""
    salt: int | None = None
    """That of the source, plus the distance by which the frames move forward; None for version 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What applying a plan does to the files. Every part may be repeated."""

    log_id: str
    epoch: int
    head: int
    limit: int
    moves: tuple[Move, ...]
    outputs: tuple[Output, ...]
    segments: tuple[int, ...]
    """First offsets of the segments of the repaired log."""
    ledger: bytes
    uploaded_limit: int
    tier_url: str | None
    record_name: str
    """Name under which the plan itself is kept afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What :func:`walstore.care.repair.plan_repair` found, and how to repair it."""

    path: str
    log_id: str | None
    """Identity of the log, 32 hex digits; None if it is lost."""
    keep: str | None
    """The choice that was given to ``plan_repair``."""
    source: str | None = None
    """Where the copy is whose records fill the gaps; None if none was given."""
    restored: tuple[Interval, ...] = ()
    """Offsets whose records come from the copy. They are neither unreadable afterwards nor lost."""
    damages: tuple[Damage, ...]
    unreadable: tuple[Interval, ...]
    """Offsets that the log should hold and whose records are damaged or missing."""
    choices: tuple[Interval, ...]
    """Unbroken stretches of records, in order; a repaired log consists of one of them."""
    needs_choice: bool
    """Whether ``keep`` must say which of several stretches to keep; then there are no steps."""
    steps: tuple[Step, ...]
    head: int
    """First offset of the repaired log."""
    limit: int
    """Its end: the next offset that an append gets."""
    lost: tuple[Interval, ...]
    """Offsets that the log should hold and will not hold after the repair: the unreadable ones and
    those that are given up with them. Whole batches of them are kept in files that are set aside."""
    reassigned: Interval | None
    """Offsets that records had before the repair and that appends after it will use again."""
    epoch: int
    """Epoch of the repaired log; higher than any found."""
    uploaded_limit: int
    """Every offset below it was in the cloud tier at the last checkpoint; 0 if unknown."""
    tier_url: str | None
    notes: tuple[str, ...]
    """What else the operator should know."""
    actions: Actions | None
    """None if nothing is to be done, or a choice is missing."""

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be repaired."""
        return bool(self.damages)

    @property
    def is_begun(self) -> bool:
        """Whether it was interrupted, so that all that is left is to finish it."""
        return any(step.kind is RepairKind.FINISH for step in self.steps)

    @property
    def is_lossy(self) -> bool:
        """Whether records are lost, be it by the damage or by the repair."""
        return bool(self.lost)


def encode_plan(plan: RepairPlan) -> bytes:
    """Return a plan as a line of JSON, preceded by a line with its CRC."""
    body = json.dumps(
        {"version": VERSION, **asdict(plan)}, ensure_ascii=False, indent=1, default=_to_json
    ).encode()
    return b"%08x\n%s\n" % (crc32c(body), body)


def decode_plan(data: bytes, path: str) -> RepairPlan | None:
    """Parse :func:`encode_plan`; None if it is damaged, FormatVersionError if it is newer."""
    first, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if first != b"%08x" % crc32c(body):
        return None
    try:
        fields: dict[str, Any] = json.loads(body)
        version = fields.pop("version")
        if type(version) is not int or version < 1:
            return None
        if version <= VERSION:
            plan: RepairPlan = _build(RepairPlan, fields)
            if plan.actions is not None:
                _check_names(plan.actions)
            return plan
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None  # no plan of ours, though its CRC is right
    raise FormatVersionError(
        "the repair was begun by another version", path=path, found=version, supported=VERSION
    )


def _build(kind: Any, value: Any) -> Any:
    """Return a value of a plan's type from JSON; any error of a conversion if it is none.

    ValueError for a negative number: there is none in a plan.
    """
    if isinstance(kind, UnionType):
        if value is None:
            return None
        (kind,) = set(get_args(kind)) - {NoneType}
    if get_origin(kind) is tuple:
        return tuple(_build(get_args(kind)[0], item) for item in _require(value, list))
    if is_dataclass(kind):
        hints = _types_of(kind)  # type: ignore[arg-type]
        fields = _require(value, dict)
        return kind(**{name: _build(hints[name], item) for name, item in fields.items()})  # type: ignore[operator]
    if kind is bytes:
        return base64.b64decode(value, validate=True)
    if kind is RepairKind:
        return RepairKind(value)
    if kind is int and not 0 <= _require(value, int) < 1 << 64:
        raise ValueError(value)
    return _require(value, kind)


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields: they are compiled from text each time."""
    return get_type_hints(kind)


def _require(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"not {kind}: {value!r}")
    return value


def _check_names(actions: Actions) -> None:
    """Raise ValueError unless all names are those of files in the log's directory."""
    names = [actions.record_name]
    names += [name for move in actions.moves for name in (move.name, move.kept_as)]
    names += [name for one in actions.outputs for name in (one.name, one.source or one.name)]
    for name in names:
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"not the name of a file: {name!r}")


def _to_json(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"not for JSON: {value!r}")
