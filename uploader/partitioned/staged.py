"""Staged fragments: encoded for the place that is expected, and again for another one if that is taken. Pure.

Encoding takes some milliseconds for each megabyte: for executor threads.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from uploader.format.document import Fields
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_file
from uploader.fragments.fragment import FragmentBatch
from uploader.fragments.fragment_builder import (
    EncodedFragment,
    encode_fragment,
    setsum_of_column,
)
from walstore.batches.arrow import SCHEMA, offsets_array
from walstore.errors import CorruptionError

RECORDS: Final = pa.schema([SCHEMA.field(at) for at in range(1, len(SCHEMA))])
"""Columns of records that have no offsets yet: those of ``arrow.SCHEMA`` without the first."""

Times = tuple[int, int]
"""Times of the first and the last record, in microseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class StagedFragment:
    """A fragment that a task put, at a key of its own."""

    key: str
    """Key of the object, relative to the common prefix."""
    start: int
    """Offset of the first record, if the log ends where the task saw it end."""
    limit: int
    """Offset after the last record, likewise."""
    num_bytes: int
    """Length of the object."""
    crc32: int
    """Checksum of the object."""
    setsum: Setsum
    """Sum of the records at these offsets."""
    times_us: Times

    @property
    def count(self) -> int:
        """Number of records."""
        return self.limit - self.start

    def to_json(self) -> dict[str, Any]:
        """Return the fragment as a commit record holds it."""
        return {
            "key": self.key,
            "start": self.start,
            "limit": self.limit,
            "num_bytes": self.num_bytes,
            "crc32": self.crc32,
            "setsum": self.setsum.hexdigest(),
            "first_us": self.times_us[0],
            "last_us": self.times_us[1],
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> StagedFragment:
        """Read a fragment from a commit record; CorruptionError for a bad shape."""
        found = cls(
            key=fields.text("key"),
            start=fields.number("start"),
            limit=fields.number("limit"),
            num_bytes=fields.number("num_bytes"),
            crc32=fields.number("crc32"),
            setsum=fields.setsum("setsum"),
            times_us=(fields.number("first_us"), fields.number("last_us")),
        )
        if found.count < 1:
            raise CorruptionError("a staged fragment without records", path=fields.path)
        return found


def encode(
    records: pa.Table, *, start: int, timestamp_us: int, writer: str
) -> tuple[EncodedFragment, int, Times]:
    """Return the fragment of records (columns of :data:`RECORDS`), its checksum, and its times.

    ``timestamp_us`` is the fragment's own time; ``writer`` is named in its footer.
    """
    limit = start + records.num_rows
    columns = [offsets_array(start, limit), *records.columns]
    batch = FragmentBatch(pa.Table.from_arrays(columns, schema=SCHEMA), start=start)
    built = encode_fragment([batch], timestamp_us=timestamp_us, writer=writer)
    return built, zlib.crc32(built.data), _times(records)


def raised(records: pa.Table, floor_us: int) -> pa.Table:
    """Return records none of which is older than ``floor_us`` or the one before it."""
    times = records.column("timestamp_us").combine_chunks()
    times = pc.cumulative_max(times, start=pa.scalar(floor_us, pa.uint64()))
    return records.set_column(0, RECORDS.field(0), times)


def placed(
    data: bytes, staged: StagedFragment, *, start: int, floor_us: int, writer: str
) -> tuple[EncodedFragment, Times]:
    """Return the fragment that holds the same records at ``start``, none of them older than ``floor_us``.

    That is the staged object itself where it fits. CorruptionError if it is not what was staged.
    """
    _check(data, staged)
    if staged.start == start and staged.times_us[0] >= floor_us:
        return EncodedFragment(data, staged.start, staged.limit, staged.setsum), staged.times_us
    content = fragment_file.read(data, path=staged.key)
    records = raised(content.records.select(RECORDS.names), floor_us)
    built, _, times = encode(records, start=start, timestamp_us=content.timestamp_us, writer=writer)
    return built, times


def setsum_at(data: bytes, staged: StagedFragment, start: int) -> Setsum:
    """Return the sum that the records have at ``start``."""
    if staged.start == start:
        return staged.setsum
    _check(data, staged)
    content = fragment_file.read(data, path=staged.key)
    values = content.records.column("value")
    return setsum_of_column(values, start, content.timestamp_us)


def _check(data: bytes, staged: StagedFragment) -> None:
    if len(data) != staged.num_bytes or zlib.crc32(data) != staged.crc32:
        raise CorruptionError("a staged fragment is not what a task put", path=staged.key)


def _times(records: pa.Table) -> Times:
    times = records.column("timestamp_us")
    return int(times[0].as_py()), int(times[-1].as_py())
