"""Compaction: which batches become one, and the work of making it on this machine.

Each pass adds pending batches to the merged area and merges the newest batches with them, as long as the
older one is not in a higher layer. So the layers decrease from the oldest batch to the newest, and an
update is rewritten once for each layer that it climbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.head import Consumed, Head
from uploader.versioned.pending import cover
from uploader.versioned.pending_batch import PendingBatch, PendingPart
from uploader.versioned.schema import CollectionSchema
from uploader.versioned.version import MergedBatch

MOST_LOCAL_ROWS: Final = 16_000_000
"""The local engine holds the inputs of a pass in memory: so many updates, unless one batch has more."""
MOST_OBJECT_ROWS: Final = 2_000_000
"""A merged batch is divided into objects of at most so many updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """One pass: ``run`` and ``parts`` become one batch."""

    run: tuple[MergedBatch, ...]
    """Batches that follow each other in the newest version."""
    parts: tuple[PendingPart, ...] = field(repr=False)
    """Pending batches that follow the merged area; if there are any, the run ends with it."""
    lower: int
    upper: int
    since: int
    """Times are advanced to it."""
    is_oldest: bool
    """Whether the output is the oldest batch: nothing before it could be removed by its tombstones."""

    @property
    def rows(self) -> int:
        """Updates of all inputs, those of pending batches counted whole."""
        return sum(batch.rows for batch in self.run) + sum(
            part.batch.footer.rows for part in self.parts
        )

    @property
    def size_bytes(self) -> int:
        """Length of all inputs."""
        return sum(batch.size_bytes for batch in self.run) + sum(
            part.batch.size_bytes for part in self.parts
        )

    def consumed(self) -> list[Consumed]:
        """Return what to remember of the pending batches of which nothing is left out at the end."""
        return [
            Consumed(
                writer=part.batch.writer,
                lower=part.batch.lower,
                upper=part.batch.upper,
                digest=part.batch.footer.digest,
            )
            for part in self.parts
            if part.limit == part.batch.upper
        ]


def plan_compaction(
    head: Head,
    pending: Sequence[PendingBatch],
    *,
    is_full: bool = False,
    most_rows: int = MOST_LOCAL_ROWS,
    limit: int | None = None,
) -> CompactionPlan | None:
    """Return the next pass; None if there is nothing to do.

    Args:
        head: The newest head, after leases that have ended were removed.
        pending: The batches of all shards that reach beyond the merged area.
        is_full: Whether all batches become one, unless that was done with this ``since``, or they have more
            than ``most_rows`` updates.
        most_rows: A pass takes no more updates, unless one pending batch has more.
        limit: Nothing pending from this time on is merged.
    """
    parts = _first(cover(pending, head.upper, limit=limit), most_rows)
    batches = head.version.batches
    rows = sum(part.batch.footer.rows for part in parts)
    if is_full and rows + head.version.rows <= most_rows:
        if not parts and (not batches or (len(batches) == 1 and batches[0].since == head.since)):
            return None
        start, end = 0, len(batches)
    else:
        end = len(batches) if parts else _unsettled(batches, most_rows)
        start = _start(batches[:end], rows, most_rows) if parts else max(end - 2, 0)
        if start == end and not parts:
            return None
    run = batches[start:end]
    return CompactionPlan(
        run=run,
        parts=tuple(parts),
        lower=run[0].lower if run else head.upper,
        upper=parts[-1].limit if parts else run[-1].upper,
        since=head.since,
        is_oldest=start == 0,
    )


def _first(parts: Sequence[PendingPart], most_rows: int) -> list[PendingPart]:
    """Return the first parts with about ``most_rows`` updates, at least one."""
    taken: list[PendingPart] = []
    rows = 0
    for part in parts:
        rows += part.batch.footer.rows
        if taken and rows > most_rows:
            break
        taken.append(part)
    return taken


def _start(batches: Sequence[MergedBatch], rows: int, most_rows: int) -> int:
    """Return the index of the first of the newest batches that join so many newer updates."""
    start = len(batches)
    while start > 0:
        older = batches[start - 1]
        if older.layer > _layer(rows) or rows + older.rows > most_rows:
            break
        start, rows = start - 1, rows + older.rows
    return start


def _unsettled(batches: Sequence[MergedBatch], most_rows: int) -> int:
    """Return the end of the newest two batches of which the older one is in no higher layer; 0 if none."""
    for end in range(len(batches), 1, -1):
        older, newer = batches[end - 2 : end]
        if older.layer <= newer.layer and older.rows + newer.rows <= most_rows:
            return end
    return 0


def _layer(rows: int) -> int:
    return max(rows - 1, 0).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFile:
    """One object of a merged batch, not put yet."""

    data: bytes = field(repr=False)
    rows: int
    digest: int


def merge(
    tables: Sequence[pa.Table], plan: CompactionPlan, schema: CollectionSchema
) -> list[pa.Table]:
    """Return the rows of each object of the output; none if no update is left.

    CorruptionError if a digest changes. Takes a processor for some time: belongs on a thread.
    """
    table = updates.consolidate(tables, schema, since=plan.since, is_oldest=plan.is_oldest)
    objects = -(-table.num_rows // MOST_OBJECT_ROWS)
    rows = -(-table.num_rows // max(objects, 1))  # of one length: they are encoded side by side
    return [table.slice(number * rows, rows) for number in range(objects)]


def merged_file(
    table: pa.Table,
    schema: CollectionSchema,
    *,
    collection: str,
    lower: int,
    upper: int,
    since: int,
) -> MergedFile:
    """Return consolidated updates as one object of a merged batch. Takes a processor for some time."""
    footer = BatchFooter(
        collection=collection,
        writer=None,
        lower=lower,
        upper=upper,
        since=since,
        rows=table.num_rows,
        digest=updates.digest(table),
        schema_id=schema.id,
    )
    data = batch_file.encode(table, footer, schema=schema)
    return MergedFile(data=data, rows=footer.rows, digest=footer.digest)
