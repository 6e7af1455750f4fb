"""What Python tasks do with the objects of a collection: read the updates that count. Blocking.

A task reads some objects at a time and checks each against its digest. It needs nothing but its files and
the collection's schema, both picklable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from uploader.root.stored_document import read_object
from uploader.runtime.task_groups import gather_all
from uploader.stores import ObjectStore
from uploader.stores.port import ObjectNotFoundError
from uploader.versioned import batch_file, updates
from uploader.versioned.merging import MergeInput
from uploader.versioned.pending_files import PLUG
from uploader.versioned.schema import HASH, TIME, CollectionSchema
from walstore import CorruptionError, LeaseExpiredError
from walstore.errors import CollectionNotFoundError
from walstore.spark.blocking import StoreReading
from walstore.spark.partitions import group
from walstore.spark.versioned.types import to_spark

ORDER: Final = "_order"
"""A long that orders the updates of one key: the time, or the last of its batch's interval."""
HASH_LONG: Final = "_hash"
"""The hash of the row, as a long with the same bits."""
_WINDOW_BYTES: Final = 32 << 20
_AT_ONCE: Final = 8
_ROWS: Final = 64 * 1024
_SIGN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class CollectionObjects:
    """The collection whose objects are read. Picklable."""

    url: str
    collection: str
    schema: CollectionSchema

    def read(self, parts: Sequence[MergeInput]) -> Iterator[pa.Table]:
        """Yield the stored updates of each part in the newest schema, with advanced times limited.

        CorruptionError for an object that is damaged or of another collection, LeaseExpiredError for one that
        was removed, and the store's errors.
        """
        with StoreReading(self.url) as site:
            for window in group(parts, _WINDOW_BYTES, _AT_ONCE):
                found = site.run(gather_all(_get(site.store, part.key) for part in window))
                for part, data in zip(window, found, strict=True):
                    yield self._decode(part, data)

    def rows(
        self, parts: Sequence[MergeInput], *, with_hash: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the updates for Spark: columns, effect, :data:`ORDER`, and :data:`HASH_LONG` on request."""
        for table in self.read(parts):
            names = [*self.schema.columns.names, self.schema.effect]
            shown = to_spark(table.select(names)).append_column(ORDER, to_long(table.column(TIME)))
            if with_hash:
                shown = shown.append_column(HASH_LONG, to_long(table.column(HASH)))
            yield from shown.combine_chunks().to_batches(_ROWS)

    def _decode(self, part: MergeInput, data: bytes) -> pa.Table:
        if data == PLUG:
            raise CollectionNotFoundError("the collection was deleted", location=self.url)
        footer, table = batch_file.decode(data, path=part.key)
        if footer.collection != self.collection:
            raise CorruptionError(
                "the object belongs to another collection",
                path=part.key,
                expected=self.collection,
                found=footer.collection,
            )
        table = updates.upgrade(table, self.schema, path=part.key)
        table = updates.between(table, part.start, part.limit)
        times = pc.min_element_wise(table.column(TIME), pa.scalar(part.latest, pa.uint64()))
        return table.set_column(table.schema.get_field_index(TIME), table.schema.field(TIME), times)


def to_long(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return unsigned numbers as longs in the same order."""
    flipped = pc.bit_wise_xor(column, pa.scalar(_SIGN, pa.uint64()))
    return pa.chunked_array([chunk.view(pa.int64()) for chunk in flipped.chunks], pa.int64())


def from_long(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return what :func:`to_long` was given."""
    chunks = [chunk.view(pa.uint64()) for chunk in column.chunks]
    return pc.bit_wise_xor(pa.chunked_array(chunks, pa.uint64()), pa.scalar(_SIGN, pa.uint64()))


def sortable(number: int) -> int:
    """Return an unsigned number as a long in the same order."""
    return number - _SIGN


async def _get(store: ObjectStore, key: str) -> bytes:
    try:
        return (await read_object(store, key)).data
    except ObjectNotFoundError as error:
        raise LeaseExpiredError(
            f"the object {key} was removed: nothing holds it any more; read the collection again",
            reader="",
        ) from error
