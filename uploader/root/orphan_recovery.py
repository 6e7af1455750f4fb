"""Adoption: what to do with fragments that were put but never named by a manifest. Pure.

Several fragments are put at once, so a crash may leave some of them behind, with holes between. Each
is adopted in place, and the holes are filled by fragments cut exactly to fit: nothing is uploaded
twice, and nothing is lost.

A put may also arrive late, after others were cut without it. An orphan that overlaps the one before it
can never be published; it is left out here and replaced when its number comes (fragment_puts.py).

wal3's programs do not check where a fragment begins: they link any object at the next number, even
when they only open a log. An orphan that does not continue the log would destroy it. So it is voided: a
conditional put replaces it by bytes that no program takes for a fragment, and that ours treats as absent.
It is not deleted: a delete has no condition, and a late one would remove an object that has been put
there since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from uploader.format.entries import Fragment

VOID: Final = b'{"void":true}'
"""Replaces a fragment that could never be published. It counts as an empty place."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A fragment found behind the manifest's end."""

    entry: Fragment
    """Its entry for the manifest."""
    timestamp_us: int
    """The fragment's own time, which its setsum covers."""
    maker: str | None = None
    """Its maker by the footer; None if the footer names none."""
    closings: int | None = None
    """How many closings of streams its maker knew; None if it is not bound to them."""
    streams: frozenset[str] = frozenset()
    """Which streams it has records of, if it is bound to closings."""


@dataclass(frozen=True, slots=True)
class FragmentSlot:
    """One fragment to come: adopted if ``orphan`` is set, else to be cut as ``[start, limit)``."""

    seq_no: int
    start: int
    limit: int
    orphan: Orphan | None = None


def can_follow(entry: Fragment, seq_no: int, offset: int) -> bool:
    """Return whether a fragment can become part of a log that continues with ``seq_no`` at ``offset``.

    False is final: every fragment before it holds at least one record.
    """
    holes, records = entry.seq_no - seq_no, entry.start - offset
    return 0 <= holes <= records and (holes > 0 or records == 0)


def plan(next_seq_no: int, next_offset: int, orphans: Sequence[Orphan]) -> list[FragmentSlot]:
    """Return how the log continues from the manifest's end to the end of the last orphan that fits.

    ``orphans`` are in order of seq_no. The slots follow each other without gap, in numbers and in
    offsets; each holds at least one record.
    """
    slots: list[FragmentSlot] = []
    seq_no, offset = next_seq_no, next_offset
    for orphan in orphans:
        entry = orphan.entry
        if not can_follow(entry, seq_no, offset):
            continue
        holes = entry.seq_no - seq_no
        records = entry.start - offset
        first = offset
        for hole in range(holes):
            limit = first + records * (hole + 1) // holes
            slots.append(FragmentSlot(seq_no, offset, limit))
            seq_no, offset = seq_no + 1, limit
        slots.append(FragmentSlot(seq_no, entry.start, entry.limit, orphan))
        seq_no, offset = seq_no + 1, entry.limit
    return slots
