"""How fragments are stored: encodings, statistics, row groups, footer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.frames import batch_of, build, values_only
from tests.uploader.parquet import by_arrow_rs, by_pyarrow, wal3_table
from uploader.fragments import fragment_file, parquet_metadata
from uploader.fragments.fragment_builder import encode_fragment
from uploader.fragments.fragment_file import PAGE_BYTES, ROW_GROUP_BYTES, ROW_GROUP_ROWS
from uploader.fragments.parquet_metadata import FREE_BYTES
from walstore.errors import CorruptionError
from walstore.records import Record

TIME_US = 1_234_567_890_123_456
RECORDS = [
    Record(start, b"v%d" % start, b"k", f"s{start % 2}", {"h": b"1"}, 1000 + start)
    for start in range(1, 200)
]


def encode(records: list[Record]) -> bytes:
    return encode_fragment([batch_of(build(records))], timestamp_us=TIME_US).data


def metadata(data: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(data))


def columns(data: bytes) -> dict[str, pq.ColumnChunkMetaData]:
    group = metadata(data).row_group(0)
    return {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}


def test_the_columns_of_wal3_come_first() -> None:
    schema = pq.read_schema(pa.BufferReader(encode(RECORDS)))
    assert schema.names == [
        *("offset", "timestamp_us", "body"),
        *("record_timestamp_us", "stream", "key", "headers"),
    ]
    assert schema.metadata == {b"walstore.fragment": b"1"}
    assert b"ARROW:schema" in metadata(encode(RECORDS)).metadata


def test_everything_is_zstd() -> None:
    assert {column.compression for column in columns(encode(RECORDS)).values()} == {"ZSTD"}


def test_numbers_have_statistics_and_nothing_else_has() -> None:
    found = {name for name, column in columns(encode(RECORDS)).items() if column.statistics}
    assert found == {"offset", "timestamp_us", "record_timestamp_us"}


def test_bodies_have_no_dictionary() -> None:
    found = {name for name, c in columns(encode(RECORDS)).items() if c.has_dictionary_page}
    assert found == {"timestamp_us", "stream", "headers.key_value.key"}


def test_offsets_and_times_take_no_room() -> None:
    records = [Record(start, b"", timestamp_us=TIME_US + start * 7) for start in range(1, 20_000)]
    found = columns(encode(records))
    for name in ("offset", "timestamp_us", "record_timestamp_us"):
        assert found[name].total_compressed_size < 2000, name


def test_a_small_fragment_stays_small() -> None:
    assert len(encode(values_only(bytes(8192)))) < 3000
    assert len(encode(values_only(os.urandom(8192)))) < 8192 + 3000


@pytest.mark.parametrize("size", [0, 100, 5000, 1_000_000])
def test_row_groups_are_bounded(size: int) -> None:
    value = os.urandom(size)
    count = min(2 * ROW_GROUP_ROWS + 7, 3 * ROW_GROUP_BYTES // max(1, size))
    records = pa.table(
        {
            "offset": pa.array(range(1, count + 1), pa.uint64()),
            "timestamp_us": pa.repeat(pa.scalar(5, pa.uint64()), count),
            "value": pa.repeat(pa.scalar(value, pa.binary()), count),
            "key": pa.nulls(count, pa.binary()),
            "stream": pa.nulls(count, pa.string()),
            "headers": pa.nulls(count, fragment_file.HEADERS_TYPE),
        },
        schema=fragment_file.SCHEMA,
    )
    file = fragment_file.FileWriter(timestamp_us=TIME_US)
    file.add(records)
    found = metadata(file.finish())
    groups = [found.row_group(at) for at in range(found.num_row_groups)]
    assert sum(group.num_rows for group in groups) == count
    for group in groups:
        assert group.num_rows <= ROW_GROUP_ROWS
        assert group.total_byte_size <= ROW_GROUP_BYTES + PAGE_BYTES
    assert len(groups) > 1


def test_times_can_be_had_from_the_end_of_the_file() -> None:
    data = encode(RECORDS)
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    assert fragment_file.fragment_time_bounds(data[-footer:], path="p") == (1001, 1199)
    with pytest.raises(CorruptionError):
        fragment_file.fragment_time_bounds(data[1 - footer :], path="p")


def test_times_without_statistics_are_read() -> None:
    table = wal3_table(1, 5, [b"a", b"b"])
    for data in (
        by_pyarrow(table, write_statistics=False),
        by_pyarrow(
            table.append_column("record_timestamp_us", pa.array([5, 5], pa.uint64())),
            write_statistics=["offset"],
        ),
        by_arrow_rs(table),
    ):
        assert fragment_file.fragment_time_bounds(data, path="p") == (5, 5)


def test_one_time_is_insisted_on() -> None:
    assert fragment_file.fragment_timestamp(encode(RECORDS), path="p") == TIME_US
    table = wal3_table(1, 5, [b"a", b"b"])
    mixed = table.set_column(1, table.schema.field(1), pa.array([5, 6], pa.uint64()))
    with pytest.raises(CorruptionError, match="share one time"):
        fragment_file.fragment_timestamp(by_pyarrow(mixed), path="p")


def test_damage_inside_a_page_shows_without_hashing() -> None:
    value = os.urandom(5000)
    data = encode(values_only(value))
    at = data.index(value[1000:1050])
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(CorruptionError, match=r"(?i)crc|checksum"):
        fragment_file.read(damaged, path="p")


def repeated(value: bytes, rows: int, **options: object) -> bytes:
    """Return a file that has one value in each row, stored once."""
    table = wal3_table(1, TIME_US, [b""] * rows)
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), rows), [value])
    field = pa.field("body", column.type, nullable=False)
    stored = table.set_column(2, field, column)
    return by_pyarrow(stored, store_schema=False, compression="zstd", **options)


def test_a_file_that_would_become_gigabytes_is_refused_before_it_does() -> None:
    data = repeated(bytes(1 << 20), 5000)
    assert len(data) < 16 << 10
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptionError, match=r"more memory than \d+ bytes: p"):
        fragment_file.read(data, path="p")
    assert pa.default_memory_pool().max_memory() <= max(before, 2 * FREE_BYTES)


@pytest.mark.slow
def test_a_page_that_would_become_too_long_is_refused() -> None:
    table = wal3_table(1, TIME_US, [bytes(16 << 20)] * 20)
    options = {"compression_level": 5, "use_dictionary": False, "data_page_size": 1 << 30}
    data = by_pyarrow(table, compression="brotli", **options)
    assert len(data) < 4096
    with pytest.raises(CorruptionError, match="more memory"):
        fragment_file.read(data, path="p")


@pytest.mark.parametrize("rows", [3, pytest.param(150, marks=pytest.mark.slow)])
def test_one_long_value_in_many_rows_is_read(rows: int) -> None:
    """As wal3 may store it; the sum of what it becomes is within bounds."""
    value = os.urandom(1 << 20)
    found = fragment_file.read(repeated(value, rows), path="p").records.column("value")
    assert found.to_pylist() == [value] * rows


def test_short_values_beside_a_long_one_are_read_in_steps() -> None:
    """What a dictionary might make of them is beyond all bounds, and what it makes is little."""
    bodies = [b"x" * (900 << 10), *(b"%d" % (at % 50) for at in range(20_000))]
    for data in (
        by_arrow_rs(wal3_table(1, 5, bodies), compression="zstd(1)"),
        by_pyarrow(wal3_table(1, 5, bodies), use_dictionary=["body"]),
        by_pyarrow(
            wal3_table(1, 5, bodies),
            use_dictionary=False,
            column_encoding={"body": "DELTA_BYTE_ARRAY"},
        ),
    ):
        assert fragment_file.read(data, path="p").records.column("value").to_pylist() == bodies


@pytest.mark.slow
def test_every_file_that_a_writer_makes_is_within_bounds() -> None:
    """The longest fragments with the fewest bytes: zeros, and empty values."""
    for size, rows in ((0, 1_000_000), (1 << 20, 64), (16 << 20, 4)):
        records = pa.table(
            {
                "offset": pa.array(range(1, rows + 1), pa.uint64()),
                "timestamp_us": pa.repeat(pa.scalar(5, pa.uint64()), rows),
                "value": pa.repeat(pa.scalar(bytes(size), pa.binary()), rows),
                "key": pa.nulls(rows, pa.binary()),
                "stream": pa.repeat(pa.scalar("eu", pa.string()), rows),
                "headers": pa.nulls(rows, fragment_file.HEADERS_TYPE),
            },
            schema=fragment_file.SCHEMA,
        )
        file = fragment_file.FileWriter(timestamp_us=TIME_US)
        file.add(records)
        assert fragment_file.read(file.finish(), path="p").limit == rows + 1


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("malloc of size 33554496 failed"),
        OSError("ZSTD decompression failed: Allocation error : not enough memory"),
        pa.ArrowException("Failed to launch worker thread: Resource temporarily unavailable"),
        MemoryError(),
    ],
)
def test_what_arrow_says_of_memory_is_not_corruption(error: Exception) -> None:
    with pytest.raises(MemoryError), parquet_metadata.parsing("p"):
        raise error


@pytest.mark.slow
def test_running_out_of_memory_is_not_corruption(tmp_path: Path) -> None:
    data = encode(values_only(bytes(32 << 20)))
    (tmp_path / "fragment").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", _SHORT_OF_MEMORY, str(tmp_path / "fragment")],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert done.stdout.split() == ["MemoryError"], done.stderr[-2000:]


_SHORT_OF_MEMORY = """
import resource, sys
from pathlib import Path
from uploader.fragments import fragment_file

data = Path(sys.argv[1]).read_bytes()
fragment_file.fragment_timestamp(data, path="p")  # all threads are started
(line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if "VmSize" in one]
now = int(line.split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (now + (12 << 20), resource.RLIM_INFINITY))
try:
    fragment_file.read(data, path="p")
except MemoryError:
    print("MemoryError")
except Exception as error:
    print(repr(error))
"""


def test_columns_that_share_bytes_are_refused() -> None:
    """Or a file would be read many times over."""
    data = encode(RECORDS)
    end = len(data)
    ranges = fragment_file.column_ranges(data, end, ["value"], "p")
    assert sum(high - low for low, high in ranges) <= end
    with pytest.raises(CorruptionError, match=r"overlap|outside"):
        fragment_file.column_ranges(data, max(high for _, high in ranges) // 2, ["value"], "p")
