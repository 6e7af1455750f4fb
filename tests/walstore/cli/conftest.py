"""Running command lines in this process, and logs to run them on."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from walstore import Settings, Wal
from walstore.cli.app import run

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


async def fill(path: Path, *, records: int = 100, start: int = 1) -> None:
    """Append records ``value 1``, ``value 2``, ... with keys, a stream and headers."""
    async with Wal.open(path, settings=SMALL) as wal:
        for number in range(start, start + records):
            wal.append_nowait(
                b"value %d" % number, key=b"key %d" % number, stream="s", headers={"h": b"\xff"}
            )
        await wal.flush()


@pytest.fixture
def log(log_directory: Path) -> Path:
    """A log of 100 records."""
    asyncio.run(fill(log_directory))
    return log_directory


@pytest.fixture
def stored(log: Path, tmp_path: Path, cli: Cli) -> str:
    """The URL of a store to which that log was shipped."""
    url = (tmp_path / "store").as_uri()
    assert cli("upload", log, url).code == 0
    return url


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

    from walstore.format import segment

    data = bytearray(path.read_bytes())
    data[12:14] = (99).to_bytes(2, "little")
    crc = crc32c(bytes(data[12 : segment.HEADER_BYTES]))
    data[8:12] = crc.to_bytes(4, "little")
    path.write_bytes(data)
