"""The walks of docs/design.md: the files that they name are those that the calls pass."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from tests.cloud import FAST
from tests.local import SMALL
from uploader import CloudTier, CloudWriter
from uploader.stores.memory import MemoryStore
from walstore import Settings, Wal, connect
from walstore.serve import Server
from walstore.spark.source import WalstoreSource

ROOT: Final = Path(__file__).parent.parent
DESIGN: Final = (ROOT / "docs" / "design.md").read_text()
PRODUCT: Final = (f"{ROOT}/walstore/", f"{ROOT}/uploader/")


class Passed:
    """The files of the product in which a function was called, on any thread, while it listens."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._listens = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self._listens and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(PRODUCT):
                self.files.add(name.removeprefix(f"{ROOT}/"))

    @contextmanager
    def listening(self) -> Iterator[set[str]]:
        """Listen as long as the block runs."""
        self.files, self._listens = set(), True
        sys.setprofile(self)
        try:
            yield self.files
        finally:
            sys.setprofile(None)
            self._listens = False


@pytest.fixture
def passed() -> Iterator[Passed]:
    """It is there before the threads of a log begin, and for them."""
    found = Passed()
    threading.setprofile(found)
    try:
        yield found
    finally:
        threading.setprofile(None)


def walk(name: str) -> dict[str, str]:
    """Return the steps of a walk, each with the first file that it names."""
    section = DESIGN.split(f"## The walk of one {name}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\d+\w?) \| (.*?) \|", section, re.MULTILINE)
    steps = {
        step: re.findall(r"`((?:walstore|uploader)/[\w/]+\.py)`", files) for step, files in rows
    }
    assert all(steps.values()), steps
    return {step: files[0] for step, files in steps.items()}


def test_all_files_that_are_named_exist() -> None:
    named = set(re.findall(r"`((?:walstore|uploader|tests|bench|tools)/[\w/]+\.\w+)`", DESIGN))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


async def test_an_append(tmp_path: Path, passed: Passed) -> None:
    async with Wal.open(tmp_path) as wal:
        await wal.append(b"v")
        with passed.listening() as files:
            await wal.append(b"order", durability="disk")
    assert set(walk("append").values()) <= files
    assert len(files) <= 24, sorted(files)  # one more is worth a reason


@asynccontextmanager
async def shipped(path: Path, **settings: Any) -> AsyncIterator[Wal]:
    tier = CloudTier("memory://a/b", store=MemoryStore(), retry=FAST)
    async with Wal.open(path, settings=Settings(**settings), tier=tier) as wal:
        yield wal


async def test_a_read(tmp_path: Path, passed: Passed) -> None:
    """From memory, from files, and from the tier of a log whose files are gone."""
    small = {"segment_bytes": SMALL.segment_bytes, "checkpoint_bytes": SMALL.checkpoint_bytes}
    files = set()
    async with shipped(tmp_path, **small, cache_bytes=1 << 20) as wal:
        await wal.append(b"v", durability="cloud")
        with passed.listening() as found:
            assert [record.offset async for record in wal.reader(1, follow=False)] == [1]
        files |= found
    async with shipped(tmp_path / "other", **small, cache_bytes=0, retention_bytes=0) as wal:
        for _ in range(3):
            await wal.append(bytes(64 << 10), durability="cloud")
        await wal.append(b"v")
        await wal.wait_durable(wal.visible_limit - 1, "cloud")
        await wal.rotate()
        await wal.append(b"w", durability="cloud")
        while wal.statistics().local_head == 1:
            await wal.refresh()
        with passed.listening() as found:
            assert len([record async for record in wal.reader(1, follow=False)]) == 5
        files |= found
    assert set(walk("read").values()) <= files


async def test_an_upload(tmp_path: Path, passed: Passed) -> None:
    async with shipped(tmp_path) as wal:
        await wal.append(b"v", durability="cloud")
        with passed.listening() as files:
            await wal.append(b"w", durability="cloud")
    assert set(walk("upload").values()) <= files


async def test_a_request(tmp_path: Path, passed: Passed) -> None:
    """With the connection that it needs."""
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock") as server,
    ):
        with passed.listening() as files:
            async with connect(str(server.addresses[0])) as remote:
                await remote.append(b"v")
    named = set(walk("request").values()) - {"walstore/serve/listening.py"}  # the system accepts
    assert named <= files


async def test_a_spark_read(tmp_path: Path, passed: Passed) -> None:
    """As Spark's Python processes do it, without Spark."""
    url = f"file://{tmp_path}"
    async with CloudWriter.open(url) as writer:
        await writer.append_many([b"v"] * 3)

    def read() -> int:
        source = WalstoreSource({"path": url})
        with passed.listening():
            reader = source.reader(source.schema())
            return sum(rows.num_rows for one in reader.partitions() for rows in reader.read(one))

    assert await asyncio.to_thread(read) == 3
    assert set(walk("Spark read").values()) <= passed.files


async def test_a_job(tmp_path: Path, passed: Passed) -> None:
    async with Wal.open(tmp_path) as wal, wal.group("g") as member:
        await wal.append(b"v")
        with passed.listening() as files:
            (job,) = await member.fetch(1)
            await job.ack()
    assert set(walk("job").values()) <= files
