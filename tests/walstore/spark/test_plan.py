"""Planning: which offsets are read, and how they are divided. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore.core.format.segment import HEADER_BYTES, SegmentIndex
from walstore.errors import InvalidSettingsError, OffsetNotWrittenError, OffsetTrimmedError
from walstore.spark.options import parse_options
from walstore.spark.partitions import FileExtent, FilePart, LogPartition, cut_file, group
from walstore.spark.plan import ReadInterval, divide, resolve


@dataclass
class FakeLog:
    """Records [head, limit), of which each is stamped with its offset in milliseconds."""

    head: int = 10
    limit: int = 20
    record_bytes: int = 1 << 20

    def is_trimmed(self, offset):
        return offset < self.head

    def offset_at(self, timestamp_us):
        offset = max(self.head, -(-timestamp_us // 1000))
        return offset if offset < self.limit else None

    def partitions(self, start, limit, most_bytes):
        step = max(1, most_bytes // self.record_bytes)
        return [
            LogPartition(
                topic="orders",
                start=at,
                limit=min(at + step, limit),
                size_bytes=self.record_bytes * (min(at + step, limit) - at),
            )
            for at in range(start, limit, step)
        ]


def resolved(log=None, **options):
    found = parse_options({"path": "/srv/orders", **options})
    return resolve(
        log or FakeLog(),
        found.starting.of("orders", 0),
        found.ending.of("orders", 0),
        needs_record=found.needs_record,
        fail_on_data_loss=found.fail_on_data_loss,
    )


@pytest.mark.parametrize(
    ("options", "start", "limit"),
    [
        ({}, 10, 20),
        ({"startingOffsets": "12"}, 12, 20),
        ({"startingOffsets": "20"}, 20, 20),
        ({"startingOffsets": "latest"}, 20, 20),
        ({"endingOffsets": "15"}, 10, 15),
        ({"startingOffsets": "10", "endingOffsets": "11"}, 10, 11),
        (
            {"startingOffsets": '{"orders":{"0":-2}}', "endingOffsets": '{"orders":{"0":12}}'},
            10,
            12,
        ),
        ({"startingTimestamp": "0"}, 10, 20),
        ({"startingTimestamp": "13"}, 13, 20),
        ({"endingTimestamp": "13"}, 10, 13),
        ({"endingTimestamp": "99"}, 10, 20),
        ({"startingTimestamp": "13", "endingTimestamp": "13"}, 13, 13),
        ({"startingTimestamp": "20", "startingOffsetsByTimestampStrategy": "latest"}, 20, 20),
    ],
)
def test_bounds(options, start, limit):
    assert resolved(**options) == ReadInterval(start, limit)


def test_offset_zero_means_the_beginning():
    assert resolved(FakeLog(head=1), startingOffsets="0") == ReadInterval(1, 20)


def test_a_trimmed_start_fails_or_is_clamped():
    with pytest.raises(OffsetTrimmedError, match=r"requested=5 head=10 tail=20") as caught:
        resolved(startingOffsets="5")
    assert "failOnDataLoss" in str(caught.value)
    found = resolved(startingOffsets="5", failOnDataLoss="false")
    assert found == ReadInterval(10, 20, "offsets [5, 10) were removed from the log")
    found = resolved(startingOffsets="5", endingOffsets="8", failOnDataLoss="false")
    assert found == ReadInterval(8, 8, "offsets [5, 8) were removed from the log")


def test_offsets_beyond_the_tail_fail_or_are_clamped():
    with pytest.raises(OffsetNotWrittenError, match=r"requested=25 head=10 tail=20"):
        resolved(endingOffsets="25")
    found = resolved(endingOffsets="25", failOnDataLoss="false")
    assert found == ReadInterval(10, 20, "offsets [20, 25) are not written yet")
    found = resolved(startingOffsets="22", endingOffsets="25", failOnDataLoss="false")
    assert (found.start, found.limit) == (20, 20)


def test_a_start_beyond_the_tail_fails_or_reads_nothing():
    with pytest.raises(OffsetNotWrittenError, match="requested=22"):
        resolved(startingOffsets="22")
    found = resolved(startingOffsets="22", failOnDataLoss="false")
    assert (found.start, found.limit) == (20, 20)


def test_a_start_behind_the_end_is_refused():
    with pytest.raises(InvalidSettingsError, match="start at offset 15 and end before it, at 12"):
        resolved(startingOffsets="15", endingOffsets="12")


def test_a_time_that_no_record_meets_is_refused():
    with pytest.raises(InvalidSettingsError, match="startingOffsetsByTimestampStrategy"):
        resolved(startingTimestamp="20")


def test_min_partitions_makes_smaller_tasks():
    log = FakeLog(head=1, limit=101)
    assert len(divide([(log, ReadInterval(1, 101))], 1)) == 4
    found = divide([(log, ReadInterval(1, 101))], 10)
    assert len(found) >= 10
    assert [found[0].start, *(p.limit for p in found)] == [*(p.start for p in found), 101]
    assert len(divide([(log, ReadInterval(1, 101))], 1000)) == 100
    assert divide([(log, ReadInterval(7, 7))], 10) == []


def test_min_partitions_are_distributed_by_bytes():
    large, small = FakeLog(head=1, limit=91), FakeLog(head=1, limit=11)
    reads = [
        (large, ReadInterval(1, 91)),
        (small, ReadInterval(1, 11)),
        (small, ReadInterval(11, 11)),
    ]
    found = divide(reads, 20)
    assert 20 <= len(found) <= 22
    assert 18 <= sum(p.limit <= 91 for p in found[:-2]) <= 20
    assert [p.limit - p.start for p in found] == [5] * 20
    assert len(divide(reads, 1)) == 4


def test_a_task_has_at_most_so_many_records():
    log = FakeLog(head=1, limit=101, record_bytes=1 << 10)
    found = divide([(log, ReadInterval(1, 101))], 1, 30)
    assert [(p.start, p.limit) for p in found] == [(1, 26), (26, 51), (51, 76), (76, 101)]
    assert len(divide([(log, ReadInterval(1, 101))], 1, 100)) == 1
    assert len(divide([(log, ReadInterval(1, 101))], 1, 1)) == 100
    assert len(divide([(log, ReadInterval(1, 101))], 10, 99)) >= 10


@dataclass(frozen=True)
class Sized:
    size_bytes: int


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 100))
def test_groups_keep_order_and_bound(sizes, most_bytes):
    parts = [Sized(size) for size in sizes]
    groups = group(parts, most_bytes)
    assert [part for members in groups for part in members] == parts
    for members in groups:
        assert len(members) == 1 or sum(part.size_bytes for part in members) <= most_bytes


@st.composite
def extents(draw) -> FileExtent:
    start = draw(st.integers(1, 1000))
    index = SegmentIndex()
    offset, position = start, HEADER_BYTES
    for _ in range(draw(st.integers(0, 40))):
        index.add(offset, position, 0)
        offset += draw(st.integers(1, 30))
        position += draw(st.integers(1, 60_000))
    limit = offset + draw(st.integers(1, 30))
    return FileExtent("x.wal", start, limit, position + draw(st.integers(0, 20_000)), index)


@given(extents(), st.integers(1, 1 << 20), st.data())
def test_a_file_is_cut_without_gap_or_overlap(extent, most_bytes, data):
    start = data.draw(st.integers(extent.start, extent.limit - 1))
    limit = data.draw(st.integers(start + 1, extent.limit))
    parts = cut_file(extent, start, limit, most_bytes)
    assert [parts[0].start, *(part.limit for part in parts)] == [*(p.start for p in parts), limit]
    starts = {HEADER_BYTES: extent.start}
    starts |= dict(zip(extent.index.positions, extent.index.starts, strict=True))
    for part in parts:
        assert isinstance(part, FilePart)
        assert part.start < part.limit
        assert starts[part.position] <= part.start, "the batch at the position comes too late"
        assert part.size_bytes >= 0


def test_a_large_file_is_cut_into_about_equal_parts():
    index = SegmentIndex()
    for at in range(1000):
        index.add(1 + at * 100, HEADER_BYTES + at * 65_536, 0)
    extent = FileExtent("x.wal", 1, 100_001, HEADER_BYTES + 65_536_000, index)
    parts = cut_file(extent, 1, 100_001, 20_000_000)
    assert len(parts) == 4
    assert max(part.size_bytes for part in parts) < 1.1 * min(part.size_bytes for part in parts)
