"""From batches to Arrow columns without a Python object for each record."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import batch_of, build, record_lists, values_only
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_columns
from uploader.fragments.fragment import decode_fragment
from uploader.fragments.fragment_builder import encode_fragment
from walstore.batches.arrow import SCHEMA
from walstore.batches.batch import Batch
from walstore.records import Record

TIME_US = 1_234_567_890_123_456


@pytest.mark.parametrize("few", [0, 64], ids=["column by column", "record by record"])
@given(records=record_lists(), data=st.data())
def test_the_columns_are_those_of_the_batches(few: int, records: list[Record], data) -> None:
    limit = records[-1].offset + 1
    places = st.integers(records[0].offset, limit)
    cuts = data.draw(st.sets(places, max_size=4)) | {records[0].offset, limit}
    whole = batch_of(build(records))
    batches = [whole.slice(low, high) for low, high in pairwise(sorted(cuts))]
    values = [record.value for record in records]
    with mock.patch.object(fragment_columns, "_FEW_ROWS", few):
        found = fragment_columns.to_table(batches)
        setsum = fragment_columns.setsum_of(batches, TIME_US)
    found.validate(full=True)
    assert found.schema == SCHEMA
    expected = pa.Table.from_batches([batch.to_arrow() for batch in batches], SCHEMA)
    assert found.combine_chunks().equals(expected.combine_chunks())
    assert setsum == Setsum.of_records(records[0].offset, TIME_US, values)


def test_many_short_batches_are_taken_together() -> None:
    """Making the columns of each would take longer than all else."""
    batches: list[Batch] = [
        batch_of(build(values_only(b"%d" % at, start=at))) for at in range(1, 3001)
    ]
    batches.insert(1000, batch_of(build(values_only(*[b"x"] * 100, start=1001))))
    batches = [*batches[:1001], *(_moved(batch, 100) for batch in batches[1001:])]
    found = fragment_columns.to_table(batches)
    assert found.column("offset").to_pylist() == list(range(1, 3101))
    assert [len(chunk) for chunk in found.column("value").chunks] == [1000, 100, 1024, 976]
    values = found.column("value").to_pylist()
    assert fragment_columns.setsum_of(batches, TIME_US) == Setsum.of_records(1, TIME_US, values)


def _moved(batch: Batch, by: int) -> Batch:
    return batch_of(build(values_only(*batch.values, start=batch.start + by)))


def test_batches_of_any_kind() -> None:
    records = [Record(5, b"a", b"k", "s", {"h": b"1"}, 7), Record(6, b"b", timestamp_us=8)]
    encoded = encode_fragment([batch_of(build(records))], timestamp_us=TIME_US)
    batch = decode_fragment(encoded.data, encoded.entry(1))
    again = batch_of(build([Record(7, b"c", timestamp_us=9)]))
    found = fragment_columns.to_table([batch, again])
    assert found.column("offset").to_pylist() == [5, 6, 7]
    assert found.column("key").to_pylist() == [b"k", None, None]
    expected = Setsum.of_records(5, TIME_US, [b"a", b"b", b"c"])
    assert fragment_columns.setsum_of([batch, again], TIME_US) == expected


def test_values_are_shared_with_the_frame() -> None:
    batch = batch_of(build(values_only(*[b"x" * 1000] * 64)))
    column = fragment_columns.to_table([batch]).column("value").chunk(0)
    blob, _ = batch.value_buffer()
    assert column.buffers()[2].address == pa.py_buffer(blob).address


def test_hashing_leaves_no_values_behind() -> None:
    """Frames stay in the log's cache; what is decoded for a fragment must not stay with them."""
    for count in (1, 100):
        batch = batch_of(build(values_only(*[b"x"] * count)))
        fragment_columns.setsum_of([batch], TIME_US)
        fragment_columns.to_table([batch])
        assert not batch.has_decoded_values
