"""Fragments as Parquet files: columns, how they are stored, and what a reader requires.

Owns everything that touches Parquet. wal3's reader takes three columns by name and wants exactly these
Arrow types; ours follow and are ignored by it. Knows nothing of manifests and setsums; never does I/O.

How columns are stored, and why:
  * body: zstd level 1. Level 3 saves 8 % on text and takes half as long again. No dictionary, and no
    statistics: those keep whole values, which makes small fragments five times as long.
  * offset and times: deltas, which take no space, with statistics, so that time can be searched.
  * every page has a CRC-32. Readers of ours check it, so damage shows without hashing any record, also
    in the columns that no setsum covers.
  * the footer lists the streams, so that a reader of one stream needs only the footers of the
    fragments that have none of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from uploader.format.layout import FRAGMENT_FORMAT, MAX_U64
from uploader.fragments.bloom import StreamSet
from uploader.fragments.parquet_metadata import (
    Metadata,
    parsing,
    plan_reading,
    read_metadata,
    read_table,
)
from walstore.core.batches.arrow import HEADERS_TYPE, SCHEMA
from walstore.errors import CorruptionError, FormatVersionError

FORMAT_KEY: Final = b"walstore.fragment"
FORMAT_VERSION: Final = FRAGMENT_FORMAT.encode()
"""Footer entry of files of ours, which must then have all of our columns."""
STREAMS_KEY: Final = b"walstore.streams"
"""Footer entry that says which streams there are; see ``bloom.py``."""
WRITER_KEY: Final = b"walstore.append.writer"
"""Footer entry that names the maker of the file, if that matters."""
CLOSINGS_KEY: Final = b"walstore.closings"
"""Footer entry of a file with streams: how many closings of streams its writer knew; see
``uploader/format/stream_table.py``."""

WAL3_FIELDS: Final = (
    pa.field("offset", pa.uint64(), nullable=False),
    pa.field("timestamp_us", pa.uint64(), nullable=False),
    pa.field("body", pa.binary(), nullable=False),
)
OUR_FIELDS: Final = (
    pa.field("record_timestamp_us", pa.uint64(), nullable=False),
    pa.field("stream", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS_TYPE),
)
_KNOWN: Final = frozenset(field.name for field in (*WAL3_FIELDS, *OUR_FIELDS))
FILE_SCHEMA: Final = pa.schema([*WAL3_FIELDS, *OUR_FIELDS], metadata={FORMAT_KEY: FORMAT_VERSION})

ROW_GROUP_ROWS: Final = 128 * 1024
ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
"""A row group has at most so many rows and about so many bytes, so that a part can be read alone."""
PAGE_BYTES: Final = 1024 * 1024
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
_PAGE_CHECK_ROWS: Final = 1024

_STORED_AS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["timestamp_us", "stream", "headers.key_value.key"],
    "column_encoding": {
        "offset": "DELTA_BINARY_PACKED",
        "record_timestamp_us": "DELTA_BINARY_PACKED",
    },
    "write_statistics": ["offset", "timestamp_us", "record_timestamp_us"],
    "write_page_checksum": True,
    "data_page_size": PAGE_BYTES,
    "store_schema": True,
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a fragment holds, checked as far as that goes without knowing its manifest entry."""

    records: pa.Table
    """The records, in the columns of ``arrow.SCHEMA``."""
    timestamp_us: int
    """The fragment's time, which is part of each record's setsum."""
    start: int
    """Offset of the first record."""

    @property
    def limit(self) -> int:
        """Offset after the last record."""
        return self.start + int(self.records.num_rows)


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file."""

    times_us: tuple[int, int] | None
    """Times of the oldest and the newest record; None if the footer has none."""
    streams: StreamSet
    """Which streams there are."""
    rows: int
    """How many records there are."""
    offsets: tuple[int, int] | None
    """Offsets of the first and the last record; None if the footer has none."""
    columns: frozenset[str]
    """Names of the columns, of those that this program knows."""
    version: bytes | None
    """Which version of this program's format it has; None for files of others."""


class FileWriter:
    """One file under construction. The same tables, time and writer give the same bytes, as long as pyarrow
    stays the same."""

    def __init__(
        self, *, timestamp_us: int, writer: str | None = None, closings: int | None = None
    ) -> None:
        """``timestamp_us`` is the fragment's time; ``writer`` is named in the footer.

        So is ``closings``, if any record has a stream.
        """
        self._timestamp = pa.scalar(timestamp_us, pa.uint64())
        self._writer = writer
        self._closings = closings
        self._sink = pa.BufferOutputStream()
        self._file: pq.ParquetWriter | None = None
        self._streams: set[str] = set()

    def add(self, records: pa.Table) -> None:
        """Write records, in the columns of ``arrow.SCHEMA``; they begin a row group."""
        rows = records.num_rows
        table = pa.Table.from_arrays(
            [
                records.column("offset"),
                pa.repeat(self._timestamp, rows),
                records.column("value"),
                records.column("timestamp_us"),
                records.column("stream"),
                records.column("key"),
                records.column("headers"),
            ],
            schema=FILE_SCHEMA,
        )
        row_bytes = max(1, records.nbytes // rows)
        if self._file is None:
            # Page sizes are looked at once per so many rows, of the size of the first ones.
            at_once = max(1, min(_PAGE_CHECK_ROWS, PAGE_BYTES // row_bytes))
            self._file = pq.ParquetWriter(
                self._sink, FILE_SCHEMA, write_batch_size=at_once, **_STORED_AS
            )
        self._file.write_table(table, max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // row_bytes)))
        self._streams |= _streams_in(records.column("stream"))

    def finish(self) -> bytes:
        """Return the file; at least one record was added, and nothing more may be."""
        assert self._file is not None
        # Not in the schema, whose entries are stored twice.
        text = StreamSet.of(self._streams).to_text()
        if text is not None:
            self._file.add_key_value_metadata({STREAMS_KEY: text})
        if self._writer is not None:
            self._file.add_key_value_metadata({WRITER_KEY: self._writer})
        if self._closings is not None and self._streams:
            self._file.add_key_value_metadata({CLOSINGS_KEY: str(self._closings)})
        self._file.close()
        return bytes(self._sink.getvalue().to_pybytes())


def read(data: bytes | bytearray, *, path: str, only: Collection[str] | None = None) -> Content:
    """Return the content of a file, ours or wal3's; CorruptionError unless it is a fragment.

    FormatVersionError if a newer version of this program wrote it. ``only`` names the columns of
    ``arrow.SCHEMA`` to read in addition to the offsets; the others are null, times the fragment's.

    Checked: pages' checksums if there are any, columns and types, no nulls, one time for all, offsets
    without gap. Columns of ours that are missing are filled: records then have the fragment's time.
    """
    table = _read_columns(data, path, only=None if only is None else stored_columns(only))
    rows = table.num_rows
    offset, timestamp_us = table.column("offset"), table.column("timestamp_us")
    names = table.column_names
    times = table.column("record_timestamp_us") if "record_timestamp_us" in names else timestamp_us
    columns = [offset, times]
    for stored, name in (("body", "value"), ("key", "key"), ("stream", "stream"), ("headers",) * 2):
        missing = stored not in names
        columns.append(pa.nulls(rows, SCHEMA.field(name).type) if missing else table.column(stored))
    return Content(
        records=pa.Table.from_arrays(columns, schema=SCHEMA),
        timestamp_us=_only_value(timestamp_us, path),
        start=_first_offset(offset, path),
    )


def stored_columns(names: Collection[str]) -> frozenset[str]:
    """Return the columns of the file that hold these columns of ``arrow.SCHEMA``, and offsets."""
    stored = {"timestamp_us": "record_timestamp_us", "value": "body"}
    return frozenset({"offset", "timestamp_us"} | {stored.get(name, name) for name in names})


def column_ranges(
    end: bytes, size_bytes: int, names: Collection[str], path: str
) -> list[tuple[int, int]]:
    """Return where the columns ``names``, and the offsets, are in a file of so many bytes.

    ``end`` is its last part, the whole footer included. CorruptionError if there is no footer, or if it
    places a column elsewhere than in the file.
    """
    wanted = stored_columns(names)
    metadata = read_metadata(end, size_bytes, path=path)
    chunks = [chunk for group in metadata.groups for chunk in group if chunk.leaf.name in wanted]
    if sum(chunk.limit - chunk.start for chunk in chunks) > size_bytes:
        raise CorruptionError("the columns overlap", path=path, expected=size_bytes)
    return [(chunk.start, chunk.limit) for chunk in chunks]


def read_footer(end: bytes, *, path: str = "fragment") -> Footer:
    """Return what a file says at its end, of which ``end`` is a part that holds the whole footer.

    CorruptionError if there is no footer there.
    """
    metadata = read_metadata(end, MAX_U64, path=path)
    entries = metadata.entries
    columns = _KNOWN.intersection(leaf.name for leaf in metadata.leaves)
    if STREAMS_KEY in entries:
        streams = StreamSet.from_text(entries[STREAMS_KEY])
    else:
        streams = StreamSet.unknown() if "stream" in columns else StreamSet.of(())
    times = _bounds(metadata, "record_timestamp_us", "timestamp_us")
    offsets = _bounds(metadata, "offset")
    return Footer(times, streams, metadata.rows, offsets, columns, entries.get(FORMAT_KEY))


def fragment_time_bounds(data: bytes, *, path: str = "fragment") -> tuple[int, int]:
    """Return the times of the oldest and the newest record, in microseconds since 1970 UTC.

    For files with statistics (ours; wal3's) this reads the footer only, and ``data`` may be the last part of
    the file, the whole footer included. CorruptionError if there is no footer.
    """
    found = read_footer(data, path=path).times_us
    if found is not None:
        return found
    bounds = pc.min_max(read(data, path=path).records.column("timestamp_us"))
    return int(bounds["min"].as_py()), int(bounds["max"].as_py())


def fragment_timestamp(data: bytes, *, path: str = "fragment") -> int:
    """Return the fragment's own time, which its setsum covers, reading no other column; CorruptionError if
    there is not one."""
    table = _read_columns(data, path, only={"timestamp_us"})
    return _only_value(table.column("timestamp_us"), path)


def fragment_maker(data: bytes, *, path: str = "fragment") -> str | None:
    """Return the maker of the file, if it is noted; CorruptionError if there is no footer."""
    found = _entries(data, path).get(WRITER_KEY)
    return None if found is None else found.decode(errors="replace")


def is_ours(data: bytes, *, path: str) -> bool:
    """Return whether a file has our columns, of this version; CorruptionError without a footer."""
    return _entries(data, path).get(FORMAT_KEY) == FORMAT_VERSION


def closings(data: bytes, *, path: str) -> int | None:
    """Return how many closings of streams its maker knew, if the file says so; CorruptionError if there is
    no footer."""
    found = _entries(data, path).get(CLOSINGS_KEY)
    return int(found) if found is not None and _NUMBER.fullmatch(found) else None


def _entries(data: bytes, path: str) -> Mapping[bytes, bytes]:
    with parsing(path):
        found: Mapping[bytes, bytes] | None = pq.read_metadata(pa.BufferReader(data)).metadata
    return found or {}


def _read_columns(
    data: bytes | bytearray, path: str, *, only: Collection[str] | None = None
) -> pa.Table:
    with parsing(path):
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        wanted = _known_columns(file.schema_arrow, path)
        wanted = [name for name in wanted if only is None or name in only]
        reading = plan_reading(read_metadata(data, len(data), path=path), data, wanted, path=path)
        table = read_table(file, wanted, reading, path=path)
        table.validate()
        for name in {"stream", "headers"}.intersection(table.column_names):
            table.column(name).validate(full=True)  # that text is UTF-8
    for field in (*WAL3_FIELDS, OUR_FIELDS[0]):
        if field.name in wanted and table.column(field.name).null_count:
            raise CorruptionError(f"column '{field.name}' has nulls", path=path)
    if not table.num_rows:
        raise CorruptionError("a fragment without records", path=path)
    return table


def _known_columns(schema: pa.Schema, path: str) -> list[str]:
    """Return the columns to read: wal3's, and those of ours that are there. Others may be there too."""
    wanted = [field for field in WAL3_FIELDS if _must_have(schema, field, path)]
    version = (schema.metadata or {}).get(FORMAT_KEY)
    if version not in {None, FORMAT_VERSION}:
        raise FormatVersionError(
            "a fragment of a newer version",
            path=path,
            found=version.decode(errors="replace"),
            supported=FORMAT_VERSION.decode(),
        )
    if version:
        wanted += [field for field in OUR_FIELDS if _must_have(schema, field, path)]
    else:
        # A column that only shares its name with one of ours is another program's.
        wanted += [field for field in OUR_FIELDS if _types(schema, field.name) == [field.type]]
    return [field.name for field in wanted]


def _must_have(schema: pa.Schema, field: pa.Field, path: str) -> bool:
    found = _types(schema, field.name)
    if found != [field.type]:
        raise CorruptionError(
            f"column '{field.name}' must be there once, as {field.type}",
            path=path,
            expected=str(field.type),
            found=", ".join(map(str, found)) or None,
        )
    return True


def _types(schema: pa.Schema, name: str) -> list[pa.DataType]:
    return [field.type for field in schema if field.name == name]


def _streams_in(column: pa.ChunkedArray) -> set[str]:
    if column.null_count == len(column):
        return set()
    return set(pc.unique(column).to_pylist()) - {None}


def _only_value(times: pa.ChunkedArray, path: str) -> int:
    bounds = pc.min_max(times)
    low, high = int(bounds["min"].as_py()), int(bounds["max"].as_py())
    if low != high:
        raise CorruptionError(
            "records of one fragment must share one time", path=path, expected=low, found=high
        )
    return low


def _first_offset(offsets: pa.ChunkedArray, path: str) -> int:
    start, rows = int(offsets[0].as_py()), len(offsets)
    whole = offsets.combine_chunks()
    # Unsigned differences: any step other than one gives another number.
    steps = pc.min_max(pc.subtract(whole[1:], whole[:-1]))
    if start + rows > MAX_U64 or (rows > 1 and steps.as_py() != {"min": 1, "max": 1}):
        raise CorruptionError(
            f"offsets do not go up by one from {start} over {rows} records", path=path
        )
    return start


def _bounds(metadata: Metadata, *names: str) -> tuple[int, int] | None:
    """Return the least and greatest number in the first of these columns that is there.

    None if there is none, or if a row group lacks its statistics.
    """
    whole = [leaf.name if leaf.is_whole else None for leaf in metadata.leaves]
    at = next((whole.index(name) for name in names if name in whole), None)
    if at is None or not metadata.groups:
        return None
    found = [group[at].bounds for group in metadata.groups]
    known = [bounds for bounds in found if bounds is not None]
    if len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)
