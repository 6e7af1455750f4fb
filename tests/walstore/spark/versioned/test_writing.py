"""Writers of collections without Spark: staged, committed, killed in between, run again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from uploader import Collection
from uploader.versioned.staging import StagingArea
from walstore import (
    CollectionNotFoundError,
    CorruptionError,
    InvalidSettingsError,
    LimitExceededError,
    UpperMismatchError,
    WalError,
)
from walstore.spark.sink.writers import JobWriter, MicroBatchWriter, StagedMessage
from walstore.spark.versioned import writing
from walstore.spark.versioned.source import CollectionSource

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
QUERY = "5d1c8f5e-0000-0000-0000-000000000001"
TYPES = {
    "long": LongType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "decimal(20,0)": DecimalType(20, 0),
    "array<string>": ArrayType(StringType()),
}
Rows = Sequence[tuple[int, str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return made(tmp_path, "upsert")


def made(tmp_path: Path, kind: Any) -> str:
    url = f"file://{tmp_path}/people"

    async def create() -> None:
        async with Collection.open(url, create=True, schema=COLUMNS, key=("id",), kind=kind):
            pass

    asyncio.run(create())
    return url


def source(url: str, **options: Any) -> CollectionSource:
    return CollectionSource({"path": url, **{name: str(value) for name, value in options.items()}})


def schema_of(text: str = "id long, name string") -> StructType:
    """Return columns of DDL, which Spark itself reads only in a session."""
    fields = (column.split(" ") for column in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


class Attempt:
    """One attempt of a micro-batch: rows of each task."""

    def __init__(
        self, url: str, batch: int, *tasks: Rows, query: str = QUERY, **options: Any
    ) -> None:
        found = source(url, **options).streamWriter(schema_of(), overwrite=False)
        assert isinstance(found, MicroBatchWriter)
        self.writer = found
        self.batch = batch
        self.messages = [
            found.stage(iter(batches_of(rows)), stream=query, epoch=str(batch), task=task)
            for task, rows in enumerate(tasks)
        ]

    def commit(self) -> None:
        # Another process commits, and the tasks' messages come in any order.
        self.writer.commit(self.messages[::-1], self.batch)


def batches_of(rows: Rows) -> list[pa.RecordBatch]:
    return [pa.record_batch({"a": [one for one, _ in rows], "b": [name for _, name in rows]})]


def content(url: str, as_of: int | None = None) -> list[tuple[Any, ...]]:
    async def read() -> list[tuple[Any, ...]]:
        async with Collection.open(url) as collection, await collection.reader() as reader:
            table = await reader.snapshot(as_of=as_of)
            return [tuple(row.values()) for row in table.to_pylist()]

    return asyncio.run(read())


def staged(url: str) -> list[str]:
    root = Path(url.removeprefix("file://"))
    return sorted(path.name for path in (root / "staging").rglob("*") if path.is_file())


def test_a_micro_batch_for_each_time(url: str) -> None:
    Attempt(url, 0, [(1, "Ada")], [(2, "Bob")]).commit()
    Attempt(url, 1, [(2, "Bea")], [(2, "Bo")]).commit()
    Attempt(url, 2).commit()
    assert content(url, 0) == [(1, "Ada"), (2, "Bob")]
    assert content(url, 2) == [(1, "Ada"), (2, "Bo")], "of two tasks the later one counts"


def test_what_is_staged_goes(url: str) -> None:
    Attempt(url, 0, [(1, "Ada")])  # killed before it was committed
    Attempt(url, 0, [(1, "Ada")]).commit()
    assert staged(url) == ["done", "intent"]
    Attempt(url, 1, [(1, "Bea")]).commit()
    assert staged(url) == ["done", "intent"]


@pytest.mark.parametrize("step", ["intend", "append", "finish", "remove"])
def test_killed_between_two_steps(url: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt has other rows, as of a query that is not deterministic; one of them is there once."""
    Attempt(url, 0, [(0, "Zoe")]).commit()
    with monkeypatch.context() as patch:
        kill_after(step, patch)
        with pytest.raises(Killed):
            Attempt(url, 1, [(1, "Ada")], [(2, "Bob")]).commit()
    Attempt(url, 1, [(1, "Eve")]).commit()
    Attempt(url, 2, [(3, "Cy")]).commit()
    assert content(url) == [(0, "Zoe"), (1, "Ada"), (2, "Bob"), (3, "Cy")]
    assert staged(url) == ["done", "intent"]


class Killed(BaseException):
    """The process ends here."""


def kill_after(step: str, patch: pytest.MonkeyPatch) -> None:
    owner, name = {
        "intend": (StagingArea, "intend"),
        "append": (writing.CollectionWriter, "append"),
        "finish": (StagingArea, "_remove"),
        "remove": (StagingArea, "finish"),
    }[step]
    real = getattr(owner, name)

    async def killed(*arguments: Any, **named: Any) -> None:
        if step != "finish":
            await real(*arguments, **named)
        raise Killed

    patch.setattr(owner, name, killed)


def test_the_first_to_commit_decides(url: str) -> None:
    """Two drivers run the same micro-batch: one is thought dead and is not."""
    first, second = Attempt(url, 0, [(1, "Ada")]), Attempt(url, 0, [(1, "Eve")])
    second.commit()
    first.commit()
    assert content(url) == [(1, "Eve")]


def test_a_driver_that_wakes_up_later(url: str) -> None:
    late = Attempt(url, 0, [(1, "Ada")])
    Attempt(url, 0, [(1, "Eve")]).commit()
    Attempt(url, 1, [(2, "Bob")]).commit()
    with pytest.raises(WalError):
        late.commit()
    assert content(url) == [(1, "Eve"), (2, "Bob")]


def test_aborting_leaves_what_may_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        kill_after("intend", patch)
        attempt = Attempt(url, 0, [(1, "Ada")])
        with pytest.raises(Killed):
            attempt.commit()
    attempt.writer.abort(attempt.messages, 0)
    Attempt(url, 0, [(1, "Eve")]).commit()
    assert content(url) == [(1, "Ada")]


@pytest.mark.slow
def test_a_lost_checkpoint_is_an_error(url: str) -> None:
    for batch in range(3):
        Attempt(url, batch, [(batch, "Ada")]).commit()
    again = Attempt(url, 0, [(7, "Eve")], query="another")
    with pytest.raises(UpperMismatchError, match=r"ends at 3.*with start=3"):
        again.commit()
    assert [key for key, _ in content(url)] == [0, 1, 2]
    Attempt(url, 0, [(7, "Eve")], query="another", start=3).commit()
    assert content(url)[-1] == (7, "Eve")
    with pytest.raises(UpperMismatchError, match="lacks earlier micro-batches"):
        Attempt(url, 9, [(8, "Eve")], query="third").commit()


def test_the_same_from_the_beginning_with_another_checkpoint_changes_nothing(url: str) -> None:
    for _ in range(2):
        for batch in range(2):
            Attempt(url, batch, [(batch, "Ada")], query=f"query-{_}").commit()
    assert content(url) == [(0, "Ada"), (1, "Ada")]


def test_staged_rows_that_another_program_removed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_after("intend", patch)
        with pytest.raises(Killed):
            Attempt(url, 0, [(1, "Ada")]).commit()
    for path in Path(url.removeprefix("file://")).rglob("staging/**/*.parquet"):
        path.unlink()
    with pytest.raises(CorruptionError, match="whether they were appended is not known"):
        Attempt(url, 0, [(1, "Eve")]).commit()
    assert staged(url)


def test_a_batch_that_is_too_large(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_ROWS", 3)
    with pytest.raises(LimitExceededError, match=r"has 4 rows .* takes 3 rows"):
        Attempt(url, 0, [(1, "Ada"), (2, "Bob")], [(3, "Cy"), (4, "Di")]).commit()
    Attempt(url, 0, [(1, "Ada"), (2, "Bob")], [(3, "Cy")]).commit()


def test_a_task_stages_in_parts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 1)
    found = source(url).streamWriter(schema_of(), overwrite=False)
    assert isinstance(found, MicroBatchWriter)
    rows = [*batches_of([(1, "a"), (2, "a")]), *batches_of([(1, "b")]), *batches_of([])]
    message = found.stage(iter(rows), stream=QUERY, epoch="0", task=0)
    assert isinstance(message, StagedMessage)
    assert [file.rows for file in message.staged] == [2, 1]
    found.commit([message], 0)
    assert content(url) == [(1, "b"), (2, "a")]


def test_tasks_that_do_not_belong_together(url: str) -> None:
    one, other = Attempt(url, 0, [(1, "Ada")]), Attempt(url, 1, [(1, "Ada")])
    with pytest.raises(WalError, match="of 2 writes"):
        one.writer.commit([*one.messages, *other.messages], 0)
    with pytest.raises(WalError, match="staged micro-batch 1, not 0"):
        other.writer.commit(other.messages, 0)
    with pytest.raises(WalError, match="did not report"):
        one.writer.commit([*one.messages, None], 0)


def run_job(writer: JobWriter, *tasks: Rows) -> None:
    messages: list[WriterCommitMessage | None] = [
        writer.write(iter(batches_of(rows))) for rows in tasks
    ]
    writer.commit(messages)


def job(url: str, **options: Any) -> JobWriter:
    found = source(url, **options).writer(schema_of(), overwrite=False)
    assert isinstance(found, JobWriter)
    return found


@pytest.mark.slow
def test_jobs(tmp_path: Path) -> None:
    url = made(tmp_path, "diff")
    run_job(job(url), [(1, "Ada")], [(1, "Ada")])
    run_job(job(url))
    for _ in range(2):  # at 1: a job without rows takes no time
        run_job(job(url, lower=1, upper=9), [(2, "Bob")])
    with pytest.raises(UpperMismatchError, match="ends at 9, not at 1"):
        run_job(job(url, lower=1, upper=9), [(2, "Bea")])
    run_job(job(url, lower=9, upper=10))
    run_job(job(url, lower=10, upper=11), [(2, "Bob")])
    assert content(url) == [(1, "Ada", 2), (2, "Bob", 2)]


def test_rows_that_nobody_would_see(url: str) -> None:
    """A second shard is a copy of the first."""
    Attempt(url, 0, [(1, "Ada")]).commit()
    with pytest.raises(InvalidSettingsError, match="another shard has these times"):
        run_job(job(url, writer="other"), [(3, "Cy")])
    with pytest.raises(InvalidSettingsError, match="would not be seen"):
        run_job(job(url, writer="other", lower=0, upper=1), [(3, "Cy")])
    with pytest.raises(InvalidSettingsError, match="would not be seen"):
        Attempt(url, 0, [(1, "Bob")], query="another", writer="other").commit()
    assert content(url) == [(1, "Ada")]


def test_a_job_that_is_aborted_leaves_nothing(url: str) -> None:
    writer = job(url)
    message = writer.write(iter(batches_of([(1, "Ada")])))
    assert len(staged(url)) == 1
    writer.abort([message, None])
    assert staged(url) == []
    with pytest.raises(WalError, match="did not report"):
        writer.commit([None])


def test_what_jobs_left_a_week_ago_is_removed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job(url).write(iter(batches_of([(1, "Ada")])))
    Attempt(url, 0, [(1, "Ada")])
    run_job(job(url), [(2, "Bob")])
    assert len(staged(url)) == 2
    monkeypatch.setattr("uploader.versioned.staging.WEEK_US", -1_000_000_000)
    run_job(job(url), [(2, "Bob")])
    assert len(staged(url)) == 1, "that of the stream, which may count"


def test_deleting_a_collection_removes_what_is_staged(url: str) -> None:
    Attempt(url, 0, [(1, "Ada")])

    async def delete() -> None:
        async with Collection.open(url) as collection:
            await collection.delete()

    asyncio.run(delete())
    assert staged(url) == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id long, age long", {}, "has no column 'age'"),
        ("name string", {}, "no column 'id', which is part of the key"),
        ("id string, name string", {}, "'id' must be int64, not string"),
        ("id long, name array<string>", {}, "no column of type array<string>"),
        ("id long, name string, _t long", {}, "needs lower and upper"),
        ("id long, name string, _d long", {}, "has no column '_d'"),
        ("id long, name string", {"lower": 1}, "give lower and upper, or neither"),
        ("id long, name string", {"lower": 1, "upper": 1}, "lower must be before upper"),
        ("id long, name string", {"lower": 1, "upper": 2**64}, "at most"),
        ("id long, name string", {"writer": "a/b"}, "writer must be"),
        ("id long, name string", {"start": 1}, "unknown option start"),
    ],
)
def test_what_cannot_be_written(
    url: str, columns: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSettingsError, match=message):
        source(url, **options).writer(schema_of(columns), overwrite=False)


def test_nothing_is_overwritten(url: str, tmp_path: Path) -> None:
    for write in (source(url).writer, source(url).streamWriter):
        with pytest.raises(InvalidSettingsError, match="only be appended to"):
            write(schema_of(), overwrite=True)
    with pytest.raises(CollectionNotFoundError):
        source(f"file://{tmp_path}/nowhere").writer(schema_of(), overwrite=False)


def test_times_of_a_job(url: str) -> None:
    writer = source(url, lower=5, upper=9).writer(
        schema_of("id long, _t decimal(20,0), _deleted boolean"), overwrite=False
    )
    assert isinstance(writer, JobWriter)
    batch = pa.record_batch(
        {"a": [1, 1], "b": pa.array([5, 8], pa.decimal128(20, 0)), "c": [False, True]}
    )
    asyncio.run(fill_to(url, 5))
    writer.commit([writer.write(iter([batch]))])
    assert content(url, 7) == [(1, None)]
    assert content(url, 8) == []


async def fill_to(url: str, upper: int) -> None:
    async with Collection.open(url) as collection:
        await collection.writer().append(None, lower=0, upper=upper)
