"""Logs that Rust wrote, with the crates and by the rules of wal3: read, checked, collected and continued."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.cases import case
from uploader import (
    CloudLog,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
    Scrubber,
    ScrubReport,
    Severity,
)
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Snapshot
from uploader.format.garbage import Garbage
from uploader.format.manifest import Manifest
from walstore import Record

DIRECTORY: Final = Path(__file__).parent / "wal3_rust"
TIME_US: Final = 1_234_567_890_123_456
AT_ONCE: Final = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)
DOCUMENTS: Final = sorted(
    path.relative_to(DIRECTORY).as_posix()
    for path in DIRECTORY.glob("*/*/*")
    if path.is_file() and path.parent.name != "log"
)


def bodies(index: int) -> list[bytes]:
    """Return the records of a fragment, by its place in the log; see the README."""
    kinds = [
        [bytes.fromhex("2a2b2c2d")],
        [b"record of %d" % index, b"", bytes(range(256))],
        [b"again"] * 5,
        [b"", b"\xff" * 300],
    ]
    return kinds[index % 4]


def records(fragments: int) -> list[Record]:
    """Return the records of the first so many fragments."""
    values = [(index, body) for index in range(fragments) for body in bodies(index)]
    return [
        Record(offset, body, timestamp_us=TIME_US + index)
        for offset, (index, body) in enumerate(values, 1)
    ]


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """The logs where they may be written."""
    return Path(shutil.copytree(DIRECTORY, tmp_path / "logs"))


def url(copies: Path, name: str) -> str:
    return (copies / name).as_uri()


async def found_in(copies: Path, name: str) -> list[Record]:
    """Return all records of a log, each hashed."""
    async with CloudLog.open(url(copies, name)) as log:
        return [record async for record in log.reader(verify=True)]


async def scrub(copies: Path, name: str) -> ScrubReport:
    async with Scrubber.open(url(copies, name)) as scrubber:
        return await scrubber.scrub()


def test_the_files_are_there() -> None:
    folders = [path.split("/", 2)[1] for path in DOCUMENTS]
    counts = {folder: folders.count(folder) for folder in folders}
    assert counts == {"cursor": 3, "gc": 1, "manifest": 2, "snapshot": 15}
    fragments = list(DIRECTORY.glob("*/log/*/*.parquet"))
    assert len(fragments) == 12 + 11
    assert {path.stat().st_size for path in fragments if path.stem.endswith("5")} == {1092}


def test_documents_are_written_again_byte_for_byte() -> None:
    for name in DOCUMENTS:
        with case(name):
            data, (_, folder, file) = (DIRECTORY / name).read_bytes(), name.split("/")
            match folder:
                case "manifest":
                    manifest = Manifest.parse(data)
                    manifest.scrub()
                    again = manifest.serialise()
                case "snapshot":
                    snapshot = Snapshot.parse(data, path=name)
                    snapshot.scrub(expected=snapshot.pointer())
                    assert snapshot.path == f"snapshot/{file}"
                    again = snapshot.serialise()
                case "cursor":
                    again = CloudCursor.parse(data, name=file.removesuffix(".json")).serialise()
                case _:
                    again = Garbage.parse(data).serialise()
            assert again == data


async def test_the_whole_log_is_read(copies: Path) -> None:
    assert await found_in(copies, "whole") == records(11)


async def test_what_collection_left_is_read(copies: Path) -> None:
    assert await found_in(copies, "collected") == records(12)[1:]


async def test_nothing_is_wrong_with_the_whole_log(copies: Path) -> None:
    """But for the fragment that no manifest names."""
    report = await scrub(copies, "whole")
    assert (report.is_sound, report.is_complete, report.fragments) == (True, True, 11)
    assert [Path(found.key).stem[-2:] for found in report.findings] == ["0c"]


async def test_nothing_is_wrong_with_the_collected_log(copies: Path) -> None:
    """But for the collection that was announced."""
    report = await scrub(copies, "collected")
    assert (report.is_sound, report.is_complete, report.fragments) == (True, True, 11)
    assert [(found.severity, found.key) for found in report.findings] == [
        (Severity.NOTE, "gc/GARBAGE")
    ]


async def test_a_writer_publishes_what_rust_left_and_goes_on_behind_it(copies: Path) -> None:
    async with CloudWriter.open(url(copies, "whole")) as writer:
        assert writer.statistics().adopted_fragments == 1
        assert await writer.append(b"ours", timestamp_us=TIME_US + 99) == 34
    expected = [*records(12), Record(34, b"ours", timestamp_us=TIME_US + 99)]
    assert await found_in(copies, "whole") == expected
    report = await scrub(copies, "whole")
    assert (report.findings, report.fragments) == ((), 13)


async def test_a_collector_finishes_what_rust_announced_then_goes_on(copies: Path) -> None:
    """It was announced up to offset 12, where a snapshot ends; the cursor has allowed more since."""
    async with GarbageCollector.open(url(copies, "collected"), settings=AT_ONCE) as collector:
        assert (await collector.collect()).head == 12
        assert await found_in(copies, "collected") == records(12)[11:]
        assert (await collector.collect()).head == 16
    assert await found_in(copies, "collected") == records(12)[15:]
    report = await scrub(copies, "collected")
    assert (report.findings, report.is_complete) == ((), True)
    assert Garbage.parse((copies / "collected" / "gc" / "GARBAGE").read_bytes()).is_empty
    assert len(list(copies.glob("collected/log/*/*.parquet"))) == 6
