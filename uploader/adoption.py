"""Adoption: what to do with fragments that were put but never named by a manifest. Pure.

Several fragments are put at once, so a crash may leave some of them behind, with holes between. Each
is adopted where it lies, and the holes are filled by fragments cut exactly to fit: nothing is uploaded
twice, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uploader.entries import Fragment
from walstore.errors import ContentionError


@dataclass(frozen=True, slots=True)
class Slot:
    """One fragment to come: adopted if ``orphan`` is set, else to be cut as ``[start, limit)``."""

    seq_no: int
    start: int
    limit: int
    orphan: Fragment | None = None


def plan(next_seq_no: int, next_offset: int, orphans: Sequence[Fragment]) -> list[Slot]:
    """Return how the log goes on from the manifest's end to the end of the last orphan.

    ``orphans`` are in order of seq_no. Raises ContentionError if they do not continue the log, which
    means that somebody else put them.
    """
    slots: list[Slot] = []
    seq_no, offset = next_seq_no, next_offset
    for orphan in orphans:
        holes = orphan.seq_no - seq_no
        records = orphan.start - offset
        if holes < 0 or records < holes or (records and not holes):
            raise ContentionError(
                f"fragment {orphan.seq_no} holds offsets [{orphan.start}, {orphan.limit}) and does "
                f"not continue the log at {offset}: another writer put it"
            )
        first = offset
        for hole in range(holes):
            limit = first + records * (hole + 1) // holes
            slots.append(Slot(seq_no, offset, limit))
            seq_no, offset = seq_no + 1, limit
        slots.append(Slot(seq_no, orphan.start, orphan.limit, orphan))
        seq_no, offset = seq_no + 1, orphan.limit
    return slots
