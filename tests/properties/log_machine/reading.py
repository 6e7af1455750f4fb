"""Readers of every kind, and times looked up."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.local import (
    check_contiguous,
    read_all,
)
from tests.properties.log_machine.running import Reading, Running
from tests.properties.log_machine.strategies import PICK, STREAMS
from walstore.errors import (
    OffsetNotWrittenError,
    OffsetTrimmedError,
)


class Readers(Running):
    """Readers of every kind, and times looked up."""

    @rule(
        stream=st.one_of(st.none(), STREAMS),
        accepted=st.booleans(),
        start=st.sampled_from(["earliest", "latest"]),
    )
    def make_reader(self, stream: str | None, accepted: bool, start: str) -> None:
        visibility = "accepted" if accepted else "durable"
        reader = self.wal.follow(start, stream=stream, visibility=visibility)
        if start == "earliest":
            assert reader.position == self.head
        self.readings = [
            *self.readings[-4:],
            Reading(reader, reader.position, stream, accepted),
        ]

    @rule(pick=PICK, most=st.integers(1, 40), size=st.sampled_from([1, 5000, 1 << 20]))
    def fetch(self, pick: int, most: int, size: int) -> None:
        if not self.readings:
            return
        reading = self.readings[pick % len(self.readings)]
        visible = self.wal.visible_limit
        try:
            batch = self.run(
                reading.reader.fetch(max_records=most, max_bytes=size, max_wait_seconds=0)
            )
        except OffsetTrimmedError:
            assert reading.position < self.head
            reading.reader.seek(self.head)
            reading.position = self.head
            return
        records = list(batch)
        assert batch.start == reading.position
        assert len(records) <= most
        if reading.stream is None:
            assert [r.offset for r in records] == list(range(batch.start, batch.limit))
            assert records or reading.accepted or reading.position >= visible
        self._compare(records, reading, batch.limit)

    @rule(pick=PICK, one=st.booleans())
    def iterate(self, pick: int, one: bool) -> None:
        """One record by ``async for``, or a whole stored batch."""
        ready = [
            r
            for r in self.readings
            if r.stream is None and self.head <= r.position < self.wal.visible_limit
        ]
        if not ready:
            return
        reading = ready[pick % len(ready)]
        if one:
            record = self.run(anext(reading.reader))
            self._compare([record], reading, record.offset + 1)
        else:
            batch = self.run(anext(reading.reader.batches()))
            self._compare(list(batch), reading, batch.limit)

    @rule(pick=PICK)
    def seek(self, pick: int) -> None:
        if self.readings:
            reading = self.readings[pick % len(self.readings)]
            reading.position = self.head + pick % (self.wal.visible_limit - self.head + 1)
            reading.reader.seek(reading.position)

    def _compare(self, records, reading: Reading, limit: int) -> None:
        """What was read is all of the stream between the old and the new position."""
        assert limit <= (self.model.tail if reading.accepted else self.wal.visible_limit)
        expected = [
            (offset, *self.model.items[offset - 1])
            for offset in range(reading.position, limit)
            if reading.stream in (None, self.model.items[offset - 1][1].get("stream"))
        ]
        assert len(records) == len(expected)
        for record, (offset, value, options) in zip(records, expected, strict=True):
            assert (record.offset, record.value) == (offset, value)
            assert record.key == options.get("key")
            assert record.stream == options.get("stream")
            assert dict(record.headers) == options.get("headers", {})
        assert reading.reader.position == limit
        reading.position = limit

    @rule()
    def read_everything(self) -> None:
        visible = self.wal.visible_limit
        records = self.run(read_all(self.wal))
        check_contiguous(records, self.head)
        whole = Reading(self.wal.follow(), self.head)
        limit = self.head + len(records)
        assert limit >= visible
        whole.reader.seek(limit)
        self._compare(records, whole, limit)

    @rule(pick=PICK)
    def look_up_times(self, pick: int) -> None:
        """A time finds the first record that has it; records know theirs."""
        visible = self.wal.visible_limit
        if self.head == visible:
            with pytest.raises(OffsetNotWrittenError):
                self.run(self.wal.timestamp_at(self.wal.tail))
            return
        offset = self.head + pick % (visible - self.head)
        time_us = self.run(self.wal.timestamp_at(offset))
        first = self.run(self.wal.offset_at(time_us))
        assert self.head <= first <= offset
        assert self.run(self.wal.timestamp_at(first)) == time_us
        if first > self.head:
            assert self.run(self.wal.timestamp_at(first - 1)) < time_us
        with pytest.raises(OffsetNotWrittenError):
            self.run(self.wal.timestamp_at(self.wal.tail))
        if self.head > 1:
            with pytest.raises(OffsetTrimmedError):
                self.run(self.wal.timestamp_at(self.head - 1))
