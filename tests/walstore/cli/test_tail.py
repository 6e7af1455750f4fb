"""walstore tail: the end of a log, and what another process appends meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import SMALL, Cli
from uploader import CloudTier, UploadSettings
from walstore import Wal


@pytest.mark.parametrize("kind", ["log", "stored"])
def test_the_last_ten_values(cli: Cli, kind: str, request: pytest.FixtureRequest) -> None:
    location = request.getfixturevalue(kind)
    done = cli("tail", location)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [f"value {number}" for number in range(91, 101)]
    assert cli("tail", location, "--from", "-2").lines == ["value 99", "value 100"]
    assert cli("tail", location, "--from", "latest").out == b""


def test_values_are_written_as_they_are(cli: Cli, log_directory: Path) -> None:
    cli("append", log_directory, stdin=b"\xff\0\n\nx\n")
    assert cli("tail", log_directory).out == b"\xff\0\n\nx\n"


def test_json_is_that_of_dump(cli: Cli, log: Path) -> None:
    assert cli("tail", log, "--json").out == cli("dump", log, "--from", "-10").out


def test_no_log_and_damage(cli: Cli, tmp_path: Path, damaged: Path) -> None:
    assert cli("tail", tmp_path / "nowhere").code == 3
    assert cli("tail", "-f", tmp_path / "nowhere").code == 3
    assert cli("tail", damaged).code == 2


async def _tail(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "walstore.cli", "tail", "-f", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _stop(process: asyncio.subprocess.Process, number: int) -> None:
    process.send_signal(number)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_follows_a_live_log_over_rotation_until_a_signal(
    log_directory: Path, number: int
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"before")
        process = await _tail(log_directory, "--from", "earliest")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"before\n"
        for number_of in range(40):
            await wal.append_many([b"%d-%d " % (number_of, at) + bytes(200) for at in range(50)])
            await wal.append(b"last of %d" % number_of)
            while (await process.stdout.readline()) != b"last of %d\n" % number_of:
                pass
        assert len(list(log_directory.glob("*.wal"))) > 3
        await _stop(process, number)


async def test_follows_one_stream(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"before", stream="eu")
        process = await _tail(log_directory, "--stream", "eu")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"before\n"
        for number in range(10):
            await wal.append_many([bytes(200)] * 100, stream="us")
            await wal.append(b"%d" % number, stream="eu")
            assert await process.stdout.readline() == b"%d\n" % number
        await _stop(process, signal.SIGINT)


async def test_follows_a_store(log_directory: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    tier = CloudTier(url, settings=UploadSettings(fragment_age_seconds=0.01))
    async with Wal.open(log_directory, tier=tier) as wal:
        await wal.append(b"one", durability="cloud")
        process = await _tail(url, "--json")
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["value"] == "one"
        await wal.append(b"two", durability="cloud")
        assert json.loads(await process.stdout.readline())["offset"] == 2
        await _stop(process, signal.SIGINT)
