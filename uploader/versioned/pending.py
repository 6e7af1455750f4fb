"""The pending area: what writers have published and no version contains yet.

Each writer has a shard of its own, a chain of objects that are put once: the key of each is its position,
the upper frontier of the one before. So the next batch of a shard that is followed needs no listing, and a
listing says where each batch ends but the last. A batch counts if its position is not below
:attr:`Head.purged`: from there on no object was ever removed, and a put-if-absent that succeeded was the
first. The first batch of a shard without any has the position ``purged``.

A batch begins at its position, or later, if the merged area had passed the shard's end.

A pending batch is not compacted: its times are those of its writer, so any part of it may be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa

from uploader.root.stored_document import read_object
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.collection_head import CollectionHead
from uploader.versioned.head import Head
from uploader.versioned.names import PENDING_FOLDER, parse_pending_key, pending_key
from uploader.versioned.pending_batch import PendingBatch, PendingPart, check_schema
from uploader.versioned.pending_files import PLUG, PendingFiles
from uploader.versioned.schema import CollectionSchema
from walstore.core.runtime.threads import Worker
from walstore.errors import CollectionNotFoundError, CorruptionError

_MODULUS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class PendingSpan:
    """A batch as a listing shows it."""

    writer: str
    position: int
    size_bytes: int
    upper: int
    """Its upper frontier."""


class PendingArea:
    """The pending area of one collection, with the footers that were read already."""

    def __init__(self, store: ObjectStore, *, head: CollectionHead, worker: Worker) -> None:
        """The head must have been read."""
        self._store = store
        self._head = head
        self._collection = head.seen.head.collection
        self._worker = worker
        self._files = PendingFiles(store, worker)
        self._known: dict[str, PendingBatch] = {}

    async def survey(
        self, head: Head, *, writer: str | None = None, beyond: int | None = None
    ) -> list[PendingBatch]:
        """Return all batches that count and reach beyond a time, of one shard or of all.

        They come in the order of their shards and of their beginnings. ``beyond`` is by default the upper
        frontier of the merged area.
        """
        least = head.upper if beyond is None else beyond
        spans = [span for span in await self.spans(head, writer=writer) if span.upper > least]
        batches = await self._batches(
            (pending_key(span.writer, span.position), span.size_bytes) for span in spans
        )
        found = [batch for batch in batches if batch is not None]
        for span, batch in zip(spans, batches, strict=True):
            if batch is not None and batch.upper < span.upper:
                await self._check_gap(batch)
        late = [batch.position for batch in found if batch.position < head.upper]
        if late:
            # It may have been put late, in the place of one that was removed since ``head`` was read, or
            # while a controller looks for garbage.
            purged = (await self._head.settle(late)).purged
            found = [batch for batch in found if batch.position >= purged]
        return found

    async def _check_gap(self, before: PendingBatch) -> None:
        """CorruptionError if a listing shows no batch behind this one but later ones, and there is none.

        It may have been put, or purged with those before it, while the store listed.
        """
        key = pending_key(before.writer, before.upper)
        if await self._store.head(key) is not None:
            return
        if (await self._head.settle([before.upper])).purged <= before.upper:
            raise CorruptionError("a pending batch is missing; those behind it are there", path=key)

    async def counted(self, head: Head, writer: str) -> list[PendingSpan]:
        """Return where the batches of a shard begin and end, after :meth:`CollectionHead.settle`."""
        spans = await self.spans(head, writer=writer)
        late = [span.position for span in spans if span.position < head.upper < span.upper]
        if late:
            purged = (await self._head.settle(late)).purged
            spans = [span for span in spans if span.position >= purged]
        return spans

    async def spans(self, head: Head, *, writer: str | None = None) -> list[PendingSpan]:
        """Return where all batches that count begin and end; reads the footer of the last of each shard."""
        folder = PENDING_FOLDER if writer is None else f"{PENDING_FOLDER}{writer}/"
        found = []
        async for listed in self._store.list(folder):
            name = parse_pending_key(listed.key)
            if name is not None and name[1] >= head.purged:
                found.append((*name, listed.size_bytes))
        found.sort()
        if writer is None:
            keys = {pending_key(name, position) for name, position, _ in found}
            self._known = {key: batch for key, batch in self._known.items() if key in keys}
            self._files.forget(keys.__contains__)
        spans = [
            PendingSpan(name, position, size_bytes, after[1])
            for (name, position, size_bytes), after in pairwise(found)
            if after[0] == name
        ]
        last = {name: (position, size_bytes) for name, position, size_bytes in found}
        ends = await self._batches(
            (pending_key(name, position), size_bytes)
            for name, (position, size_bytes) in last.items()
        )
        spans += [
            PendingSpan(end.writer, end.position, end.size_bytes, end.upper)
            for end in ends
            if end is not None
        ]
        return sorted(spans, key=lambda span: (span.writer, span.position))

    async def _batches(self, files: Iterable[tuple[str, int]]) -> list[PendingBatch | None]:
        """Return batches by key and length; None for one that was removed, or marks a deleted collection."""
        wanted = list(files)
        found = {key: self._known.get(key) for key, _ in wanted}
        new = [(key, size_bytes) for key, size_bytes in wanted if found[key] is None]
        footers = await self._files.footers(new)
        for (key, size_bytes), footer in zip(new, footers, strict=True):
            if footer is not None:
                found[key] = self._known[key] = self._checked(key, footer, size_bytes)
        return [found[key] for key, _ in wanted]

    def _checked(self, key: str, footer: BatchFooter, size_bytes: int) -> PendingBatch:
        writer, position = parse_pending_key(key) or ("", 0)
        expected, found = (self._collection, writer), (footer.collection, footer.writer)
        if found != expected or footer.since != 0 or footer.lower < position:
            raise CorruptionError(
                "a pending batch does not belong where it is",
                path=key,
                expected=expected,
                found=found,
            )
        return PendingBatch(writer=writer, position=position, footer=footer, size_bytes=size_bytes)

    async def fetch(
        self, writer: str, position: int, schema: CollectionSchema
    ) -> tuple[PendingBatch, pa.Table] | None:
        """Return the batch at a position of a shard with its updates in ``schema``; None if there is none.

        CollectionNotFoundError if the collection was deleted, StaleSchemaError if ``schema`` is too old.
        """
        key = pending_key(writer, position)
        try:
            stored = await read_object(self._store, key)
        except ObjectNotFoundError:
            return None
        return await self.decode(key, stored.data, schema)

    async def decode(
        self, key: str, data: bytes, schema: CollectionSchema
    ) -> tuple[PendingBatch, pa.Table]:
        """Return the batch in the content of an object; the errors of :meth:`fetch`, and CorruptionError."""
        if data == PLUG:
            raise CollectionNotFoundError(
                f"the collection at {self._store.url} was deleted", location=self._store.url
            )
        footer, table = await self._worker.run(_decode, data, key, schema)
        batch = self._known[key] = self._checked(key, footer, len(data))
        return batch, table

    async def read(self, parts: Iterable[PendingPart], schema: CollectionSchema) -> list[pa.Table]:
        """Return the updates of all parts; ObjectNotFoundError if one of them was removed."""
        return await self._files.tables(parts, schema)


def _decode(data: bytes, key: str, schema: CollectionSchema) -> tuple[BatchFooter, pa.Table]:
    footer, table = batch_file.decode(data, path=key)
    check_schema(footer, schema, key)
    return footer, updates.upgrade(table, schema, path=key)


def cover(
    batches: Sequence[PendingBatch],
    start: int,
    *,
    limit: int | None = None,
    prefer: str | None = None,
) -> list[PendingPart]:
    """Return parts that follow each other from ``start`` on, as far as any shard reaches, or to ``limit``.

    At each step the shard that was followed is kept if it continues, first ``prefer``; else the batch that
    reaches farthest is taken. Pure.
    """
    parts: list[PendingPart] = []
    shards: dict[str, list[PendingBatch]] = {}
    for batch in sorted(batches, key=lambda batch: batch.lower):
        shards.setdefault(batch.writer, []).append(batch)
    position, shard = start, prefer
    while limit is None or position < limit:
        found = (_batch_at(chain, position) for chain in shards.values())
        fitting = [batch for batch in found if batch is not None]
        if not fitting:
            break
        batch = max(fitting, key=lambda batch: (batch.writer == shard, batch.upper))
        end = batch.upper if limit is None else min(batch.upper, limit)
        parts.append(PendingPart(batch, position, end))
        position, shard = end, batch.writer
    return parts


def _batch_at(chain: Sequence[PendingBatch], time: int) -> PendingBatch | None:
    """Return the batch of a shard that covers a time; the batches follow each other."""
    index = bisect_right(chain, time, key=lambda batch: batch.lower) - 1
    return chain[index] if index >= 0 and time < chain[index].upper else None


def disagreement(batches: Sequence[PendingBatch]) -> tuple[PendingBatch, PendingBatch] | None:
    """Return two batches up to whose ends two shards published different updates; None if none is known.

    Two shards are compared between frontiers that both have: the sums of their digests must be equal there.
    It is no proof that they agree elsewhere. Pure.
    """
    shards: dict[str, list[PendingBatch]] = {}
    for batch in sorted(batches, key=lambda batch: (batch.writer, batch.lower)):
        shards.setdefault(batch.writer, []).append(batch)
    names = list(shards)
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            found = _compare(shards[one], shards[other])
            if found is not None:
                return found
    return None


def _compare(
    one: Sequence[PendingBatch], other: Sequence[PendingBatch]
) -> tuple[PendingBatch, PendingBatch] | None:
    ours, theirs = _sums(one), _sums(other)
    shared = sorted(ours.keys() & theirs.keys())
    for start, end in pairwise(shared):
        pair = (ours[start], ours[end]), (theirs[start], theirs[end])
        if any(first.run != last.run or last.batch is None for first, last in pair):
            continue
        sums = [(last.digest - first.digest) % _MODULUS for first, last in pair]
        if sums[0] != sums[1]:
            one_end, other_end = ours[end].batch, theirs[end].batch
            assert one_end is not None
            assert other_end is not None
            return one_end, other_end
    return None


@dataclass(frozen=True, slots=True)
class _Sum:
    """The digest of a shard's batches from the beginning of a run without gaps up to a frontier."""

    run: int
    digest: int
    batch: PendingBatch | None
    """The batch that ends there; None where the run begins."""


def _sums(batches: Sequence[PendingBatch]) -> dict[int, _Sum]:
    found: dict[int, _Sum] = {}
    position = -1
    for batch in batches:
        if batch.lower != position:
            found[batch.lower] = _Sum(batch.lower, 0, None)
        before = found[batch.lower]
        position = batch.upper
        found[position] = _Sum(before.run, before.digest + batch.footer.digest, batch)
    return found
