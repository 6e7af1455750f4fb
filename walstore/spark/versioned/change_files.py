"""Change files: how the files of a micro-batch are divided between tasks, and what a task reads of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from uploader import CollectionScan, ScanFile
from uploader.versioned.batch_groups import GroupedFile, RowGroup
from uploader.versioned.schema import CollectionSchema
from walstore.spark.partitions import PARTITION_BYTES, group
from walstore.spark.versioned.objects import AT_ONCE, ScanObjects
from walstore.spark.versioned.types import CHANGE

_GROUPS_AT_ONCE: Final = 4
"""So many row groups are decoded at a time."""


def as_changes(table: pa.Table, schema: CollectionSchema) -> pa.Table:
    """Return updates with the kind of each change; ``delete`` for removals and negative counts."""
    effect = table.column(schema.effect)
    if schema.kind == "diff":
        kind = pc.if_else(pc.greater(effect, 0), "insert", "delete")
    else:
        kind = pc.if_else(effect, "delete", "upsert")
    return table.append_column(pa.field(CHANGE, pa.string()), kind.cast(pa.string()))


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Some row groups of a file: piece ``number`` of ``pieces`` that are about equal."""

    file: ScanFile
    number: int
    pieces: int

    @property
    def size_bytes(self) -> int:
        """About how many bytes they have."""
        return self.file.size_bytes // self.pieces


class ChangePartition(InputPartition):
    """The updates of some files."""

    def __init__(self, url: str, scan: CollectionScan, pieces: Sequence[FilePiece]) -> None:
        """``scan`` without files."""
        super().__init__(tuple(piece.file.key for piece in pieces))
        self.url = url
        self.scan = scan
        self.pieces = tuple(pieces)


def divide_changes(url: str, scan: CollectionScan, min_partitions: int) -> list[ChangePartition]:
    """Return what each task reads: files, and parts of long ones. Pure."""
    size_bytes = sum(file.size_bytes for file in scan.files)
    most_bytes = max(1, min(PARTITION_BYTES, size_bytes // min_partitions))
    pieces = [
        FilePiece(file, number, count)
        for file in scan.files
        for count in [max(1, min(-(-file.size_bytes // most_bytes), file.rows))]
        for number in range(count)
    ]
    bare = scan.without_files()
    return [ChangePartition(url, bare, members) for members in group(pieces, most_bytes)]


def read_pieces(
    partition: ChangePartition, objects: ScanObjects, schema: CollectionSchema
) -> Iterator[pa.Table]:
    """Yield the updates that count, row group by row group, as callers see them."""
    for at in range(0, len(partition.pieces), AT_ONCE):
        pieces = partition.pieces[at : at + AT_ONCE]
        opened = objects.open(piece.file for piece in pieces)
        wanted = [
            (piece.file, one)
            for piece, file in zip(pieces, opened, strict=True)
            for one in _groups(piece, file)
        ]
        for first in range(0, len(wanted), _GROUPS_AT_ONCE):
            yield from objects.read(wanted[first : first + _GROUPS_AT_ONCE], schema)
        for piece in pieces:
            objects.forget(piece.file)


def _groups(piece: FilePiece, file: GroupedFile) -> list[RowGroup]:
    """Return the row groups of a piece that may have updates that count."""
    count = len(file.groups)
    first, last = (count * at // piece.pieces for at in (piece.number, piece.number + 1))
    start, limit = piece.file.start, piece.file.limit
    return [
        one
        for one in file.groups[first:last]
        if one.times is None or (one.times[1] >= start and one.times[0] < limit)
    ]
