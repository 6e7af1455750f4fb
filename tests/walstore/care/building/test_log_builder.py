"""LogBuilder: segments like those of a log's own writer. Failures: scenarios/test_45_restore_faults.py."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from tests.local import SMALL, close_opened, open_blocking, read_opened, segments
from walstore.care.building import segment_writer
from walstore.care.building.log_builder import LogBuilder, RestoreMarker
from walstore.care.verify.verifying import verify_directory
from walstore.core.batches.arrow import SCHEMA
from walstore.core.files.posix import PosixFileSystem
from walstore.testing import ManualClock

LOG_ID = b"identity of log "


def records(
    start: int, values: Iterable[bytes], streams: Iterable[str | None] | None = None
) -> pa.RecordBatch:
    values = list(values)
    rows = len(values)
    columns = [
        pa.array(range(start, start + rows), pa.uint64()),
        pa.array([start] * rows, pa.uint64()),
        pa.array(values, pa.binary()),
        pa.nulls(rows, pa.binary()),
        pa.nulls(rows, pa.string()) if streams is None else pa.array(streams, pa.string()),
        pa.nulls(rows, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def begun(path: Path, head: int = 1) -> LogBuilder:
    builder = LogBuilder(PosixFileSystem(), ManualClock(), path, SMALL, "test")
    builder.begin(RestoreMarker("memory://x", LOG_ID.hex(), head, None))
    return builder


def finished(builder: LogBuilder) -> None:
    builder.finish(uploaded_limit=0, tier_url=None)
    builder.close()


def test_it_opens_without_walking_and_goes_on(tmp_path: Path) -> None:
    builder = begun(tmp_path, head=5)
    builder.add([records(5, [bytes(5000)] * 30, ["a"] * 30)])
    finished(builder)
    assert len(segments(tmp_path)) == builder.segments == 3
    opened = open_blocking(tmp_path)
    try:
        assert (opened.tail.head, opened.tail.durable_limit) == (5, 35)
        assert opened.recovery.scanned_bytes == opened.recovery.truncated_bytes == 0
        assert opened.tail.ledger.streams["a"].opened_at == 5
        assert [record.offset for record in read_opened(opened)] == list(range(5, 35))
    finally:
        close_opened(opened)
    assert verify_directory(tmp_path).is_ok


def test_every_segment_begins_with_the_streams_before_it(tmp_path: Path) -> None:
    """So that the checkpoint stays a hint, and no older segment is needed."""
    builder = begun(tmp_path)
    for number in range(10):
        builder.add([records(1 + number * 8, [bytes(5000)] * 8, [f"stream {number}"] * 8)])
    finished(builder)
    for path in segments(tmp_path)[:-1]:
        path.unlink()
    for name in ("CHECKPOINT", "DURABLE"):
        (tmp_path / name).unlink()
    opened = open_blocking(tmp_path)
    try:
        assert list(opened.tail.ledger.streams) == [f"stream {number}" for number in range(10)]
    finally:
        close_opened(opened)


def test_few_records_wait_for_more(tmp_path: Path) -> None:
    builder = begun(tmp_path)
    for offset in range(1, 100):
        builder.add([records(offset, [b"x"])])
        assert builder.position == offset + 1
    finished(builder)
    report = verify_directory(tmp_path)
    assert (report.batches, report.records) == (1, 99)


def test_more_streams_than_a_log_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records stay; the streams above the limit are not open."""
    monkeypatch.setattr(segment_writer, "MAX_STREAMS", 3)
    builder = begun(tmp_path)
    builder.add([records(1, [bytes(5000)] * 5, "abcde")])
    finished(builder)
    assert builder.streams == 3
    opened = open_blocking(tmp_path)
    try:
        assert list(opened.tail.ledger.streams) == ["a", "b", "c"]
        assert [record.stream for record in read_opened(opened)] == list("abcde")
    finally:
        close_opened(opened)


def test_discarding_leaves_a_vacant_directory(tmp_path: Path) -> None:
    builder = begun(tmp_path)
    builder.add([records(1, [bytes(5000)] * 30)])
    assert segments(tmp_path)
    builder.discard()
    builder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["LOCK"]


MARKER = RestoreMarker(url="s3://bucket/ørders", log_id="ab" * 16, head=7, stop=None)


@pytest.mark.parametrize("stop", [None, 100])
def test_there_and_back(stop: int | None) -> None:
    marker = RestoreMarker(url=MARKER.url, log_id=MARKER.log_id, head=7, stop=stop)
    assert RestoreMarker.decode(marker.encode()) == marker


def test_any_flipped_bit_or_cut_is_noticed() -> None:
    data = MARKER.encode()
    for position in range(len(data)):
        spoiled = bytearray(data)
        spoiled[position] ^= 1
        assert RestoreMarker.decode(bytes(spoiled)) is None, position
        assert RestoreMarker.decode(data[:position]) is None, position


def test_another_version_is_not_gone_on_with() -> None:
    line = MARKER.encode().partition(b"\n")[0]
    line = json.dumps(json.loads(line) | {"version": 2}).encode()
    assert RestoreMarker.decode(line + b"\n%08x\n" % crc32c(line)) is None


@pytest.mark.parametrize(
    "line",
    [
        *(b"[]", b"{}", b"[" * 100_000, b"7", b'{"version":1}', b'{"version":[]}'),
        json.dumps({**json.loads(MARKER.encode().partition(b"\n")[0]), "head": -1}).encode(),
        json.dumps({**json.loads(MARKER.encode().partition(b"\n")[0]), "url": 7}).encode(),
    ],
)
def test_what_is_no_marker_though_its_checksum_fits_is_not_gone_on_with(line: bytes) -> None:
    assert RestoreMarker.decode(line + b"\n%08x\n" % crc32c(line)) is None
