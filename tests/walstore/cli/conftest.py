"""Running command lines in this process, and logs to run them on."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import ImpatientClock
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from walstore import Settings, Wal
from walstore.cli import cluster, cluster_adopt
from walstore.cli.app import run
from walstore.topology.key_values import KeyValues
from walstore.topology.memory import MemoryKeyValues

SMALL = Settings(segment_bytes=64 << 10, checkpoint_bytes=64 << 10)


@dataclass(frozen=True)
class Done:
    """What a command line did."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]

    @property
    def error(self) -> str:
        """The one line on stderr."""
        (line,) = self.err.splitlines()
        assert line.startswith("walstore: ")
        return line.removeprefix("walstore: ")


Cli = Callable[..., Done]
Held = Callable[[Path], AbstractContextManager[int]]


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line: ``cli("dump", path, stdin=b"...")``."""

    def run_one(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return Done(code, captured.out, captured.err.decode())

    return run_one


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryKeyValues:
    """What command lines find in etcd, whatever address they give. Machines have a store of their own."""
    made = MemoryKeyValues()

    @asynccontextmanager
    async def open_keys(_: str) -> AsyncIterator[KeyValues]:
        yield made.client()

    monkeypatch.setattr(cluster, "open_keys", open_keys)
    monkeypatch.setenv(cluster.CLUSTER_VARIABLE, "etcd://127.0.0.1:1")
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let command lines that ask machines of a cluster not wait for those that are not there."""
    monkeypatch.setattr(cluster_adopt, "SystemClock", ImpatientClock)


async def fill(path: Path, *, records: int = 100, start: int = 1) -> None:
    """Append records ``value 1``, ``value 2``, ... with keys, a stream and headers."""
    async with Wal.open(path, settings=SMALL) as wal:
        for number in range(start, start + records):
            wal.append_nowait(
                b"value %d" % number, key=b"key %d" % number, stream="s", headers={"h": b"\xff"}
            )
        await wal.flush()


@pytest.fixture(scope="session")
def made_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 100 records, made once: tests have copies."""
    path = tmp_path_factory.mktemp("made") / "log"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def log(made_log: Path, log_directory: Path) -> Path:
    """A log of 100 records."""
    return shutil.copytree(made_log, log_directory)


@pytest.fixture
def stored(log: Path, tmp_path: Path, cli: Cli) -> str:
    """The URL of a store to which that log was shipped."""
    url = (tmp_path / "store").as_uri()
    assert cli("upload", log, url).code == 0
    return url


HOLDER = """
import asyncio, sys
from walstore import Wal

async def hold(path):
    async with Wal.open(path):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("closed", flush=True)

while path := sys.stdin.readline():
    asyncio.run(hold(path.strip()))
"""


@pytest.fixture(scope="session")
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another process, which opens the logs whose paths it reads, one after the other."""
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child


@pytest.fixture
def held(holder: subprocess.Popen[str]) -> Held:
    """Let another process have a log open as long as a block lasts; its id is yielded."""
    stdin, stdout = holder.stdin, holder.stdout
    assert stdin is not None
    assert stdout is not None

    @contextmanager
    def hold(path: Path) -> Iterator[int]:
        print(path, file=stdin, flush=True)
        assert stdout.readline() == "open\n"
        try:
            yield holder.pid
        finally:
            print(file=stdin, flush=True)
            assert stdout.readline() == "closed\n"

    return hold


async def make_people(url: str) -> None:
    """Make an upsert collection that ends at 20: Ada and Bob at 0, Bea instead of Bob at 14."""
    import pyarrow as pa

    from uploader import Collection

    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())]
    schema = pa.schema(fields)
    async with Collection.open(url, create=True, schema=schema, key=("id",), kind="upsert") as made:
        writer = made.writer()
        await writer.append(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}), lower=0, upper=10)
        renamed = pa.table({"id": [2], "name": ["Bea"], "_t": pa.array([14], pa.uint64())})
        await writer.append(renamed, lower=10, upper=20)


@pytest.fixture
def people(tmp_path: Path) -> str:
    """The URL of that collection."""
    url = (tmp_path / "people").as_uri()
    asyncio.run(make_people(url))
    return url


def objects(url: str) -> dict[str, bytes]:
    """Return what is stored at a ``file://`` URL."""
    root = Path(url.removeprefix("file://"))
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".tmp" not in path.parts
    }


@pytest.fixture
def damaged(log: Path) -> Path:
    """That log with a flipped bit in its last batch."""
    flip(max(log.glob("*.wal")), -20)
    return log


def flip(path: Path, position: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def make_newer(path: Path) -> None:
    """Let a segment say that a newer version wrote it."""
    from crc32c import crc32c

    from walstore.core.format import segment

    data = bytearray(path.read_bytes())
    data[12:14] = (99).to_bytes(2, "little")
    crc = crc32c(bytes(data[12 : segment.HEADER_BYTES]))
    data[8:12] = crc.to_bytes(4, "little")
    path.write_bytes(data)


def run_and_forget(main: Coroutine[Any, Any, None]) -> None:
    """Run a program that ends without closing what it opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(main)
        gc.collect()
