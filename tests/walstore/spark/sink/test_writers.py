"""The writers as Spark's processes use them, without a session."""

from __future__ import annotations

import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.walstore.spark.sink.writing import (
    batch,
    copied,
    left_over,
    records,
    schema_of,
    source,
    stream_writer,
    values,
    write_epoch,
    write_job,
)
from walstore.errors import InvalidSettingsError, WalError

ROWS = "key string, value string"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store" / "orders"


@pytest.fixture
def url(directory: Path) -> str:
    return f"file://{directory}"


@pytest.mark.slow
def test_a_key_goes_to_the_log_that_spark_would_say(url, directory):
    rows = [(f"k{at}", f"v{at}") for at in range(50)]
    write_job(url, ROWS, rows[:20], rows[20:], partitions=3)
    for partition in range(3):
        wanted = [v for k, v in rows if zlib.crc32(k.encode()) % 3 == partition]
        assert values(url, partition) == [value.encode() for value in wanted]
    assert left_over(directory) == []


NOTEBOOK = """
import asyncio, sys
from walstore.spark import finish_commits
async def cell():
    print(finish_commits(sys.argv[1]))
asyncio.run(cell())
"""


@pytest.mark.slow
def test_committing_where_an_event_loop_runs(url):
    write_job(url, "value string", [("a",)])
    command = [sys.executable, "-W", "error", "-c", NOTEBOOK, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "0\n", done.stderr


def test_rows_without_a_key_go_with_their_task(url):
    write_job(url, ROWS, [(None, "a")], [(None, "b")], [(None, "c")], partitions=2)
    found = sorted(values(url, 0) + values(url, 1))
    assert found == [b"a", b"b", b"c"]  # outside a task each is number 0


def test_a_column_says_the_log(url):
    write_job(url, "partition int, value binary", [(1, b"a"), (0, b"b"), (1, b"c")], partitions=2)
    assert (values(url, 0), values(url, 1)) == ([b"b"], [b"a", b"c"])


@pytest.mark.parametrize(("partition", "shown"), [(2, "2"), (-1, "-1"), (None, "null")])
def test_a_partition_that_is_not_there(url, directory, partition, shown):
    with pytest.raises(WalError, match=f"from 0 to 1, .*a row has {shown}"):
        write_job(url, "partition int, value binary", [(0, b"a"), (partition, b"b")], partitions=2)
    assert left_over(directory) == []


def test_all_columns_come_back(url):
    at = datetime(2024, 5, 1, 12, 30, 0, 17, tzinfo=UTC)
    ddl = "value string, key binary, stream string, timestamp timestamp, headers headers"
    rows = [
        ("x", b"k", "eu", at, [("a", b"1"), ("b", b"")]),
        ("y", None, None, at + timedelta(seconds=1), None),
        ("z", b"", "us", None, []),
    ]
    write_job(url, ddl, rows)
    first, second, third = records(url)
    assert (first.key, first.stream, dict(first.headers)) == (b"k", "eu", {"a": b"1", "b": b""})
    assert first.timestamp == at
    assert (second.key, second.stream, dict(second.headers)) == (None, None, {})
    assert second.timestamp == at + timedelta(seconds=1)
    assert third.key == b""
    assert third.timestamp > second.timestamp  # now


@pytest.mark.parametrize(
    ("ddl", "row", "message"),
    [
        ("value string", (None,), "a row has no value"),
        (
            "value string, timestamp timestamp",
            ("x", datetime(1969, 1, 1, tzinfo=UTC)),
            "before 1970",
        ),
        (
            "value string, timestamp timestamp",
            ("x", datetime(2999, 1, 1, tzinfo=UTC)),
            "ahead of the clock",
        ),
        (
            "value string, headers headers",
            ("x", [("a", b"1"), ("a", b"2")]),
            "have each name once",
        ),
        (
            "value string, headers headers",
            ("x", [("a", None)]),
            "no key or no value",
        ),
        ("value binary", (bytes((16 << 20) + 1),), "exceeds max_record_bytes"),
    ],
)
def test_a_row_that_cannot_be_a_record(url, directory, ddl, row, message):
    with pytest.raises((WalError, ValueError), match=message):
        write_job(url, ddl, [row])
    assert left_over(directory) == []


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("value string, offset long", {}, "a log has no column 'offset'"),
        ("value int", {}, "the column value must be binary or string, not int"),
        ("key string", {}, "rows need a column value"),
        ("value string, key string, KEY string", {}, "no column 'KEY'"),
        ("value string, headers map", {}, "the column headers must be array"),
        ("value string", {"partitionBy": "key"}, "partitionBy=key needs a column key"),
        ("value string", {"partitionBy": "column"}, "needs a column partition"),
        ("value string", {"partitionBy": "hash"}, "partitionBy must be key or column or task"),
        ("value string", {"partitions": 0}, "partitions must be a whole number from 1"),
        ("value string", {"partitions": 5000}, "partitions must be 1 to 1024"),
        ("value string", {"queryId": "a/b"}, "the name of a query"),
        ("value string", {"epoch": 1}, "epoch counts the writes of a queryId"),
        ("value string", {"layout": "tree"}, "layout must be"),
        ("value string", {"fragmentBytes": 10}, "fragmentBytes must be a whole number from 1024"),
        ("value string", {"startingOffsets": "earliest"}, "unknown option"),
    ],
)
def test_what_cannot_be_written_is_told_at_once(url, directory, ddl, options, message):
    with pytest.raises(InvalidSettingsError, match=message):
        source(url, **options).writer(schema_of(ddl), overwrite=False)
    assert not directory.exists()


def test_only_appending_to_a_store(url, tmp_path):
    schema = schema_of("value string")
    for make in (source(url).writer, source(url).streamWriter):
        with pytest.raises(InvalidSettingsError, match="can only be appended to"):
            make(schema, overwrite=True)
    with pytest.raises(InvalidSettingsError, match="an object store"):
        source(str(tmp_path)).writer(schema, overwrite=False)


def test_the_number_of_logs_must_agree(url):
    write_job(url, "value string", [("a",)], partitions=2)
    write_job(url, "value string", [("b",)])
    assert values(url) == [b"a", b"b"]
    with pytest.raises(InvalidSettingsError, match="has 2 partitions, not 3"):
        write_job(url, "value string", [("c",)], partitions=3)


def test_a_first_write_that_fails_does_not_fix_the_number_of_logs(url):
    write_job(url, "value string", [("a",)], partitions=2, commits=False)
    with pytest.raises(WalError, match="from 0 to 3"):
        write_job(url, "partition int, value binary", [(7, b"a")], partitions=4)
    write_job(url, "partition int, value binary", [(2, b"a")], partitions=3)
    assert values(url, 2) == [b"a"]


def test_of_two_first_writes_the_second_to_commit_is_refused(url, directory):
    schema = schema_of("value string")
    writers = [
        copied(source(url, partitions=partitions).writer(schema, overwrite=False))
        for partitions in (2, 3)
    ]
    messages = [writer.write(iter([batch(schema, [("a",)])])) for writer in writers]
    writers[0].commit([messages[0]])
    with pytest.raises(InvalidSettingsError, match="has 2 partitions, not 3"):
        writers[1].commit([messages[1]])
    writers[1].abort([messages[1]])
    assert values(url) == [b"a"]
    assert [path for path in left_over(directory) if "staging" in path] == []


def test_a_log_that_is_not_partitioned_is_not_made_one(url):
    write_job(url, "value string", [("a",)])
    with pytest.raises(InvalidSettingsError, match="not partitioned is at"):
        write_job(f"{url}/0", "value string", [("a",)])


@pytest.mark.slow
def test_a_job_with_a_name_appends_once(url, directory):
    for _ in range(2):
        write_job(url, "value string", [("a",)], [("b",)], queryId="day-1")
    assert values(url) == [b"a", b"b"]
    write_job(url, "value string", [("c",)], queryId="day-1", epoch=1)
    write_job(url, "value string", [("d",)], queryId="day-1", epoch=0)
    write_job(url, "value string", [("d",)], queryId="day-2")
    assert values(url) == [b"a", b"b", b"c", b"d"]
    assert left_over(directory) == []


def test_a_job_that_fails_leaves_nothing(url, directory):
    messages = write_job(url, "value string", [("a",)], commits=False)
    assert messages
    assert values(url) == []
    assert [path for path in left_over(directory) if "staging" in path] == []


def test_only_the_attempts_that_spark_counts_are_written(url, directory):
    """A task ran twice, side by side: speculation, or a retry of one that was thought dead."""
    schema = schema_of("value string")
    writer = copied(source(url).writer(schema, overwrite=False))
    attempts = [copied(writer).write(iter([batch(schema, [("a",)])])) for _ in range(3)]
    copied(writer).commit([copied(attempts[1])])
    assert values(url) == [b"a"]
    assert left_over(directory) == []


@pytest.mark.slow
def test_a_stream_writes_each_micro_batch_once(url, directory):
    write_epoch(url, ROWS, 0, [("k", "a")], [("k", "b")])
    write_epoch(url, ROWS, 0, [("k", "a")], [("k", "b")])
    write_epoch(url, ROWS, 1, [])
    write_epoch(url, ROWS, 2, [("k", "x")], commits=False)
    write_epoch(url, ROWS, 2, [("k", "c")])
    assert values(url) == [b"a", b"b", b"c"]
    assert left_over(directory) == []


def test_two_streams_into_one_log(url):
    write_epoch(url, ROWS, 0, [("k", "a")], stream="one")
    write_epoch(url, ROWS, 0, [("k", "b")], stream="two")
    assert values(url) == [b"a", b"b"]
    write_epoch(url, ROWS, 0, [("k", "c")], stream="one", queryId="q")
    with pytest.raises(InvalidSettingsError, match="belongs to another stream"):
        write_epoch(url, ROWS, 1, [("k", "d")], stream="two", queryId="q")
    with pytest.raises(InvalidSettingsError, match="belongs to another stream"):
        write_job(url, ROWS, [("k", "d")], queryId="q", epoch=1)


def test_messages_that_cannot_be(url):
    writer = stream_writer(url, ROWS)
    with pytest.raises(WalError, match="did not report"):
        writer.commit([None], 0)
    writer.abort([None], 0)
    with pytest.raises(WalError, match="does not pass its tasks"):
        writer.stage(iter(()), stream=None, epoch=None, task=0)
    message = writer.stage(iter(()), stream="s", epoch="3", task=0)
    with pytest.raises(WalError, match="micro-batch 3, not 4"):
        writer.commit([message], 4)
    batch_writer = source(url).writer(schema_of(ROWS), overwrite=False)
    with pytest.raises(WalError, match="did not report"):
        batch_writer.commit([None])
