"""Adoption: what to do with fragments that were put but never named by a manifest. Pure.

Several fragments are put at once, so a crash may leave some of them behind, with holes between. Each
is adopted where it lies, and the holes are filled by fragments cut exactly to fit: nothing is uploaded
twice, and nothing is lost.

A put may also arrive late, after others were cut without it. An orphan that overlaps the one before it
can never be published; it is left out here and replaced when its number comes (fragment_writer.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uploader.manifests.entries import Fragment


@dataclass(frozen=True, slots=True)
class Orphan:
    """A fragment found behind the manifest's end."""

    entry: Fragment
    """What the manifest would say of it."""
    timestamp_us: int
    """The fragment's own time, which its setsum covers."""
    maker: str | None = None
    """Who made it, as its footer says; None if that says nothing."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One fragment to come: adopted if ``orphan`` is set, else to be cut as ``[start, limit)``."""

    seq_no: int
    start: int
    limit: int
    orphan: Orphan | None = None


def plan(next_seq_no: int, next_offset: int, orphans: Sequence[Orphan]) -> list[Slot]:
    """Return how the log goes on from the manifest's end to the end of the last orphan that fits.

    ``orphans`` are in order of seq_no. The slots follow each other without gap, in numbers and in
    offsets; each holds at least one record.
    """
    slots: list[Slot] = []
    seq_no, offset = next_seq_no, next_offset
    for orphan in orphans:
        entry = orphan.entry
        holes = entry.seq_no - seq_no
        records = entry.start - offset
        if holes < 0 or records < holes or (records and not holes):
            continue
        first = offset
        for hole in range(holes):
            limit = first + records * (hole + 1) // holes
            slots.append(Slot(seq_no, offset, limit))
            seq_no, offset = seq_no + 1, limit
        slots.append(Slot(seq_no, entry.start, entry.limit, orphan))
        seq_no, offset = seq_no + 1, entry.limit
    return slots
