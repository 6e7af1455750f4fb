"""Entries and snapshots: the tree under a manifest. Pure values.

Manifests and snapshots list fragments, and pointers to deeper snapshots. A snapshot is an immutable inner
node of the tree.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from uploader.format import layout
from uploader.format.document import (
    Fields,
    check_u64,
    join_list,
    join_object,
    position,
    read_document,
    serialise,
)
from uploader.format.layout import MAX_U64
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError, FormatVersionError

MAX_DEPTH: Final = 255
"""wal3 keeps a snapshot's depth in one byte."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One immutable object that holds the records ``[start, limit)``."""

    path: str
    """Key of the object, relative to the log's prefix."""
    seq_no: int
    """Place among the log's fragments: the first is 1, +1 each."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last record."""
    num_bytes: int
    """Length of the object."""
    setsum: Setsum
    """Sum of the records."""
    is_ours: bool = field(default=False, repr=False, compare=False)
    """Whether this process has made or read it, and it has our format; not in the entry's JSON."""
    _serialised: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits; ValueError."""
        check_u64(seq_no=self.seq_no, start=self.start, limit=self.limit, num_bytes=self.num_bytes)

    @classmethod
    def numbered(
        cls,
        seq_no: int,
        *,
        start: int,
        limit: int,
        num_bytes: int,
        setsum: Setsum,
        is_ours: bool = False,
    ) -> Fragment:
        """Return the entry of the fragment with that number, at the key it must have."""
        path = layout.fragment_path(seq_no)
        return cls(path, seq_no, start, limit, num_bytes, setsum, is_ours)

    @classmethod
    def from_fields(cls, fields: Fields) -> Fragment:
        """Read an entry; CorruptionError for a bad shape.

        FormatVersionError if the fragment is named by a UUID, as in wal3 logs that are replicated over
        regions and whose manifest does not live in object storage.
        """
        if _is_uuid(fields.raw("seq_no")):
            raise FormatVersionError(
                "a fragment is named by a UUID; logs replicated by wal3 cannot be read",
                path=fields.path,
                found="UUID",
                supported="sequence number",
            )
        return cls(
            path=fields.text("path"),
            seq_no=fields.number("seq_no"),
            start=fields.position("start"),
            limit=fields.position("limit"),
            num_bytes=fields.number("num_bytes"),
            setsum=fields.setsum("setsum"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entry as the manifest holds it."""
        return {
            "path": self.path,
            "seq_no": self.seq_no,
            "start": position(self.start),
            "limit": position(self.limit),
            "num_bytes": self.num_bytes,
            "setsum": self.setsum.hexdigest(),
        }

    def serialise(self) -> bytes:
        """Return :meth:`to_json` as bytes. They are kept: an entry is written again with every manifest."""
        if self._serialised is None:
            object.__setattr__(self, "_serialised", serialise(self.to_json()))
        assert self._serialised is not None
        return self._serialised


@dataclass(frozen=True, slots=True)
class SnapshotPointer:
    """What a manifest or snapshot says of a snapshot below it."""

    setsum: Setsum
    """Sum of all records below."""
    path_to_snapshot: str
    """Key of the snapshot, relative to the log's prefix."""
    depth: int
    """Levels of snapshots from here down, this one included: 1 to 255."""
    start: int
    """Offset of the first record below."""
    limit: int
    """Offset after the last record below."""
    num_bytes: int
    """Length of all fragments below, together."""
    _serialised: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse numbers out of range; ValueError."""
        check_u64(start=self.start, limit=self.limit, num_bytes=self.num_bytes)
        check_depth(self.depth)

    @classmethod
    def from_fields(cls, fields: Fields) -> SnapshotPointer:
        """Read a pointer; CorruptionError for a bad shape."""
        return cls(
            setsum=fields.setsum("setsum"),
            path_to_snapshot=fields.text("path_to_snapshot"),
            depth=fields.number("depth", maximum=MAX_DEPTH),
            start=fields.position("start"),
            limit=fields.position("limit"),
            num_bytes=fields.number("num_bytes"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the pointer as the manifest holds it."""
        return {
            "setsum": self.setsum.hexdigest(),
            "path_to_snapshot": self.path_to_snapshot,
            "depth": self.depth,
            "start": position(self.start),
            "limit": position(self.limit),
            "num_bytes": self.num_bytes,
        }

    def serialise(self) -> bytes:
        """Return :meth:`to_json` as bytes. They are kept: an entry is written again with every manifest."""
        if self._serialised is None:
            object.__setattr__(self, "_serialised", serialise(self.to_json()))
        assert self._serialised is not None
        return self._serialised


Entry: TypeAlias = Fragment | SnapshotPointer


def check_depth(depth: int) -> None:
    """Raise ValueError unless the depth fits wal3's byte."""
    if not 0 <= depth <= MAX_DEPTH:
        raise ValueError(f"depth must be between 0 and {MAX_DEPTH}, not {depth}")


def raise_first(faults: Iterable[CorruptionError]) -> None:
    """Raise the first of the faults, if there is one."""
    for fault in faults:
        raise fault


def run_faults(entries: Iterable[Entry], *, path: str) -> Iterator[CorruptionError]:
    """Yield where an entry holds no records, or does not begin where the last one ends."""
    limit: int | None = None
    for entry in entries:
        if entry.start >= entry.limit:
            yield CorruptionError(f"[{entry.start}, {entry.limit}) holds no record", path=path)
        if limit is not None and entry.start != limit:
            yield CorruptionError(
                f"records from {limit} to {entry.start} are missing or named twice",
                path=path,
                expected=limit,
                found=entry.start,
            )
        limit = entry.limit


def fragment_faults(fragments: Sequence[Fragment], *, path: str) -> Iterator[CorruptionError]:
    """Yield where the numbers do not go up by one, or the keys do not carry them."""
    expected = fragments[0].seq_no if fragments else 0
    for fragment in fragments:
        if fragment.seq_no != expected:
            yield CorruptionError(
                f"fragment {fragment.seq_no} stands where {expected} belongs",
                path=path,
                expected=expected,
                found=fragment.seq_no,
            )
        expected = fragment.seq_no + 1
        if layout.number_in(fragment.path) != fragment.seq_no:
            yield CorruptionError(
                f"fragment {fragment.seq_no} has the key {fragment.path!r}",
                path=path,
                expected=layout.fragment_path(fragment.seq_no),
                found=fragment.path,
            )


def _is_uuid(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        uuid.UUID(value)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run of fragments, or of deeper snapshots; never both. Its key is the sum of its records."""

    path: str
    """Its own key, relative to the log's prefix."""
    depth: int
    """Levels of snapshots from here down, this one included: 1 to 255."""
    setsum: Setsum
    """Sum of all records below."""
    writer: str
    """Who made it; for people."""
    snapshots: tuple[SnapshotPointer, ...]
    """The snapshots below, in offset order."""
    fragments: tuple[Fragment, ...]
    """The fragments below, in offset order."""

    def __post_init__(self) -> None:
        """Refuse a depth out of range; ValueError."""
        check_depth(self.depth)

    @classmethod
    def of(cls, children: Sequence[Fragment] | Sequence[SnapshotPointer], writer: str) -> Snapshot:
        """Return the snapshot above these fragments, or above these snapshots; ValueError if too deep."""
        setsum = Setsum.total(child.setsum for child in children)
        pointers = tuple(child for child in children if isinstance(child, SnapshotPointer))
        return cls(
            path=layout.snapshot_path(setsum),
            depth=1 + max((pointer.depth for pointer in pointers), default=0),
            setsum=setsum,
            writer=writer,
            snapshots=pointers,
            fragments=tuple(child for child in children if isinstance(child, Fragment)),
        )

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> Snapshot:
        """Read a snapshot found at ``path``; CorruptionError for a bad shape.

        Checks no more than the shape; see :meth:`scrub`.
        """
        return read_document(data, cls.from_fields, path=path)

    @classmethod
    def from_fields(cls, fields: Fields) -> Snapshot:
        """Read a snapshot that stands in another document; CorruptionError for a bad shape."""
        return cls(
            path=fields.text("path"),
            depth=fields.number("depth", maximum=MAX_DEPTH),
            setsum=fields.setsum("setsum"),
            writer=fields.text("writer"),
            snapshots=tuple(map(SnapshotPointer.from_fields, fields.objects("snapshots"))),
            fragments=tuple(map(Fragment.from_fields, fields.objects("fragments"))),
        )

    def serialise(self) -> bytes:
        """Return the bytes that wal3 would write for it."""
        return join_object(
            {
                "path": serialise(self.path),
                "depth": serialise(self.depth),
                "setsum": serialise(self.setsum.hexdigest()),
                "writer": serialise(self.writer),
                "snapshots": join_list(snapshot.serialise() for snapshot in self.snapshots),
                "fragments": join_list(fragment.serialise() for fragment in self.fragments),
            }
        )

    @property
    def children(self) -> tuple[SnapshotPointer, ...] | tuple[Fragment, ...]:
        """What it holds, in offset order."""
        return self.snapshots or self.fragments

    def pointer(self) -> SnapshotPointer:
        """Return what the level above must say of it; ValueError if it holds nothing."""
        children = self.children
        if not children:
            raise ValueError(f"a snapshot of nothing cannot be pointed at: {self.path}")
        return SnapshotPointer(
            setsum=self.setsum,
            path_to_snapshot=self.path,
            depth=self.depth,
            start=children[0].start,
            limit=children[-1].limit,
            num_bytes=sum(child.num_bytes for child in children),
        )

    def scrub(self, *, expected: SnapshotPointer | None = None) -> None:
        """Check all that must hold inside, and that it is the one ``expected`` points at.

        Raises CorruptionError. Records are not read; their sums are taken from the entries.
        """
        raise_first(self.faults(path=self.path))
        if expected is not None and self.pointer() != expected:
            raise CorruptionError(
                "a snapshot is not what is said of it",
                path=self.path,
                expected=expected,
                found=self,
            )

    def faults(self, *, path: str) -> Iterator[CorruptionError]:
        """Yield all that is wrong inside a snapshot found at ``path``."""
        if bool(self.snapshots) == bool(self.fragments):
            yield CorruptionError("a snapshot must hold either snapshots or fragments", path=path)
        deepest = max((snapshot.depth for snapshot in self.snapshots), default=0)
        if self.depth <= deepest:
            yield CorruptionError(
                f"a snapshot of depth {self.depth} stands above one of depth {deepest}", path=path
            )
        children = self.children
        yield from run_faults(children, path=path)
        yield from fragment_faults(self.fragments, path=path)
        total = Setsum.total(child.setsum for child in children)
        if self.setsum != total:
            yield CorruptionError(
                "the setsums of the parts do not add up",
                path=path,
                expected=self.setsum.hexdigest(),
                found=total.hexdigest(),
            )
        length = sum(child.num_bytes for child in children)
        if length > MAX_U64:
            yield CorruptionError(
                f"a snapshot claims {length} bytes of records", path=path, expected=MAX_U64
            )
        if self.path != layout.snapshot_path(self.setsum):
            yield CorruptionError(
                "a snapshot's key is not its setsum",
                path=path,
                expected=layout.snapshot_path(self.setsum),
                found=self.path,
            )
