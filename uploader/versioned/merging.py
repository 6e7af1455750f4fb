"""Merge engines: who merges the inputs of a pass that are too large for this process. Pure but for protocols.

The controller checks what an engine reports before it commits anything: every update of the inputs was read
exactly once, and in a ``diff`` collection the outputs have the digest of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from uploader.versioned.compaction import CompactionPlan
from uploader.versioned.names import parse_merged_key
from uploader.versioned.schema import CollectionSchema
from uploader.versioned.version import MergedBatch
from walstore.errors import CorruptionError, LimitExceededError

MOST_LOCAL_BYTES: Final = 1 << 30
"""With an engine, a pass with inputs of more bytes is given to it, whatever the number of updates."""
UNLIMITED_ROWS: Final = 1 << 62
MOST_OBJECTS: Final = 10_000
"""A merged batch has at most so many: the document of a version names them all."""
_MODULUS: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """One object, and which of its updates count: those at times ``start <= _t < limit``."""

    key: str
    start: int
    limit: int
    latest: int
    """Greater times were advanced, and are treated as this one; so the times order the updates of a key."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """One pass for an engine."""

    url: str
    """The collection's location, as the controller was given it."""
    collection: str
    """Its random id, which each object's footer names."""
    schema: CollectionSchema
    """The outputs have it; inputs may be older."""
    epoch: int
    """Of the controller. It is in the outputs' keys, see ``names.merged_key``."""
    lower: int
    upper: int
    since: int
    """Times are advanced to it."""
    is_oldest: bool
    """As of ``updates.consolidate``."""
    rows: int
    """How many updates count."""
    inputs: tuple[MergeInput, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedObject:
    """One object that was put."""

    key: str
    rows: int
    size_bytes: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What an engine has done."""

    objects: tuple[MergedObject, ...]
    """In the order of their rows."""
    rows_read: int
    """How many updates were merged."""
    digest_read: int
    """Their digest before they were merged."""


class MergeEngine(Protocol):
    """Merges the inputs of a pass, and puts the objects of the output."""

    async def merge(self, job: MergeJob) -> MergeResult:
        """Return what was put, once all of it is durable.

        ``updates.consolidate`` says what the output is; its objects are sorted, and follow each other in the
        order of their rows. Objects that are put and not returned are garbage, which the controller collects.
        Raises any exception if it fails; cancellation ends the work.
        """
        ...


def plan_job(
    plan: CompactionPlan,
    *,
    url: str,
    collection: str,
    schema: CollectionSchema,
    epoch: int,
    rows: int,
) -> MergeJob:
    """Return the job for a pass in which ``rows`` updates count."""
    inputs = [
        MergeInput(
            key=key,
            start=0,
            limit=max(batch.upper, batch.since + 1),
            latest=batch.upper - 1,
            size_bytes=batch.size_bytes // len(batch.keys),
        )
        for batch in plan.run
        for key in batch.keys
    ]
    inputs += [
        MergeInput(
            key=part.batch.key,
            start=part.start,
            limit=part.limit,
            latest=part.limit - 1,
            size_bytes=part.batch.size_bytes,
        )
        for part in plan.parts
        if part.batch.footer.rows
    ]
    return MergeJob(
        url=url,
        collection=collection,
        schema=schema,
        epoch=epoch,
        lower=plan.lower,
        upper=plan.upper,
        since=plan.since,
        is_oldest=plan.is_oldest,
        rows=rows,
        inputs=tuple(inputs),
    )


def checked_output(job: MergeJob, result: MergeResult, *, digest: int) -> MergedBatch:
    """Return the merged batch that an engine made of inputs with ``digest``.

    CorruptionError if it cannot be one: updates are missing or were read twice, or the sum has changed.
    LimitExceededError for more than :data:`MOST_OBJECTS`.
    """
    found = (result.rows_read, result.digest_read)
    if found != (job.rows, digest):
        raise CorruptionError(
            "the merge did not read each update of its inputs once; nothing was committed",
            path="a merged batch",
            expected=(job.rows, digest),
            found=found,
        )
    total = sum(one.digest for one in result.objects) % _MODULUS
    if job.schema.kind == "diff" and total != digest:
        raise CorruptionError(
            "the digest of the updates changed in a compaction; nothing was committed",
            path="a merged batch",
            expected=digest,
            found=total,
        )
    keys = tuple(one.key for one in result.objects)
    if len(set(keys)) < len(keys) or any(parse_merged_key(key) != job.epoch for key in keys):
        raise CorruptionError("a merge put objects elsewhere", path="a merged batch", found=keys)
    if len(keys) > MOST_OBJECTS:
        raise LimitExceededError(
            f"a merge made {len(keys)} objects, a batch takes {MOST_OBJECTS}; nothing was committed: "
            "let an object have more rows",
            limit=MOST_OBJECTS,
        )
    rows = sum(one.rows for one in result.objects)
    if rows > job.rows or any(one.rows < 1 for one in result.objects):
        raise CorruptionError(
            "a merge has more updates than its inputs, or an object without any",
            path="a merged batch",
            expected=job.rows,
            found=rows,
        )
    return MergedBatch(
        lower=job.lower,
        upper=job.upper,
        since=job.since,
        rows=rows,
        size_bytes=sum(one.size_bytes for one in result.objects),
        digest=total,
        schema_id=job.schema.id,
        keys=keys,
    )
