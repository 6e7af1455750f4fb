"""Scans: the objects that contain a collection at a time, or its changes, for other Parquet readers.

Pure. A scan's files are in the order of their intervals, and the order counts: of one key, an update in a
later file is later, even if compaction advanced the time of the earlier one beyond it. A reader that does
not keep the files' order may use :meth:`ScanFile.latest` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from uploader.versioned.head import Head
from uploader.versioned.pending_batch import PendingPart
from uploader.versioned.schema import CollectionSchema
from uploader.versioned.version import MergedBatch
from walstore.errors import SinceViolationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFile:
    """One Parquet object of a scan. Of its updates only those at times ``start <= _t < limit`` count."""

    key: str
    """Its key below the collection's URL."""
    start: int
    limit: int
    lower: int
    """The interval of its batch: the intervals of a scan's batches do not overlap."""
    upper: int
    schema_id: int
    """The schema that it was written in; some of a merged batch's updates may be from an older one."""
    rows: int
    """Updates in it; of a merged batch with several objects, their average."""
    size_bytes: int
    """Its length; of a merged batch with several objects, an average whose sum is exact."""
    digest: int | None
    """Of all its updates; None for one of several objects of a merged batch."""

    @property
    def is_whole(self) -> bool:
        """Whether all its updates count."""
        return self.start <= self.lower and self.upper <= self.limit

    @property
    def latest(self) -> int:
        """The last time of its interval. A greater ``_t`` was advanced, and is treated as this time.

        Then the times alone, without the order of the files, say which of two updates of a key is later.
        """
        return self.upper - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionScan:
    """The objects that contain the content at ``as_of``, or, with ``after``, the updates from there to it."""

    url: str
    """The collection's location, without credentials."""
    collection: str
    """Its random id, which each object's footer names."""
    schema: CollectionSchema
    """The newest one. Objects may have fewer columns and narrower types."""
    version: int
    """The version of the merged area."""
    since: int
    as_of: int
    """The last time; -1 for the content of a collection without any update."""
    after: int | None
    """Updates up to and at this time do not count; None for the content."""
    files: tuple[ScanFile, ...] = field(repr=False)

    def without_files(self) -> CollectionScan:
        """Return what all tasks of a scan need."""
        return replace(self, files=())


def plan_scan(
    head: Head, parts: Sequence[PendingPart], *, url: str, as_of: int, after: int | None
) -> CollectionScan:
    """Return the scan of what ``head`` and parts of the pending area contain.

    SinceViolationError if the collection does not distinguish times after ``after``.
    """
    start = 0 if after is None else after + 1
    merged = [batch for batch in head.version.before(as_of + 1) if batch.upper > start]
    files = []
    for batch in merged:
        if after is not None and batch.since > max(after, 0):
            raise SinceViolationError(
                "the collection no longer distinguishes these times", as_of=after, since=batch.since
            )
        files += _merged_files(batch, start, as_of + 1)
    files += [
        ScanFile(
            key=part.batch.key,
            start=max(part.start, start),
            limit=part.limit,
            lower=part.batch.lower,
            upper=part.batch.upper,
            schema_id=part.batch.footer.schema_id,
            rows=part.batch.footer.rows,
            size_bytes=part.batch.size_bytes,
            digest=part.batch.footer.digest,
        )
        for part in parts
        if part.batch.footer.rows and part.limit > start
    ]
    return CollectionScan(
        url=url,
        collection=head.collection,
        schema=head.schema,
        version=head.version.n,
        since=head.since,
        as_of=as_of,
        after=after,
        files=tuple(files),
    )


def _merged_files(batch: MergedBatch, start: int, limit: int) -> list[ScanFile]:
    objects = len(batch.keys)
    return [
        ScanFile(
            key=key,
            start=start,
            limit=limit,
            lower=batch.lower,
            upper=batch.upper,
            schema_id=batch.schema_id,
            rows=batch.rows // objects,
            size_bytes=batch.size_bytes // objects + (at < batch.size_bytes % objects),
            digest=batch.digest if objects == 1 else None,
        )
        for at, key in enumerate(batch.keys)
    ]
