"""The manifest: the root that names every fragment of a log, as a value. Pure.

Owns its JSON form (wal3's, byte for byte), how fragments are added to it, and its invariants. Never does
I/O: ``swapped_root.py`` swaps it, ``cloud_log.py`` follows its snapshots.

A mark before the name of the writer that wrote the manifest last records that the log is sealed, or
destroyed. wal3's programs keep that field when they rewrite a manifest to drop collected fragments, and every
manifest has it. So the mark goes in with one change of the root, like everything else that is decided about a
log; ``seal.py`` and ``destroy.py`` make it. A program that knows the first mark only takes a destroyed log
for a sealed one.

Behind that name is the number from which on all fragments are ours. wal3's programs, and older ones of ours,
replace the whole field when they append: then the next fragment of ours begins again.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

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
from uploader.format.entries import (
    Entry,
    Fragment,
    Snapshot,
    SnapshotPointer,
    fragment_faults,
    raise_first,
    run_faults,
)
from uploader.format.layout import FIRST_OFFSET, FIRST_SEQ_NO, MAX_U64
from uploader.format.setsum import Setsum
from walstore.core.offset_range import OffsetRange
from walstore.errors import CorruptionError, LogSealedError

__all__ = ["Fragment", "Manifest", "Snapshot", "SnapshotPointer"]

SHORT_ENTRIES: Final = 256
REWRITTEN: Final = (
    "the log was replaced, or its history rewritten; stop its writers, find out which history is the right "
    "one, then open the log again"
)
"""What it means that records which were named are not any more, and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a log holds in the cloud. The snapshots' records come first, then the fragments'."""

    setsum: Setsum
    """Sum of every record ever appended."""
    collected: Setsum
    """Sum of the records that garbage collection took away."""
    acc_bytes: int
    """Length of all fragments ever added; it never shrinks, and stays at the largest u64 once there."""
    writer: str
    """Who wrote it last, and which directory holds the log; see ``uploader/root/ownership.py``."""
    snapshots: tuple[SnapshotPointer, ...] = ()
    """Oldest records, in offset order."""
    fragments: tuple[Fragment, ...] = ()
    """Newest records, in offset order; not empty if there are snapshots."""
    initial_offset: int | None = None
    """Where the log begins, if that is not offset 1."""
    initial_seq_no: int | None = None
    """Number of the oldest fragment, if that is not 1. The next one's if the log is empty."""
    ours_from: int | None = None
    """Number of a fragment from which on all have our columns, of this version; None if not known."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits; ValueError."""
        check_u64(
            acc_bytes=self.acc_bytes,
            initial_offset=self.initial_offset or 0,
            initial_seq_no=self.initial_seq_no or 0,
        )

    @classmethod
    def initial(
        cls, writer: str, *, start: int = FIRST_OFFSET, seq_no: int = FIRST_SEQ_NO
    ) -> Manifest:
        """Return the manifest of a log that never held a record, and begins with that offset and number."""
        is_usual = (start, seq_no) == (FIRST_OFFSET, FIRST_SEQ_NO)
        return cls(
            setsum=Setsum(),
            collected=Setsum(),
            acc_bytes=0,
            writer=writer,
            initial_offset=None if is_usual else start,
            initial_seq_no=None if is_usual else seq_no,
        )

    @classmethod
    def parse(cls, data: bytes, *, path: str = layout.MANIFEST) -> Manifest:
        """Read a manifest found at ``path``; unknown fields are dropped.

        CorruptionError for a bad shape, FormatVersionError for a log replicated by wal3. Checks no more
        than the shape; see :meth:`scrub`.
        """
        return read_document(data, cls.from_fields, path=path)

    @classmethod
    def from_fields(cls, fields: Fields) -> Manifest:
        """Read a manifest that is part of another document; CorruptionError for a bad shape."""
        initial = "initial_offset", "initial_seq_no"
        writer, ours_from = _split_writer(fields.text("writer"))
        return cls(
            setsum=fields.setsum("setsum"),
            collected=fields.setsum("collected", default=Setsum()),
            acc_bytes=fields.number("acc_bytes"),
            writer=writer,
            ours_from=ours_from,
            snapshots=tuple(map(SnapshotPointer.from_fields, fields.objects("snapshots"))),
            fragments=tuple(map(Fragment.from_fields, fields.objects("fragments"))),
            initial_offset=fields.position(initial[0]) if fields.has(initial[0]) else None,
            initial_seq_no=fields.number(initial[1]) if fields.has(initial[1]) else None,
        )

    def serialise(self) -> bytes:
        """Return the bytes that wal3 would write for it."""
        document = {
            "setsum": serialise(self.setsum.hexdigest()),
            "collected": serialise(self.collected.hexdigest()),
            "acc_bytes": serialise(self.acc_bytes),
            "writer": serialise(_join_writer(self.writer, self.ours_from)),
            "snapshots": join_list(snapshot.serialise() for snapshot in self.snapshots),
            "fragments": join_list(fragment.serialise() for fragment in self.fragments),
        }
        if self.initial_offset is not None:
            document["initial_offset"] = serialise(position(self.initial_offset))
        if self.initial_seq_no is not None:
            document["initial_seq_no"] = serialise(self.initial_seq_no)
        return join_object(document)

    @property
    def oldest_offset(self) -> int:
        """Offset of the first record; :attr:`next_offset` if there is none."""
        first: tuple[Entry, ...] = self.snapshots[:1] or self.fragments[:1]
        if first:
            return first[0].start
        return FIRST_OFFSET if self.initial_offset is None else self.initial_offset

    @property
    def next_offset(self) -> int:
        """Offset of the next record to be added."""
        last: tuple[Entry, ...] = self.fragments[-1:] or self.snapshots[-1:]
        if last:
            return last[0].limit
        return FIRST_OFFSET if self.initial_offset is None else self.initial_offset

    @property
    def offsets(self) -> OffsetRange:
        """Offsets of the records."""
        return OffsetRange(self.oldest_offset, self.next_offset)

    @property
    def is_short(self) -> bool:
        """Whether it is so short that serialising it takes a fraction of a millisecond, and a few
        milliseconds if none of its entries ever was."""
        return len(self.snapshots) + len(self.fragments) <= SHORT_ENTRIES

    @property
    def next_seq_no(self) -> int:
        """Number of the next fragment to be added."""
        if self.fragments:
            return self.fragments[-1].seq_no + 1
        return FIRST_SEQ_NO if self.initial_seq_no is None else self.initial_seq_no

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that it names, in offset order."""
        return (*self.snapshots, *self.fragments)

    @property
    def live_bytes(self) -> int:
        """Length of all fragments that the log holds."""
        return sum(entry.num_bytes for entry in self.entries)

    @property
    def bounds(self) -> dict[int, int]:
        """Offsets at which an entry begins, and the next one, in order; how many entries come before each."""
        found = {entry.start: at for at, entry in enumerate(self.entries)}
        found[self.next_offset] = len(self.entries)
        return found

    @property
    def is_sealed(self) -> bool:
        """Whether the log takes no more records, for good."""
        return is_sealed_by(self.writer)

    def seal(self) -> Manifest:
        """Return the manifest of the same log, sealed. What it holds stays as it is."""
        return dataclasses.replace(self, writer=seal_writer(self.writer))

    @property
    def is_rebuilding(self) -> bool:
        """Whether the log is sealed, but only until a rebuild has come to its end."""
        return is_rebuilding_by(self.writer)

    def begin_rebuilding(self) -> Manifest:
        """Return the manifest of the same log, sealed until :meth:`end_rebuilding`."""
        return dataclasses.replace(self, writer=rebuilding_writer(self.writer))

    def end_rebuilding(self) -> Manifest:
        """Return the manifest of the same log without the mark of a rebuild."""
        return dataclasses.replace(self, writer=rebuilt_writer(self.writer))

    @property
    def is_destroyed(self) -> bool:
        """Whether it is the last manifest of a destroyed log, which is sealed, too, and names nothing."""
        return is_ended_by(self.writer)

    def destroy(self) -> Manifest:
        """Return the last manifest of the same log: sealed, and all that it held counts as collected."""
        return dataclasses.replace(
            self,
            collected=self.setsum,
            writer=end_writer(self.writer),
            snapshots=(),
            fragments=(),
            initial_offset=self.next_offset,
            initial_seq_no=self.next_seq_no,
        )

    def apply_fragments(self, fragments: Iterable[Fragment], writer: str) -> Manifest:
        """Return the manifest with more fragments at its end.

        LogSealedError if the log is sealed. ValueError unless they continue the log: each with the next
        number, and records that begin at the next offset. Their keys are the root's business.
        """
        if self.is_sealed:
            raise LogSealedError("the log is sealed; begin another one", location=layout.MANIFEST)
        added = tuple(fragments)
        offset, seq_no, ours_from = self.next_offset, self.next_seq_no, self.ours_from
        for fragment in added:
            if (fragment.seq_no, fragment.start) != (seq_no, offset):
                raise ValueError(
                    f"fragment {fragment.seq_no} at offset {fragment.start} does not continue the log, "
                    f"which expects fragment {seq_no} at offset {offset}"
                )
            if fragment.start >= fragment.limit:
                raise ValueError(f"fragment {fragment.seq_no} holds no record")
            offset, seq_no = fragment.limit, seq_no + 1
            if not fragment.is_ours:
                ours_from = None
            elif ours_from is None:
                ours_from = fragment.seq_no
        grown = self.acc_bytes + sum(fragment.num_bytes for fragment in added)
        return dataclasses.replace(
            self,
            setsum=Setsum.total([self.setsum, *(fragment.setsum for fragment in added)]),
            acc_bytes=min(grown, MAX_U64),
            writer=writer,
            fragments=self.fragments + added,
            ours_from=ours_from,
        )

    def scrub(self, *, path: str = layout.MANIFEST) -> None:
        """Check all that must hold inside a manifest; CorruptionError names what does not.

        Snapshots and records are not read; their sums are taken from the entries.
        """
        raise_first(self.faults(path=path))

    def faults(self, *, path: str = layout.MANIFEST) -> Iterator[CorruptionError]:
        """Yield all that is wrong inside a manifest; see :meth:`scrub`."""
        if self.snapshots and not self.fragments:
            yield CorruptionError("no fragment is left outside the snapshots", path=path)
        yield from run_faults(self.entries, path=path)
        yield from fragment_faults(self.fragments, path=path)
        if self.next_seq_no > MAX_U64:
            yield CorruptionError("no number is left for another fragment", path=path)
        for snapshot in self.snapshots:
            yield from _pointer_faults(snapshot, path)
        yield from self._beginning_faults(path)
        live = Setsum.total(entry.setsum for entry in self.entries)
        if self.setsum != live + self.collected:
            yield CorruptionError(
                "the setsums of what is left and what was collected do not add up",
                path=path,
                expected=self.setsum.hexdigest(),
                found=(live + self.collected).hexdigest(),
            )
        if self.acc_bytes < min(self.live_bytes, MAX_U64):
            yield CorruptionError(
                f"{self.live_bytes} bytes are held, but only {self.acc_bytes} were ever added",
                path=path,
            )

    def scrub_successor(self, successor: Manifest, *, path: str = layout.MANIFEST) -> None:
        """Check that ``successor``, which is sound, may have replaced this one.

        No growing value went back, and every record that was named before is still named, or counted
        as collected. Snapshots are not read: if the end of this manifest is inside a snapshot of the
        successor, its reader compares (:meth:`ManifestTree.expect`). CorruptionError if it is no
        successor; then something other than a writer or collector of this log put it there.
        """
        for name in ("acc_bytes", "oldest_offset", "next_offset", "next_seq_no"):
            before, after = getattr(self, name), getattr(successor, name)
            if after < before:
                raise CorruptionError(
                    f"{name} went back from {before} to {after}",
                    path=path,
                    expected=before,
                    found=after,
                )
        _scrub_history(self, successor, path)

    def _beginning_faults(self, path: str) -> Iterator[CorruptionError]:
        if self.initial_offset is not None and self.initial_offset != self.oldest_offset:
            yield CorruptionError(
                f"the log begins at {self.oldest_offset}, not at its initial offset",
                path=path,
                expected=self.initial_offset,
                found=self.oldest_offset,
            )
        oldest = self.initial_seq_no
        if oldest is not None and self.fragments and self.fragments[0].seq_no < oldest:
            yield CorruptionError(
                f"fragment {self.fragments[0].seq_no} comes before the initial one",
                path=path,
                expected=oldest,
                found=self.fragments[0].seq_no,
            )


def _pointer_faults(snapshot: SnapshotPointer, path: str) -> Iterator[CorruptionError]:
    expected = layout.snapshot_path(snapshot.setsum)
    if snapshot.path_to_snapshot != expected:
        yield CorruptionError(
            "a snapshot's key is not its setsum",
            path=path,
            expected=expected,
            found=snapshot.path_to_snapshot,
        )
    if not snapshot.depth:
        yield CorruptionError("a snapshot has depth 0", path=path)


def _scrub_history(before: Manifest, after: Manifest, path: str) -> None:
    """Raise CorruptionError unless two manifests agree on all records of which both speak.

    Wherever an entry begins in both, the records before it must have the same sum, collected ones included.
    Fragments never change, so none of either may reach over such a place of the other.
    """
    old, new = before.bounds, after.bounds
    for fragments, offsets in ((before.fragments, [*new]), (after.fragments, [*old])):
        for fragment in fragments:
            at = bisect_right(offsets, fragment.start)
            if at < len(offsets) and offsets[at] < fragment.limit:
                raise _rewritten(fragment.start, fragment.limit, path)
    held = before.entries, after.entries
    sums, low = [before.collected, after.collected], (0, 0)
    start = layout.FIRST_OFFSET
    for offset in (offset for offset in old if offset in new):
        high = old[offset], new[offset]
        for side in (0, 1):
            sums[side] = _sum_of(sums[side], held[side][low[side] : high[side]])
        if sums[0] != sums[1]:
            raise _rewritten(start, offset, path, expected=sums[0], found=sums[1])
        sums, low, start = [_ZERO, _ZERO], high, offset


def _sum_of(base: Setsum, entries: Sequence[Entry]) -> Setsum:
    if base is _ZERO and len(entries) == 1:
        return entries[0].setsum  # most are compared one by one
    return Setsum.total((base, *(entry.setsum for entry in entries)))


def _rewritten(
    start: int,
    limit: int,
    path: str,
    *,
    expected: Setsum | None = None,
    found: Setsum | None = None,
) -> CorruptionError:
    return CorruptionError(
        f"records [{start}, {limit}) are not those that were there before: {REWRITTEN}",
        path=path,
        expected=None if expected is None else expected.hexdigest(),
        found=None if found is None else found.hexdigest(),
    )


_ZERO: Final = Setsum()


_MARK: Final = "walstore sealed, was: "
_LAST_MARK: Final = _MARK + "walstore destroyed, was: "
_REBUILDING: Final = _MARK + "walstore rebuilding, was: "
_BLOCKER: Final = b'{"sealed":true,'


_OURS: Final = re.compile(
    rf"(.*) fragments {layout.FRAGMENT_FORMAT} from ([0-9]{{1,20}})", re.DOTALL
)


def _join_writer(writer: str, ours_from: int | None) -> str:
    if ours_from is None:
        return writer
    return f"{writer} fragments {layout.FRAGMENT_FORMAT} from {ours_from}"


def _split_writer(text: str) -> tuple[str, int | None]:
    """Return what :func:`_join_writer` was given; a whole text that says nothing of fragments is a name."""
    found = _OURS.fullmatch(text)
    if found is None or int(found[2]) > MAX_U64:
        return text, None
    return found[1], int(found[2])


def seal_writer(writer: str) -> str:
    """Return the writer's name with the mark before it; once is enough."""
    return writer if is_sealed_by(writer) else _MARK + writer


def is_sealed_by(writer: str) -> bool:
    """Return whether a manifest with that writer is one of a sealed log."""
    return writer.startswith(_MARK)


def end_writer(writer: str) -> str:
    """Return the writer's name with the marks of a sealed and destroyed log before it; once is enough."""
    sealed = seal_writer(writer)
    return sealed if is_ended_by(sealed) else _LAST_MARK + sealed.removeprefix(_MARK)


def is_ended_by(writer: str) -> bool:
    """Return whether a manifest with that writer is the last one of a destroyed log."""
    return writer.startswith(_LAST_MARK)


def rebuilding_writer(writer: str) -> str:
    """Return the writer's name with the marks of a log that is sealed as long as it is being rebuilt."""
    return _REBUILDING + writer


def is_rebuilding_by(writer: str) -> bool:
    """Return whether a manifest with that writer is one of a log that is being rebuilt."""
    return writer.startswith(_REBUILDING)


def rebuilt_writer(writer: str) -> str:
    """Return what :func:`rebuilding_writer` was given."""
    return writer.removeprefix(_REBUILDING)


def blocker(limit: int) -> bytes:
    """Return the object in the place of a sealed log's next fragment; it is not a fragment.

    wal3's writers read it, and cannot continue. It is put before the mark (``seal.py``). ``limit`` is
    where the log ends.
    """
    return b'%s"limit":{"offset":%d}}' % (_BLOCKER, limit)


def is_blocker(data: bytes) -> bool:
    """Return whether an object found at a fragment's key is what :func:`blocker` makes."""
    return data.startswith(_BLOCKER)
