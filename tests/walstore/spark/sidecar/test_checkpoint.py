"""What a checkpoint says has landed, and tables that do not belong to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from walstore.errors import FormatVersionError, InvalidSettingsError
from walstore.spark.sidecar.checkpoint import (
    LandedBatch,
    QueryCheckpoint,
    check_parquet_table,
    parse_offset_log,
    sync_file_systems,
)


class LocalFolder:
    """A directory read without Spark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, folder: str = "") -> list[str]:
        path = self.path / folder
        return sorted(found.name for found in path.iterdir()) if path.is_dir() else []

    def read(self, name: str) -> str:
        return (self.path / name).read_text()


def offset_log(**offsets: int) -> str:
    value = {topic: {"0": offset} for topic, offset in offsets.items()}
    return f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(value)}'


class Place:
    """A table and its checkpoint, as Spark would leave them."""

    def __init__(self, path: Path) -> None:
        self.table = path / "table"
        self.folder = self.table / "_checkpoint"
        self.table.mkdir()

    @property
    def checkpoint(self) -> QueryCheckpoint:
        return QueryCheckpoint(LocalFolder(self.folder))

    def begin(self) -> None:
        (self.folder / "offsets").mkdir(parents=True)
        (self.folder / "commits").mkdir()
        (self.folder / "metadata").write_text('{"id":"x"}')

    def plan(self, batch: int, **offsets: int) -> None:
        (self.folder / "offsets" / str(batch)).write_text(offset_log(**offsets))

    def commit(self, batch: int) -> None:
        (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def write(self, name: str) -> None:
        (self.table / "_spark_metadata").mkdir(exist_ok=True)
        (self.table / "_spark_metadata" / name).write_text("v1")

    def check(self) -> None:
        check_parquet_table(LocalFolder(self.table), "the table", self.checkpoint)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_yet(place: Place):
    assert not place.checkpoint.is_begun()
    assert place.checkpoint.commit() is None
    place.check()


def test_a_batch_counts_once_it_is_committed(place: Place):
    place.begin()
    place.plan(0, orders=101)
    assert place.checkpoint.is_begun()
    assert place.checkpoint.commit() is None
    place.commit(0)
    place.plan(1, orders=201)
    assert place.checkpoint.commit() == LandedBatch(0, {("orders", 0): 101})


def test_batches_are_compared_as_numbers(place: Place):
    place.begin()
    for batch in (9, 10):
        place.plan(batch, orders=batch * 100)
        place.commit(batch)
    (place.folder / "commits" / ".11.0f.tmp").write_text("half")
    assert place.checkpoint.commit() == LandedBatch(10, {("orders", 0): 1000})


def test_the_checkpoint_of_other_logs(place: Place):
    commit = LandedBatch(0, {("orders", 0): 5, ("orders", 1): 7})
    place.checkpoint.check_logs(commit, [("orders", 1), ("new", 0)])
    with pytest.raises(InvalidSettingsError, match="belongs to orders, orders/1"):
        place.checkpoint.check_logs(commit, [("payments", 0)])


def test_checkpoints_of_others():
    with pytest.raises(FormatVersionError, match="offset log"):
        parse_offset_log("v2\n{}\n{}")
    with pytest.raises(InvalidSettingsError, match="a query with 2 sources"):
        parse_offset_log("v1\n{}\n5\n6")
    for strange in ("-", '{"logOffset":4}', "17"):
        with pytest.raises(InvalidSettingsError, match="not of this source"):
            parse_offset_log(f"v1\n{{}}\n{strange}")


@pytest.mark.parametrize(("name", "batches"), [("0", 1), ("4", 5), ("4.compact", 5)])
def test_a_table_without_its_checkpoint_would_leave_batches_out(place: Place, name, batches):
    place.write(name)
    with pytest.raises(InvalidSettingsError, match=f"has {batches} batches and the ch.* of 0"):
        place.check()


def test_a_batch_that_is_in_the_table_and_not_committed_is_as_it_should_be(place: Place):
    """Killed between the two; Spark commits it."""
    place.begin()
    place.plan(0, orders=101)
    place.write("0")
    place.check()
    place.commit(0)
    place.write("1")
    place.check()


def test_a_checkpoint_without_its_table_would_leave_batches_out(place: Place):
    place.begin()
    place.plan(0, orders=101)
    place.commit(0)
    with pytest.raises(InvalidSettingsError, match="landed 1 batches and the table at the table"):
        place.check()


def test_files_that_no_sidecar_wrote(place: Place):
    (place.table / "part-0.parquet").write_text("")
    with pytest.raises(InvalidSettingsError, match=r"no sidecar wrote \(part-0.parquet\)"):
        place.check()
    place.begin()  # then it was killed in its first batch
    place.check()


def test_directories_that_are_there_and_such_that_will_be(tmp_path: Path):
    sync_file_systems([str(tmp_path), str(tmp_path / "not" / "yet")])
    sync_file_systems([])
