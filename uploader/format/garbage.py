"""Garbage: what a collection removes from a log, as a value, and how a manifest drops it. Pure.

Owns the document ``gc/GARBAGE`` (wal3's, byte for byte) and its effect on a manifest. ``garbage_plan.py``
decides what is garbage; ``collector.py`` does the I/O.

Invariants (tests/uploader/format/test_garbage.py)
  G1  Dropping garbage changes neither the setsum, ``acc_bytes``, the next offset nor the next fragment's
      number; what was live is afterwards live or collected.
  G2  Dropping the same garbage again changes nothing.
  G3  Garbage that a manifest cannot drop exactly as it was planned is not dropped at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

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
from uploader.format.entries import Fragment, Snapshot, SnapshotPointer
from uploader.format.inventory import Part, fragment_number, part_of
from uploader.format.layout import FIRST_OFFSET, FIRST_SEQ_NO
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError, FormatVersionError, WalError

_KEYS: Final = "fragment_keys"
_CHECKED: Final = "cursors_checked"


class StaleGarbageError(WalError):
    """The manifest is not the one that the garbage was planned for: entries were rolled up meanwhile.

    They are never unrolled, so this garbage can never be dropped; it has to be planned again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """The oldest part of a log, to be dropped from its manifest and then deleted."""

    snapshots_to_drop: tuple[SnapshotPointer, ...] = ()
    """Snapshots that nothing names afterwards, on all levels."""
    snapshots_to_make: tuple[Snapshot, ...] = ()
    """What remains of snapshots that are kept in part."""
    snapshot_for_root: SnapshotPointer | None = None
    """Takes the place of the manifest's dropped snapshots, if one of them is kept in part."""
    start_seq_no: int = 0
    """Number of the first fragment to be deleted."""
    limit_seq_no: int = 0
    """Number of the first fragment to be kept; 0 if there is no garbage."""
    setsum_to_discard: Setsum = dataclasses.field(default_factory=Setsum)
    """Sum of the removed records."""
    first_to_keep: int = FIRST_OFFSET
    """Where the log begins afterwards."""
    fragment_keys: tuple[str, ...] = ()
    """Keys of all fragments to remove, if the numbers do not determine them; of no use to wal3, whose own
    logs never need it."""
    cursors_checked: bool = dataclasses.field(default=False, compare=False)
    """Whether its collector has checked the cursors since it was announced, and none holds it: from then on
    writers may drop it (``garbage_file.py``). Of no use to wal3. The same garbage without it is equal."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits; ValueError."""
        check_u64(
            start_seq_no=self.start_seq_no,
            limit_seq_no=self.limit_seq_no,
            first_to_keep=self.first_to_keep,
        )

    @classmethod
    def parse(cls, data: bytes, *, path: str = layout.GARBAGE) -> Garbage:
        """Read the document; unknown fields are dropped.

        CorruptionError for a bad shape, FormatVersionError for one of a log replicated by wal3.
        """
        return read_document(data, cls._from_fields, path=path)

    @classmethod
    def _from_fields(cls, fields: Fields) -> Garbage:
        if fields.raw("fragments_are_uuids") is True:
            raise FormatVersionError(
                "fragments are named by UUIDs; logs replicated by wal3 cannot be collected",
                path=fields.path,
                found="UUID",
                supported="sequence number",
            )
        root = fields.object("snapshot_for_root") if fields.has("snapshot_for_root") else None
        garbage = cls(
            snapshots_to_drop=tuple(
                map(SnapshotPointer.from_fields, fields.objects("snapshots_to_drop"))
            ),
            snapshots_to_make=tuple(map(Snapshot.from_fields, fields.objects("snapshots_to_make"))),
            snapshot_for_root=None if root is None else SnapshotPointer.from_fields(root),
            start_seq_no=fields.number("fragments_to_drop_start"),
            limit_seq_no=fields.number("fragments_to_drop_limit"),
            setsum_to_discard=fields.setsum("setsum_to_discard"),
            first_to_keep=fields.position("first_to_keep"),
            fragment_keys=tuple(fields.texts(_KEYS)) if fields.has(_KEYS) else (),
            cursors_checked=fields.raw(_CHECKED) is True,
        )
        garbage._check_numbers(fields.path)
        return garbage

    def serialise(self) -> bytes:
        """Return the bytes that wal3 would write for it."""
        root = self.snapshot_for_root
        document = {
            "snapshots_to_drop": join_list(item.serialise() for item in self.snapshots_to_drop),
            "snapshots_to_make": join_list(item.serialise() for item in self.snapshots_to_make),
            "snapshot_for_root": serialise(None) if root is None else root.serialise(),
            "fragments_to_drop_start": serialise(self.start_seq_no),
            "fragments_to_drop_limit": serialise(self.limit_seq_no),
            "fragments_are_uuids": serialise(value=False),
            "setsum_to_discard": serialise(self.setsum_to_discard.hexdigest()),
            "first_to_keep": serialise(position(self.first_to_keep)),
        }
        if self.fragment_keys:
            document[_KEYS] = serialise(list(self.fragment_keys))
        if self.cursors_checked:
            document[_CHECKED] = serialise(value=True)
        return join_object(document)

    def scrub(self, *, path: str = layout.GARBAGE) -> None:
        """Check that it names only fragments and snapshots of a log, each by its own key.

        CorruptionError if not: no collector makes such an object.
        """
        self._scrub_fragments(path)
        pointers = self.snapshots_to_drop
        if self.snapshot_for_root is not None:
            pointers = (*pointers, self.snapshot_for_root)
        for pointer in pointers:
            if pointer.path_to_snapshot != layout.snapshot_path(pointer.setsum):
                raise CorruptionError(
                    f"a snapshot is said to be at {pointer.path_to_snapshot!r}", path=path
                )
        for snapshot in self.snapshots_to_make:
            snapshot.scrub()

    def _check_numbers(self, path: str) -> None:
        """Raise CorruptionError unless the fragments that go have a record each, below what is kept."""
        if not 0 <= self.limit_seq_no - self.start_seq_no <= self.first_to_keep:
            raise CorruptionError(
                f"fragments {self.start_seq_no} to {self.limit_seq_no} cannot all be below offset "
                f"{self.first_to_keep}",
                path=path,
                expected=self.first_to_keep,
                found=self.limit_seq_no - self.start_seq_no,
            )

    @property
    def is_empty(self) -> bool:
        """Whether it states that no collection is in progress."""
        return self == _NONE

    def objects(self) -> Iterator[tuple[str, Literal["fragment", "snapshot"]]]:
        """Yield the key of each object to delete, and what it is."""
        fragments = self.fragment_keys or map(
            layout.fragment_path, range(self.start_seq_no, self.limit_seq_no)
        )
        for key in fragments:
            yield key, "fragment"
        for key in dict.fromkeys(pointer.path_to_snapshot for pointer in self.snapshots_to_drop):
            yield key, "snapshot"

    def _scrub_fragments(self, path: str) -> None:
        if self.start_seq_no > self.limit_seq_no:
            raise CorruptionError(
                f"it ends at fragment {self.limit_seq_no}, before {self.start_seq_no}", path=path
            )
        if not self.fragment_keys:
            return
        numbers = range(self.start_seq_no, self.limit_seq_no)
        if len(self.fragment_keys) != len(numbers):
            raise CorruptionError(
                f"it has {len(self.fragment_keys)} keys for {len(numbers)} fragments", path=path
            )
        for key, number in zip(self.fragment_keys, numbers, strict=True):
            if part_of(key) is not Part.FRAGMENT or fragment_number(key) != number:
                raise CorruptionError(f"fragment {number} is said to be at {key!r}", path=path)


_NONE: Final = Garbage()


def first_seq_no(manifest: Manifest) -> int:
    """Return a lower bound of the numbers of the manifest's fragments, the lowest one it states."""
    if manifest.initial_seq_no is not None:
        return manifest.initial_seq_no
    if manifest.fragments and not manifest.snapshots:
        return manifest.fragments[0].seq_no
    return FIRST_SEQ_NO


def is_dropped(manifest: Manifest, garbage: Garbage) -> bool:
    """Return whether the manifest names nothing of the garbage any more, by its own account."""
    return garbage.first_to_keep <= manifest.oldest_offset and garbage.limit_seq_no <= first_seq_no(
        manifest
    )


def apply_garbage(manifest: Manifest, garbage: Garbage) -> Manifest | None:
    """Return the manifest without the garbage; None if it has dropped it already, or if it is empty.

    StaleGarbageError if the garbage does not fit the manifest, CorruptionError if the result would not
    be sound. Its writer stays: a collector does not write.
    """
    if garbage.is_empty or garbage.first_to_keep <= manifest.oldest_offset:
        return None
    doomed = set(garbage.snapshots_to_drop)
    snapshots = [pointer for pointer in manifest.snapshots if pointer not in doomed]
    numbers = range(garbage.start_seq_no, garbage.limit_seq_no)
    fragments: list[Fragment] = []
    dropped = [pointer.setsum for pointer in manifest.snapshots if pointer in doomed]
    for fragment in manifest.fragments:
        if fragment.seq_no in numbers:
            dropped.append(fragment.setsum)
        else:
            fragments.append(fragment)
    discarded = Setsum.total(dropped)
    root = garbage.snapshot_for_root
    if root is not None and root not in snapshots:
        snapshots.insert(0, root)
        discarded -= root.setsum
    if discarded != garbage.setsum_to_discard:
        raise StaleGarbageError(
            "the manifest has changed since the garbage was planned; plan the collection again"
        )
    made = dataclasses.replace(
        manifest,
        collected=manifest.collected + discarded,
        snapshots=tuple(snapshots),
        fragments=tuple(fragments),
        initial_offset=garbage.first_to_keep,
        initial_seq_no=garbage.limit_seq_no,
    )
    _check_balance(manifest, made)
    return made


def _check_balance(before: Manifest, after: Manifest) -> None:
    after.scrub(path=layout.GARBAGE)
    before.scrub_successor(after, path=layout.GARBAGE)
    for name in ("next_offset", "next_seq_no"):
        expected, found = getattr(before, name), getattr(after, name)
        if found != expected:
            raise CorruptionError(
                f"dropping the garbage would move {name} from {expected} to {found}",
                path=layout.GARBAGE,
                expected=expected,
                found=found,
            )
