"""The programs of the documentation pass strict type checkers as they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, snippets

CLEAN = """
from datetime import UTC, datetime
from typing import TypedDict, assert_type

import walstore.sync
from uploader import CloudLog
from walstore import Batch, Durability, Job, Log, ReadableLog, Record, Settings, Transaction, Wal
from walstore import connect, connect_readonly
from walstore.kits.typed import Schema, TypedLog, TypedRecord, TypedView


async def main() -> None:
    async with Wal.open("data") as wal:
        assert_type(wal, Wal)
        async with wal.consumer("billing", auto_commit_seconds=None) as consumer:
            async for record in consumer:
                assert_type(record, Record)
            assert_type(await consumer.fetch(), Batch)
            await consumer.commit()
        async with wal.consumer("copy", output=wal) as copying:
            async with copying.transaction(durability="disk") as transaction:
                assert_type(transaction, Transaction)
        async for batch in wal.reader("earliest", follow=False).batches():
            assert_type([record.value for record in batch], list[bytes])
    settings = Settings(durability="memory", sync=0.5)
    assert_type(settings.durability, Durability)
    wal = await Wal.open("data", settings=settings)
    assert_type(await wal.append(b"", durability="cloud"), int)
    await wal.wait_durable(1, Durability.DISK)
    async with Wal.open_readonly("data") as readonly, connect("a:1") as remote:
        async with connect_readonly("a:1") as copied, CloudLog.open("file:///store") as stored:
            for readable in (wal, readonly, remote, copied, stored):
                await newest(readable)
            for log in (wal, remote):
                await copy(log, stored)


async def newest(log: ReadableLog) -> int:
    await log.refresh()
    return await log.timestamp_at(log.limit - 1)


async def copy(log: Log, source: ReadableLog) -> None:
    async for record in source.reader(follow=False):
        async with log.transaction() as transaction:
            await transaction.append(record.value)
    assert_type(await log.append(b"", durability="disk"), int)
    assert_type(await log.producer("p").append(b"", key=b"k", sequence=1), int)
    assert_type(await log.producer("p").last_sequence(), int)
    await newest(log)


class Order(TypedDict):
    item: str


async def typed(wal: Wal, stored: CloudLog, job: Job) -> None:
    schema = Schema(Order, version=2, upgrade=lambda record, version: Order(item=str(version)))
    log = TypedLog(wal, schema)
    assert_type(log, TypedLog[Order])
    assert_type(await log.append({"item": "tea"}, key=b"k", durability="disk"), int)
    assert_type(await log.append_many([Order(item="cup")], expect_offset=1, stream="s"), range)
    async for record in log.follow("latest"):
        assert_type(record, TypedRecord[Order])
        assert_type(record.value["item"], str)
    async for found in TypedView(stored, schema, on_error="skip").reader(stop=5):
        assert_type(found.value, Order)
    assert_type(schema.decode(job), Order)


def blocking() -> None:
    with walstore.sync.open("data", settings=Settings()) as log:
        assert_type(log.append(b"", b"key", timestamp_us=datetime.now(UTC)), int)
        assert_type(log.append_many([b""], expect_offset=1, stream="s"), range)
        with log.transaction(durability="disk") as transaction:
            assert_type(transaction.append(b"", b"key"), int)
        with log.group("g", ordered=True) as group:
            assert_type([job.value for job in group.fetch(1, max_wait_seconds=1.0)], list[bytes])
        with log.reader(stop=2, follow=False) as reader:
            assert_type(reader.fetch(max_records=1), Batch)
"""
WRONG = {
    "readable": 'ReadableLog.append(wal, b"")',
    "typed": 'TypedLog(wal, Schema(int)).append("text")',
    "typed_many": 'TypedLog(wal, Schema(int)).append_many([b""])',
    "typed_view": "TypedView(wal, Schema(int)).append(1)",
    "setting": 'Settings(durability="disc")',
    "append": 'Wal.append(wal, b"", durability="disc")',
    "wait": 'wal.wait_durable(1, "disc")',
    "many": 'wal.append_many([b""], durability="disc")',
    "option": 'wal.append_many([b""], kee=b"")',
    "transaction": 'wal.transaction(durability="disc")',
    "producer": 'wal.producer("p").append(b"", durability="disc")',
    "size": 'Settings(segment_bytes="1 MiB")',
    "opening": 'Wal.open("data").append(b"")',
    "blocking": 'walstore.sync.open("data").append("text")',
    "blocking_many": 'walstore.sync.open("data").append_many([b""], kee=b"")',
    "blocking_reader": 'walstore.sync.open("data").reader(stop="x", follow=False)',
    "blocking_open": 'walstore.sync.open("data", setting=None)',
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every program of the pages, the examples, and those above."""
    directory = tmp_path_factory.mktemp("programs")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for number, (code, _) in enumerate(snippets(page.read_text())):
            (directory / f"{page.stem.lower()}_{number}.py").write_text(mode_of(code) + code)
    for path in (ROOT / "examples").glob("*.py"):
        code = path.read_text()
        (directory / f"example_{path.name}").write_text(mode_of(code) + code)
    (directory / "clean.py").write_text(CLEAN)
    for name, line in WRONG.items():
        code = "import walstore.sync\nfrom walstore import ReadableLog, Settings, Wal\n"
        code += "from walstore.kits.typed import Schema, TypedLog, TypedView\n\n\n"
        code += f"def call(wal: Wal) -> object:\n    return ({line}, ReadableLog, Schema,\n"
        code += "        Settings, TypedLog, TypedView, walstore.sync)\n"
        (directory / f"wrong_{name}.py").write_text(code)
    return directory


def mode_of(code: str) -> str:
    """Return how pyright is to look: PyArrow has no types, so what a program makes of it is unknown."""
    return "# pyright: basic\n" if "import pyarrow" in code else ""


def mypy(directory: Path) -> dict[str, list[str]]:
    """Return what mypy says of each program, as its user has it: strict, and no word on the libraries."""
    config = directory / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = true\nwarn_unreachable = true\nmypy_path = " + str(ROOT) + "\n"
        "[mypy-walstore.*,uploader.*]\nfollow_imports = silent\n"
        "[mypy-pyarrow.*,pyspark.*,msgpack.*,sortedcontainers.*,aiobotocore.*,botocore.*]\n"
        "ignore_missing_imports = true\nfollow_imports = skip\n"
    )
    files = sorted(map(str, directory.glob("*.py")))
    cache = ROOT / ".mypy_cache" / "programs"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(cache),
    ]
    done = subprocess.run(
        [*command, "--no-error-summary", *files],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    found: dict[str, list[str]] = {Path(name).stem: [] for name in files}
    for line in done.stdout.splitlines():
        place, _, message = line.partition(": ")
        found[Path(place.partition(":")[0]).stem].append(message)
    return found


def pyright(directory: Path) -> dict[str, list[str]]:
    """Return what pyright says of each program, strict; skip where it is not there."""
    config = directory / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": ["*.py"],
                "typeCheckingMode": "strict",
                "extraPaths": [str(ROOT)],
                "pythonVersion": "3.11",
                "reportMissingModuleSource": False,
            }
        )
    )
    pytest.importorskip("pyright", reason="pyright is not installed")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "--project", str(directory)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here (it needs node): {done.stderr[-200:]}")
    found: dict[str, list[str]] = {path.stem: [] for path in directory.glob("*.py")}
    for problem in json.loads(done.stdout)["generalDiagnostics"]:
        name = Path(problem["file"]).stem
        if name.startswith("query_") and problem.get("rule", "").startswith("reportUnknown"):
            continue  # tables of pyarrow, which has no types
        found[name].append(f"{problem['severity']}: {problem['message']}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_programs_of_users_need_no_annotations(checker, programs: Path) -> None:
    """Each is clean under the strictest rules; those that are wrong are refused."""
    found = checker(programs)
    assert len(found) > 40
    refused = {name for name, errors in found.items() if errors and name.startswith("wrong_")}
    assert refused == {f"wrong_{name}" for name in WRONG}
    complaints = {name: errors for name, errors in found.items() if errors and name not in refused}
    assert not complaints, json.dumps(complaints, indent=1)
