"""The situations of docs/handbook.md, each walked through with the commands that the page gives.

Versions are in test_97_versions.py, sizes in test_98_sizes.py; certificates and tokens are replaced in
tests/walstore/cli/test_serve.py. The figures that a person is to look at are
compared by name in tests/test_handbook.py.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.local import SMALL, read_all, read_values
from tests.programs import COMMANDS, WALSTORE, Program, run, start
from tests.waiting import until
from tests.walstore.cli.conftest import Cli, Done, cli  # noqa: F401 - fixture
from uploader import CloudTier
from walstore import (
    DiskFullError,
    OffsetTrimmedError,
    StorageUnavailableError,
    Wal,
    connect,
)
from walstore.core.files.posix import PosixFileSystem
from walstore.core.settings import KIB
from walstore.serve import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DAY = 86_400


class Disk(PosixFileSystem):
    """The real file system, with as much space as a test says."""

    def __init__(self) -> None:
        self.free = 1 << 40

    def free_bytes(self, path: Path) -> int:
        return self.free


async def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line next to servers of this process."""
    return await asyncio.to_thread(run, WALSTORE, *arguments, imports=COMMANDS)


def lines(*numbers: int) -> bytes:
    """Return records for ``walstore append``."""
    return b"".join(b"record %d\n" % number for number in range(*numbers))


def offsets(done: Done) -> list[int]:
    assert done.code == 0, done.err
    return [row["offset"] for row in done.rows]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "bucket" / "orders").as_uri()


@contextmanager
def serving(
    *arguments: object, setup: str = "", **environment: str
) -> Iterator[tuple[Program, str]]:
    """Serve until the block ends; yield the program and its first address."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    code = f"{setup}\n{WALSTORE}"
    with start(
        code, "serve", *arguments, "--json", imports=COMMANDS, environment=environment, **options
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["addresses"][0]
        finally:
            process.kill()


async def test_the_disk_of_a_server_is_full(
    log_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cursor that nobody moves holds retention back; without it a trim makes room, and appends work."""
    disk, settings = Disk(), SMALL.replace(min_free_bytes=400 * KIB)
    clock = SkippingClock(longest_pause=0.01)
    async with (
        Wal.open(log_directory, settings=settings, fs=disk, clock=clock) as wal,
        Server.open(wal, unix=tmp_path / "s") as server,
    ):
        address = server.addresses[0]
        async with connect(str(address)) as client:
            await client.cursor("gone", start=1)
            disk.free = 300 * KIB
            with pytest.raises(DiskFullError) as refused:
                for _ in range(1000):
                    await client.append(bytes(5000))
            assert (refused.value.outcome, refused.value.retriable) == ("not_written", True)
            tail = wal.tail
            trim = ("trim", address, "--before", tail - 1)
            done = await command(*trim, "--json")
            assert [one["name"] for one in json.loads(done.stdout)["pinned_by"]] == ["gone"]
            done = await command("cursors", address, "--delete", "gone", "--confirm")
            assert done.returncode == 0, done.stderr
            before = wal.statistics().segments
            done = await command(*trim, "--confirm")
            assert done.returncode == 0, done.stderr
            assert wal.head == tail - 1
            assert wal.statistics().segments < before
            disk.free = 1 << 40
            await until(lambda: f"appends below {log_directory} continue" in caplog.text)
            assert await client.append(b"after") == tail


async def test_too_many_open_files(tmp_path: Path) -> None:
    """The log that gets no descriptor fails with nothing written; a restart with more helps."""
    logs, path = tmp_path / "logs", tmp_path / "s"
    arguments = (logs, "--store", "--unix", path)
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))"
    with serving(*arguments, setup=few) as (process, address):
        async with connect(address, log="first") as first:
            assert await first.append(b"v") == 1
            opened = list[str]()
            with pytest.raises(StorageUnavailableError, match="Too many open files") as failed:
                for number in range(40):
                    async with connect(address, log=f"l{number}", reconnect_seconds=0) as wal:
                        await wal.append(b"v")
                        opened.append(f"l{number}")
            assert failed.value.outcome == "not_written"
            assert len(opened) > 3
            assert await first.append(b"w") == 2
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    with serving(*arguments) as (_, address):
        async with connect(address, log=f"l{len(opened)}") as wal:
            assert await wal.append(b"v") == 1


async def test_the_clock_jumped_back(log_directory: Path) -> None:
    """Times do not decrease, offsets go on, and a start by time finds what is there."""
    clock = SkippingClock()
    async with Wal.open(log_directory, clock=clock) as wal:
        await wal.append(b"before")
        clock.shift_wall(-DAY)
        await wal.append(b"after")
        first, second = await read_all(wal)
        assert second.timestamp_us == first.timestamp_us
        async with wal.reader(first.timestamp, follow=False) as reader:
            assert [record.offset async for record in reader] == [1, 2]
        clock.shift_wall(DAY + 60)
        await wal.append(b"later")
        assert (await read_all(wal))[-1].timestamp_us > first.timestamp_us


async def test_the_clock_jumped_forward(log_directory: Path) -> None:
    """Retention by age removes records early, unless it is switched off until the clock is right."""
    settings = SMALL.replace(retention_seconds=7.0 * DAY)
    async with Wal.open(log_directory, settings=settings) as wal:
        await wal.append_many([b"a", b"b"])
        await wal.rotate()
        await wal.append(b"c")
    clock = SkippingClock()
    clock.shift_wall(30 * DAY)
    kept = settings.replace(retention_seconds=None)
    async with Wal.open(log_directory, settings=kept, clock=clock) as wal:
        assert await wal.append(b"in the future") == 4
        assert wal.head == 1
        clock.shift_wall(-30 * DAY)
        await wal.append(b"now")
        *_, future, last = await read_all(wal)
        assert last.timestamp_us == future.timestamp_us
    clock.shift_wall(30 * DAY)
    async with Wal.open(log_directory, settings=settings, clock=clock) as wal:
        await until(lambda: wal.head > 1)
        assert await read_values(wal) == [b"c", b"in the future", b"now"]


def test_a_log_moves_to_another_host(cli: Cli, tmp_path: Path, url: str) -> None:  # noqa: F811
    """With a tier the old directory is refused, once the new one has shipped."""
    old, new = tmp_path / "old", tmp_path / "new"
    assert cli("append", old, "--tier", url, stdin=lines(3)).code == 0
    assert cli("cursors", old, "--set", "billing", 2, "--confirm").code == 0
    assert cli("check", old, "--writer").code == 1, "it has ended"
    shutil.copytree(old, new)
    assert cli("verify", new).code == 0
    assert cli("append", new, "--tier", url, stdin=lines(3, 5)).code == 0
    (cursor,) = cli("cursors", new, "--json").json["cursors"]
    assert (cursor["name"], cursor["position"]) == ("billing", 2)
    refused = cli("append", old, "--tier", url, stdin=lines(9, 10))
    assert refused.code == 4
    assert offsets(cli("dump", url)) == offsets(cli("dump", new)) == [1, 2, 3, 4, 5]


def test_a_writer_was_taken_over(cli: Cli, tmp_path: Path, url: str) -> None:  # noqa: F811
    """What only the old directory has can be read; it cannot go back where the store has more."""
    old, new = tmp_path / "old", tmp_path / "new"
    assert cli("append", old, "--tier", url, stdin=lines(3)).code == 0
    shutil.copytree(old, new)
    assert cli("append", old, stdin=lines(3, 4)).code == 0  # not shipped
    assert cli("append", new, "--tier", url, stdin=lines(7, 8)).code == 0
    state = cli("inspect", old, "--json").json
    only_here = cli("dump", old, "--from", state["uploaded_limit"])
    assert [row["value"] for row in only_here.rows] == ["record 3"]
    for more in ((), ("--take-over",)):
        assert cli("upload", old, url, *more).code == 4
    assert [row["value"] for row in cli("dump", url).rows][-1] == "record 7"


async def test_a_writer_takes_back_what_was_taken_over_by_mistake(tmp_path: Path, url: str) -> None:
    """The other directory has shipped nothing that this one lacks."""
    old, new = tmp_path / "old", tmp_path / "new"
    async with Wal.open(old, tier=CloudTier(url)) as wal:
        await wal.append(b"a", durability="cloud")
    shutil.copytree(old, new)
    async with Wal.open(new, tier=CloudTier(url, take_over=True)):
        pass
    async with Wal.open(old) as wal:
        await wal.append(b"b")
    done = await command("upload", old, url, "--take-over")
    assert done.returncode == 0, done.stderr
    async with Wal.open(old, tier=CloudTier(url)) as wal:
        assert await wal.append(b"c", durability="cloud") == 3


def _fragments(url: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).rglob("*.parquet"))


@pytest.fixture
def shipped(cli: Cli, tmp_path: Path, url: str) -> Path:  # noqa: F811
    """A log of four fragments and as many records."""
    log = tmp_path / "log"
    for number in range(4):
        done = cli("append", log, "--tier", url, stdin=lines(number, number + 1))
        assert done.code == 0, done.err
    assert len(_fragments(url)) == 4
    return log


def test_a_lifecycle_rule_deleted_the_oldest_objects(
    cli: Cli,  # noqa: F811
    shipped: Path,
    url: str,
    tmp_path: Path,
) -> None:
    for path in _fragments(url)[:2]:
        path.unlink()
    assert cli("scrub", url).code == 2
    # The directory has all of it: ship it again.
    assert cli("inspect", shipped, "--json").json["head"] == 1
    again = (tmp_path / "bucket" / "again").as_uri()
    assert cli("upload", shipped, again).code == 0
    assert offsets(cli("dump", again)) == [1, 2, 3, 4]
    # Or keep what is left.
    shown = cli("rebuild", url, "--keep", "after", "--json")
    assert (shown.code, shown.json["lost"]) == (2, [{"start": 1, "limit": 3}])
    assert cli("rebuild", url, "--keep", "after", "--confirm").code == 0
    assert cli("scrub", url).code == 0
    assert offsets(cli("dump", url)) == [3, 4]
    done = cli("append", shipped, "--tier", url, stdin=lines(4, 5))
    assert done.code == 0, done.err
    assert offsets(cli("dump", url)) == [3, 4, 5]


def test_a_lifecycle_rule_deleted_the_manifest(cli: Cli, shipped: Path, url: str) -> None:  # noqa: F811
    (Path(url.removeprefix("file://")) / "manifest" / "MANIFEST").unlink()
    assert cli("scrub", url).code == 3
    assert cli("rebuild", url, "--keep", "after", "--confirm").code == 0
    assert cli("upload", shipped, url, "--take-over").code == 0
    done = cli("append", shipped, "--tier", url, stdin=lines(4, 5))
    assert done.code == 0, done.err
    assert (cli("scrub", url).code, offsets(cli("dump", url))) == (0, [1, 2, 3, 4, 5])


def _replicate(url: str, copy: Path, *, without: int = 0) -> str:
    """Copy a bucket as its replication would, but for so many fragments that have not arrived."""
    shutil.copytree(Path(url.removeprefix("file://")), copy)
    found = _fragments(copy.as_uri())
    for path in found[len(found) - without :]:
        path.unlink()
    return copy.as_uri()


def test_a_region_is_lost_and_the_host_lives(
    cli: Cli,  # noqa: F811
    shipped: Path,
    url: str,
    tmp_path: Path,
) -> None:
    """It continues where the copy ends: the directory has what had not arrived."""
    other = _replicate(url, tmp_path / "other")
    assert cli("append", shipped, "--tier", url, stdin=lines(4, 6)).code == 0
    shutil.rmtree(tmp_path / "bucket")
    done = cli("append", shipped, "--tier", other, stdin=lines(6, 7))
    assert done.code == 0, done.err
    assert offsets(cli("dump", other)) == [1, 2, 3, 4, 5, 6, 7]
    assert cli("scrub", other).code == 0


def test_a_region_and_the_host_are_lost(cli: Cli, shipped: Path, url: str, tmp_path: Path) -> None:  # noqa: F811
    other = _replicate(url, tmp_path / "other")
    shutil.rmtree(tmp_path / "bucket")
    shutil.rmtree(shipped)
    assert cli("restore", other, shipped).code == 0
    done = cli("append", shipped, "--tier", other, stdin=lines(4, 5))
    assert done.code == 0, done.err
    assert offsets(cli("dump", other)) == [1, 2, 3, 4, 5]


def test_a_replicated_bucket_lacks_its_last_fragments(
    cli: Cli,  # noqa: F811
    shipped: Path,
    url: str,
    tmp_path: Path,
) -> None:
    """Those before them can be restored."""
    other = _replicate(url, tmp_path / "other", without=1)
    scrubbed = cli("scrub", other, "--json")
    assert scrubbed.code == 2
    refused = cli("restore", other, tmp_path / "whole")
    assert refused.code == 2
    shutil.rmtree(shipped)
    assert cli("restore", other, shipped, "--to-offset", 4).code == 0
    assert offsets(cli("dump", shipped)) == [1, 2, 3]


def test_a_backup_and_back(cli: Cli, shipped: Path, url: str, tmp_path: Path) -> None:  # noqa: F811
    backup = (tmp_path / "backup").as_uri()
    assert cli("fork", url, backup).code == 0
    assert cli("append", shipped, "--tier", url, stdin=lines(4, 5)).code == 0
    shutil.rmtree(tmp_path / "bucket")
    assert cli("scrub", backup).code == 0
    assert cli("restore", backup, tmp_path / "restored").code == 0
    assert cli("verify", tmp_path / "restored").code == 0
    assert offsets(cli("dump", tmp_path / "restored")) == [1, 2, 3, 4]


def test_a_backup_without_a_tier(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    log, backup = tmp_path / "log", (tmp_path / "backup").as_uri()
    assert cli("append", log, stdin=lines(3)).code == 0
    assert cli("upload", log, backup).code == 0
    shutil.rmtree(log)
    assert cli("restore", backup, log).code == 0
    assert offsets(cli("dump", log)) == [1, 2, 3]


def test_a_consumer_is_stuck(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    log = tmp_path / "log"
    assert cli("append", log, stdin=lines(5)).code == 0
    assert cli("cursors", log, "--set", "billing", 3, "--confirm").code == 0
    (cursor,) = cli("cursors", log, "--json").json["cursors"]
    assert (cursor["behind"], cursor["pins"]) == (3, True)
    blocks = cli("dump", log, "--from", cursor["position"], "--limit", 1)
    assert offsets(blocks) == [3]
    assert cli("cursors", log, "--set", "billing", 4, "--confirm").code == 0
    trim = ("trim", log, "--before", 5)
    assert [one["name"] for one in cli(*trim, "--json").json["pinned_by"]] == ["billing"]
    assert cli("cursors", log, "--delete", "billing", "--confirm").code == 0
    assert cli(*trim, "--confirm").code == 0
    assert offsets(cli("dump", log)) == [5]


async def test_a_consumer_whose_records_are_gone(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append_many([b"a", b"b", b"c"])
        await wal.trim(before=3)
        with pytest.raises(OffsetTrimmedError) as gone:
            await anext(wal.follow(1))
        assert gone.value.head == 3


def test_a_segment_is_damaged(cli: Cli, shipped: Path) -> None:  # noqa: F811
    path = next(shipped.glob("*.wal"))
    data = bytearray(path.read_bytes())
    at = data.index(b"record 1")
    data[at - 40 : at + 8] = bytes(48)
    path.write_bytes(data)
    assert cli("verify", shipped).code == 2
    shown = cli("repair", shipped, "--from-tier", "--json")
    assert (shown.code, shown.json["lost"]) == (2, [])
    assert cli("repair", shipped, "--from-tier", "--confirm").code == 0
    assert cli("verify", shipped).code == 0
    assert offsets(cli("dump", shipped)) == [1, 2, 3, 4]
