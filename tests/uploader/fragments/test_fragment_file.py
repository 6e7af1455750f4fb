"""How fragments are stored: encodings, statistics, row groups, footer."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.frames import batch_of, build, values_only
from tests.uploader.parquet import by_arrow_rs, by_pyarrow, wal3_table
from uploader.fragments import fragment_file
from uploader.fragments.fragment_builder import encode_fragment
from uploader.fragments.fragment_file import PAGE_BYTES, ROW_GROUP_BYTES, ROW_GROUP_ROWS
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
    assert fragment_file.time_bounds(data[-footer:], path="p") == (1001, 1199)
    with pytest.raises(CorruptionError):
        fragment_file.time_bounds(data[1 - footer :], path="p")


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
        assert fragment_file.time_bounds(data, path="p") == (5, 5)


def test_one_time_is_insisted_on() -> None:
    assert fragment_file.timestamp(encode(RECORDS), path="p") == TIME_US
    table = wal3_table(1, 5, [b"a", b"b"])
    mixed = table.set_column(1, table.schema.field(1), pa.array([5, 6], pa.uint64()))
    with pytest.raises(CorruptionError, match="share one time"):
        fragment_file.timestamp(by_pyarrow(mixed), path="p")


def test_damage_inside_a_page_shows_without_hashing() -> None:
    value = os.urandom(5000)
    data = encode(values_only(value))
    at = data.index(value[1000:1050])
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(CorruptionError, match=r"(?i)crc|checksum"):
        fragment_file.read(damaged, path="p")
