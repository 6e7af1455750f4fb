"""Snapshots: immutable inner nodes of the tree under a manifest. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uploader.format import layout
from uploader.format.document import Fields, join_list, join_object, read_document, serialise
from uploader.format.entries import (
    MAX_DEPTH,
    Fragment,
    SnapshotPointer,
    check_depth,
    scrub_fragments,
    scrub_run,
)
from uploader.format.layout import MAX_U64
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError


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

    def pointer(self) -> SnapshotPointer:
        """Return what the level above must say of it; ValueError if it holds nothing."""
        children = self.snapshots or self.fragments
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
        if bool(self.snapshots) == bool(self.fragments):
            raise CorruptionError(
                "a snapshot must hold either snapshots or fragments", path=self.path
            )
        deepest = max((snapshot.depth for snapshot in self.snapshots), default=0)
        if self.depth <= deepest:
            raise CorruptionError(
                f"a snapshot of depth {self.depth} stands above one of depth {deepest}",
                path=self.path,
            )
        children = self.snapshots or self.fragments
        scrub_run(children, path=self.path)
        scrub_fragments(self.fragments, path=self.path)
        _scrub_sum(self.setsum, Setsum.total(child.setsum for child in children), self.path)
        length = sum(child.num_bytes for child in children)
        if length > MAX_U64:
            raise CorruptionError(
                f"a snapshot claims {length} bytes of records", path=self.path, expected=MAX_U64
            )
        if self.path != layout.snapshot_path(self.setsum):
            raise CorruptionError(
                "a snapshot's key is not its setsum",
                path=self.path,
                expected=layout.snapshot_path(self.setsum),
                found=self.path,
            )
        if expected is not None and self.pointer() != expected:
            raise CorruptionError(
                "a snapshot is not what is said of it",
                path=self.path,
                expected=expected,
                found=self,
            )


def _scrub_sum(stated: Setsum, found: Setsum, path: str) -> None:
    if stated != found:
        raise CorruptionError(
            "the setsums of the parts do not add up",
            path=path,
            expected=stated.hexdigest(),
            found=found.hexdigest(),
        )
