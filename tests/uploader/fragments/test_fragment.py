"""Fragments: round trips, wal3's files both ways, and what is refused."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import case
from tests.frames import batch_of, build, record_lists, values_only
from tests.golden.wal3.regenerate import setsum_hex
from tests.uploader.parquet import by_arrow_rs, by_pyarrow, read_by_arrow_rs, wal3_table
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import (
    FragmentBatch,
    decode_columns,
    decode_fragment,
    inspect_fragment,
    verify_fragment,
)
from uploader.fragments.fragment_builder import EncodedFragment, encode_fragment
from uploader.fragments.fragment_file import fragment_time_bounds, fragment_timestamp
from walstore.core.batches.arrow import SCHEMA
from walstore.core.batches.batch import Batch
from walstore.errors import CorruptionError, FormatVersionError
from walstore.records import NO_HEADERS, Record

TIME_US = 1_234_567_890_123_456
PATH = layout.fragment_path(7)
BODIES = [b"one", b"", b"three" * 100]


def batches_of(records: Sequence[Record], *cuts: int) -> list[Batch]:
    """Return the records as batches that end at these offsets, and at the last record."""
    bounds = [records[0].offset, *cuts, records[-1].offset + 1]
    whole = batch_of(build(records))
    return [whole.slice(low, high) for low, high in pairwise(bounds)]


def encode(records: Sequence[Record], *cuts: int, timestamp_us: int = TIME_US) -> EncodedFragment:
    return encode_fragment(batches_of(records, *cuts), timestamp_us=timestamp_us)


def inspect(data: bytes) -> Fragment:
    return inspect_fragment(data, PATH)


# -- ours --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(record_lists(), st.data())
def test_every_record_comes_back_as_it_was(records: list[Record], data: st.DataObject) -> None:
    limit = records[-1].offset + 1
    cuts = sorted(data.draw(st.sets(st.integers(records[0].offset, limit), max_size=3)))
    encoded = encode(records, *cuts)
    assert (encoded.start, encoded.limit) == (records[0].offset, limit)
    entry = encoded.entry(7)
    assert decode_fragment(encoded.data, entry).records() == records
    assert verify_fragment(encoded.data, entry).records() == records
    assert inspect(encoded.data) == entry
    assert fragment_timestamp(encoded.data) == TIME_US
    assert fragment_time_bounds(encoded.data) == (records[0].timestamp_us, records[-1].timestamp_us)


def test_the_published_record() -> None:
    encoded = encode(values_only(bytes.fromhex("2a2b2c2d"), timestamp_us=5))
    assert encoded.setsum.hexdigest() == (
        "9a2712dcd8675fd36a0d3283d6bda7a87a4a8bf81b4af96a98dd7b283d6f1cfe"
    )
    assert encoded.entry(1) == Fragment(
        path="log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet",
        seq_no=1,
        start=1,
        limit=2,
        num_bytes=len(encoded.data),
        setsum=encoded.setsum,
    )


def test_the_setsum_covers_the_fragments_time_not_the_records() -> None:
    records = [Record(5, b"a", timestamp_us=1), Record(6, b"b", timestamp_us=2)]
    items = [
        n.to_bytes(8, "big") + TIME_US.to_bytes(8, "big") + v for n, v in ((5, b"a"), (6, b"b"))
    ]
    assert encode(records).setsum.hexdigest() == setsum_hex(items)


@pytest.mark.slow
def test_a_fragment_of_many_batches_and_row_groups() -> None:
    values = [os.urandom(1500) for _ in range(7000)]
    batches = [
        batch_of(build(values_only(*values[low : low + 1000], start=1 + low, timestamp_us=low)))
        for low in range(0, 7000, 1000)
    ]
    encoded = encode_fragment(batches, timestamp_us=TIME_US)
    entry = encoded.entry(1)
    found = verify_fragment(encoded.data, entry)
    assert list(found.values) == values
    assert [found.timestamps_us[at] for at in (0, 999, 1000, 6999)] == [0, 0, 1000, 6000]
    assert encoded.setsum == Setsum.of_records(1, TIME_US, values)
    assert fragment_time_bounds(encoded.data) == (0, 6000)


def test_the_same_input_gives_the_same_bytes() -> None:
    records = values_only(b"a", b"b", b"c")
    assert encode(records).data == encode(records, 2).data == encode(records, 2, 2, 3).data


def test_no_record_is_no_fragment() -> None:
    empty = batches_of(values_only(b"a"))[0].slice(1, 1)
    for batches in ([], [empty], [empty, empty]):
        with pytest.raises(ValueError, match="at least one record"):
            encode_fragment(batches, timestamp_us=TIME_US)


def test_batches_must_follow_each_other() -> None:
    first, second, third = batches_of(values_only(b"a", b"b", b"c"), 2, 3)
    for batches in ([first, third], [second, first], [first, first]):
        with pytest.raises(ValueError, match="does not follow"):
            encode_fragment(batches, timestamp_us=TIME_US)


@pytest.mark.parametrize("timestamp_us", [-1, 1 << 64])
def test_the_time_fits_64_bits(timestamp_us: int) -> None:
    with pytest.raises(ValueError, match="timestamp_us"):
        encode(values_only(b"a"), timestamp_us=timestamp_us)


def test_the_largest_numbers() -> None:
    largest = layout.MAX_U64
    data = by_arrow_rs(wal3_table(largest - 1, largest, [b"x"]))
    entry = inspect(data)
    assert (entry.start, entry.limit) == (largest - 1, largest)
    assert fragment_timestamp(data) == largest
    assert fragment_time_bounds(data) == (largest, largest)
    again = encode_fragment([decode_fragment(data, entry)], timestamp_us=largest)
    assert (again.start, again.limit, again.setsum) == (entry.start, entry.limit, entry.setsum)
    assert fragment_time_bounds(again.data) == (largest, largest)


# -- wal3's ------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(record_lists())
def test_arrow_rs_reads_our_files(records: list[Record]) -> None:
    table = read_by_arrow_rs(encode(records).data)
    schema = table.schema
    assert schema.names[:3] == ["offset", "timestamp_us", "body"]
    assert [schema.field(name).type for name in schema.names[:3]] == [
        pa.uint64(),
        pa.uint64(),
        pa.binary(),
    ]
    assert not any(schema.field(name).nullable for name in schema.names[:3])
    assert table.column("offset").to_pylist() == [record.offset for record in records]
    assert table.column("timestamp_us").to_pylist() == [TIME_US] * len(records)
    assert table.column("body").to_pylist() == [record.value for record in records]
    assert table.column("key").to_pylist() == [record.key for record in records]
    assert table.column("stream").to_pylist() == [record.stream for record in records]


@pytest.mark.parametrize("compression", ["snappy", "zstd(3)", "gzip(6)", "lz4_raw", "uncompressed"])
@pytest.mark.parametrize("version", ["parquet_1_0", "parquet_2_0"])
@pytest.mark.parametrize("described", [True, False], ids=["ARROW:schema", "no ARROW:schema"])
def test_we_read_files_of_arrow_rs(compression: str, version: str, described: bool) -> None:
    data = by_arrow_rs(
        wal3_table(100, TIME_US, BODIES),
        compression=compression,
        writer_version=version,
        skip_arrow_metadata=not described,
    )
    entry = inspect(data)
    assert (entry.seq_no, entry.start, entry.limit) == (7, 100, 103)
    assert entry.num_bytes == len(data)
    assert entry.setsum == Setsum.of_records(100, TIME_US, BODIES)
    expected = [Record(100 + at, body, timestamp_us=TIME_US) for at, body in enumerate(BODIES)]
    assert verify_fragment(data, entry).records() == expected
    assert fragment_time_bounds(data) == (TIME_US, TIME_US)


def test_extra_columns_of_others_are_ignored() -> None:
    table = wal3_table(1, TIME_US, BODIES)
    table = table.append_column("more", pa.array([1.5, None, 3.5]))
    # They may even have the name of one of ours.
    table = table.append_column("key", pa.array([1, 2, 3], pa.int32()))
    table = table.append_column("stream", pa.array([b"x", b"y", b"z"]))
    data = by_arrow_rs(table)
    found = decode_fragment(data, inspect(data))
    assert found.records() == [Record(1 + n, b, timestamp_us=TIME_US) for n, b in enumerate(BODIES)]


def test_columns_may_come_in_any_order() -> None:
    table = wal3_table(1, TIME_US, BODIES).select(["body", "offset", "timestamp_us"])
    data = by_arrow_rs(table)
    assert list(decode_fragment(data, inspect(data)).values) == BODIES


def test_nullable_columns_without_nulls_are_fine() -> None:
    table = wal3_table(1, TIME_US, BODIES)
    nullable = pa.schema([field.with_nullable(True) for field in table.schema])
    data = by_pyarrow(table.cast(nullable))
    assert list(decode_fragment(data, inspect(data)).values) == BODIES


# -- what is refused ---------------------------------------------------------------------------


def table_with(name: str, column: pa.Array) -> pa.Table:
    table = wal3_table(1, TIME_US, BODIES)
    field = pa.field(name, column.type)
    return table.set_column(table.schema.get_field_index(name), field, column)


def u64(*numbers: int | None) -> pa.Array:
    return pa.array(numbers, pa.uint64())


def test_files_that_are_no_fragments() -> None:
    for table, message in (
        (wal3_table(1, TIME_US, []), "without records"),
        (wal3_table(1, TIME_US, BODIES).drop_columns("offset"), "'offset' must be there once"),
        (wal3_table(1, TIME_US, BODIES).drop_columns("body"), "'body' must be there once"),
        (wal3_table(1, TIME_US, BODIES).append_column("body", pa.array(BODIES)), "'body' must be"),
        (table_with("offset", pa.array([1, 2, 3], pa.int64())), "'offset' must be there once"),
        (table_with("offset", u64(1, 3, 4)), "go up by one"),
        (table_with("offset", u64(1, 2, 2)), "go up by one"),
        (table_with("offset", u64(3, 2, 1)), "go up by one"),
        (table_with("offset", u64(1, None, 3)), "'offset' has nulls"),
        (table_with("timestamp_us", u64(5, 5, 6)), "share one time"),
        (table_with("timestamp_us", u64(5, None, 5)), "'timestamp_us' has nulls"),
        (
            table_with("timestamp_us", pa.array([5] * 3, pa.timestamp("us"))),
            "'timestamp_us' must be",
        ),
        (table_with("body", pa.array(BODIES, pa.large_binary())), "'body' must be there once"),
        (table_with("body", pa.array(["a", "b", "c"])), "'body' must be there once"),
        (table_with("body", pa.array([b"a", None, b"c"])), "'body' has nulls"),
        (
            wal3_table(1, 5, BODIES).append_column("record_timestamp_us", u64(1, None, 3)),
            "has nulls",
        ),
        (wal3_table(layout.MAX_U64, 5, [b"a"]), "go up by one"),
    ):
        with case(table, message):
            with pytest.raises(CorruptionError, match=message) as caught:
                inspect(by_pyarrow(table))
            assert caught.value.path == PATH


def test_text_that_is_no_utf8_is_corruption() -> None:
    bad = pa.array([b"\xff\xfe", b"b", b"c"]).view(pa.string())
    data = by_pyarrow(wal3_table(1, TIME_US, BODIES).append_column("stream", bad))
    with pytest.raises(CorruptionError, match="UTF"):
        inspect(data)


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" * 10, b"not parquet at all, but long enough"]
)
def test_bytes_that_are_no_parquet(data: bytes) -> None:
    for call in (
        lambda: inspect(data),
        lambda: fragment_timestamp(data, path=PATH),
        lambda: fragment_time_bounds(data, path=PATH),
    ):
        with pytest.raises(CorruptionError, match="Parquet") as caught:
            call()
        assert caught.value.path == PATH


def test_a_foreign_key_is_refused() -> None:
    data = encode(values_only(b"a")).data
    with pytest.raises(CorruptionError, match="not the key of a fragment"):
        inspect_fragment(data, "log/README")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 2}, "first offset is 1"),
        ({"limit": 5}, "limit is 4"),
    ],
)
def test_the_object_is_what_its_entry_says(changes: dict[str, int], message: str) -> None:
    encoded = encode(values_only(*BODIES))
    entry = dataclasses.replace(encoded.entry(7), **changes)
    for read in (decode_fragment, verify_fragment):
        with pytest.raises(CorruptionError, match=message) as caught:
            read(encoded.data, entry)
        assert caught.value.path == PATH


@pytest.mark.parametrize("more", [-100, 100])
def test_another_length_is_no_other_content(more: int) -> None:
    """wal3's copy of a log has the entries of the original. The setsum says whether these are the records."""
    encoded = encode(values_only(*BODIES))
    entry = encoded.entry(7)
    entry = dataclasses.replace(entry, num_bytes=entry.num_bytes + more)
    for read in (decode_fragment, verify_fragment):
        assert list(read(encoded.data, entry).values) == BODIES
        with pytest.raises(CorruptionError, match="setsum"):
            read(encoded.data, dataclasses.replace(entry, setsum=Setsum()))
        with pytest.raises(CorruptionError, match="length") as caught:
            read(encoded.data[:-1], entry)
        assert caught.value.expected == entry.num_bytes
        assert caught.value.found == len(encoded.data) - 1
    with pytest.raises(CorruptionError, match="length"):
        decode_columns(encoded.data, entry, ["value"])


def test_only_verifying_looks_at_the_setsum() -> None:
    encoded = encode(values_only(*BODIES))
    entry = dataclasses.replace(encoded.entry(7), setsum=Setsum())
    assert list(decode_fragment(encoded.data, entry).values) == BODIES
    with pytest.raises(CorruptionError, match="setsum") as caught:
        verify_fragment(encoded.data, entry)
    assert caught.value.expected == Setsum()
    assert caught.value.found == encoded.setsum


def test_a_missing_tail_shows() -> None:
    encoded = encode(values_only(*BODIES))
    for cut in range(0, len(encoded.data), 97):
        with pytest.raises(CorruptionError):
            decode_fragment(
                encoded.data[:cut], dataclasses.replace(encoded.entry(7), num_bytes=cut)
            )


@pytest.mark.slow
def test_no_flipped_bit_changes_a_record_unseen() -> None:
    """Without hashing: the page checksums, and for the footer its structure, must do."""
    records = [
        Record(1, os.urandom(50), b"key", "stream", {"h": b"1"}, 5),
        Record(2, b"text" * 30, None, "other", timestamp_us=6),
    ]
    encoded = encode(records)
    entry = encoded.entry(7)
    footer = len(encoded.data) - 8 - int.from_bytes(encoded.data[-8:-4], "little")
    for at in (*range(footer), *range(footer, len(encoded.data), 3)):
        damaged = bytearray(encoded.data)
        damaged[at] ^= 1 << at % 8
        try:
            found = decode_fragment(bytes(damaged), entry)
        except (CorruptionError, FormatVersionError):
            continue
        # Some bytes carry nothing: sizes that are known twice, statistics, names of encodings.
        assert found.records() == records, at


def test_a_newer_version_is_refused_as_such() -> None:
    table = wal3_table(1, TIME_US, BODIES).replace_schema_metadata({"walstore.fragment": "2"})
    with pytest.raises(FormatVersionError, match="newer version"):
        inspect(by_pyarrow(table))


def test_a_file_of_ours_has_all_our_columns() -> None:
    table = wal3_table(1, TIME_US, BODIES).replace_schema_metadata({"walstore.fragment": "1"})
    with pytest.raises(CorruptionError, match="'record_timestamp_us' must be there once"):
        inspect(by_pyarrow(table))


def fragment_batch(records: list[Record], *cuts: int) -> FragmentBatch:
    """Return the records as they come from a fragment whose row groups end at these rows."""
    whole = batch_of(build(records)).to_arrow()
    bounds = [0, *cuts, len(records)]
    pieces = [whole.slice(low, high - low) for low, high in pairwise(bounds)]
    return FragmentBatch(pa.Table.from_batches(pieces, SCHEMA), start=records[0].offset)


@given(record_lists(), st.data())
def test_it_shows_what_a_local_batch_shows(records: list[Record], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3)))
    local, found = batch_of(build(records)), fragment_batch(records, *cuts)
    assert (found.start, found.limit, len(found)) == (local.start, local.limit, len(local))
    assert list(found) == found.records() == records
    assert list(found.values) == list(local.values)
    assert list(found.keys) == list(local.keys)
    assert list(found.streams) == list(local.streams)
    assert list(found.headers) == list(local.headers)
    assert list(found.timestamps_us) == list(local.timestamps_us)
    assert found.to_arrow().equals(local.to_arrow())
    assert found.to_arrow().schema == SCHEMA
    for name in {record.stream for record in records} - {None}:
        assert found.may_hold_stream(name)
    assert not found.may_hold_stream("no such stream")


@pytest.mark.slow
@given(record_lists(), st.data())
def test_the_records_of_a_stream(records: list[Record], data: st.DataObject) -> None:
    streams = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=20, max_size=20))
    records = [r._replace(stream=s) for r, s in zip(records, streams, strict=False)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3)))
    whole = fragment_batch(records, *cuts)
    low = data.draw(st.integers(whole.start, whole.limit))
    high = data.draw(st.integers(low, whole.limit))
    kept = [r for r in records if r.stream == "a" and low <= r.offset < high]
    for found in (
        whole.slice(low, high).select_stream("a"),
        whole.select_stream("a").slice(low, high),
    ):
        assert (found.start, found.limit, len(found)) == (low, high, len(kept))
        assert found.records() == kept
        assert list(found.offsets) == [record.offset for record in kept]
        assert list(found.streams) == ["a"] * len(kept)
        expected = batch_of(build(records)).slice(low, high).select_stream("a").to_arrow()
        assert found.to_arrow().equals(expected)


def test_a_fragment_of_one_stream_is_left_as_it_is() -> None:
    whole = fragment_batch([Record(1, b"a", stream="eu"), Record(2, b"b", stream="eu")])
    assert whole.select_stream("eu") is whole


@pytest.mark.slow
@given(record_lists(), st.data())
def test_slices_are_slices(records: list[Record], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=2)))
    whole = fragment_batch(records, *cuts)
    low = data.draw(st.integers(whole.start, whole.limit))
    high = data.draw(st.integers(low, whole.limit))
    part = whole.slice(low, high)
    assert (part.start, part.limit) == (low, high)
    assert part.records() == records[low - whole.start : high - whole.start]
    assert part.to_arrow().column("value").to_pylist() == list(part.values)
    assert sum(batch.num_rows for batch in part.to_arrow_batches()) == len(part)
    again = part.slice(high, high)
    assert (again.records(), again.start, len(again.to_arrow())) == ([], high, 0)


def test_the_whole_is_not_sliced_again() -> None:
    whole = fragment_batch(values_only(b"a", b"b"))
    assert whole.slice(1, 3) is whole
    assert repr(whole) == "<FragmentBatch [1, 3)>"


@pytest.mark.parametrize(("start", "limit"), [(4, 6), (5, 9), (7, 6), (0, 0)])
def test_a_slice_lies_inside(start: int, limit: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        fragment_batch(values_only(b"a", b"b", start=5)).slice(start, limit)


def test_missing_headers_are_the_shared_value() -> None:
    plain = fragment_batch(values_only(b"a", b"b"))
    assert all(item is NO_HEADERS for item in plain.headers)
    mixed = fragment_batch([Record(1, b"a", headers={"h": b"1"}), Record(2, b"b")])
    assert mixed.headers[0] == {"h": b"1"}
    assert mixed.headers[1] is NO_HEADERS


def test_values_are_decoded_once() -> None:
    batch = fragment_batch(values_only(b"a", b"b"))
    assert batch.values is batch.values


def addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


def test_arrow_shares_the_bytes() -> None:
    records = values_only(b"a" * 100, b"b" * 100, b"c" * 100)
    source = batch_of(build(records)).to_arrow()
    batch = FragmentBatch(pa.Table.from_batches([source], SCHEMA), start=1)
    for found in (batch, batch.slice(2, 3)):
        assert addresses(found.to_arrow().column("value")) == addresses(source.column("value"))
    cut = FragmentBatch(
        pa.Table.from_batches([source.slice(0, 1), source.slice(1)], SCHEMA), start=1
    )
    for piece in cut.to_arrow_batches():
        assert addresses(piece.column("value")) == addresses(source.column("value"))


def test_sizes_are_of_the_part_it_covers() -> None:
    batch = fragment_batch(values_only(*[bytes(1000)] * 100))
    assert 100_000 <= batch.nbytes <= 110_000
    assert 10_000 <= batch.slice(11, 21).nbytes <= 11_000


def test_other_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        FragmentBatch(pa.table({"offset": [1]}), start=1)
