"""walstore upload: everything durable is shipped once, and what prevents it is said in one line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.walstore.cli.conftest import Cli, Done, fill, make_newer
from uploader import CloudTier
from walstore import Wal

if TYPE_CHECKING:
    from tests.uploader.s3_server import S3Server


def test_ships_what_is_new(cli: Cli, log: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    done = cli("upload", log, url, "--json")
    assert (done.code, done.err) == (0, "")
    shipped = done.json
    assert (shipped["start"], shipped["limit"], shipped["records"]) == (1, 101, 100)
    assert (shipped["fragments"], shipped["url"]) == (1, url)
    assert shipped["bytes"] > 0
    asyncio.run(fill(log, records=10, start=101))
    done = cli("upload", log, url)
    assert "[101, 111)" in done.out.decode()
    again = cli("upload", log, url, "--json").json
    assert (again["start"], again["limit"], again["records"], again["bytes"]) == (111, 111, 0, 0)
    assert cli("dump", url).out == cli("dump", log).out


def test_an_empty_log(cli: Cli, log_directory: Path, tmp_path: Path) -> None:
    cli("append", log_directory)
    shipped = cli("upload", log_directory, (tmp_path / "store").as_uri(), "--json").json
    assert (shipped["records"], shipped["fragments"]) == (0, 0)


def test_no_log_is_not_made_one(cli: Cli, tmp_path: Path) -> None:
    done = cli("upload", tmp_path / "nowhere", (tmp_path / "store").as_uri())
    assert done.code == 3
    assert "there is no log at" in done.error
    assert list(tmp_path.iterdir()) == []


def test_the_prefix_of_another_log(cli: Cli, stored: str, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "other", records=200))
    done = cli("upload", tmp_path / "other", stored)
    assert done.code == 4
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["upload", "append"])
@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_a_prefix_is_taken_back(cli: Cli, tmp_path: Path, verb: str, layout: str) -> None:
    """From a directory that took it over and shipped nothing; it is refused without the option, then and
    later, and so is the other one from then on."""
    ours, theirs, url = tmp_path / "a", tmp_path / "b", (tmp_path / "store").as_uri()
    asyncio.run(fill(ours, records=3))
    assert cli("upload", ours, url, "--layout", layout).code == 0
    asyncio.run(_open_there(theirs, url))

    def ship(directory: Path, *options: str) -> Done:
        if verb == "upload":
            return cli("upload", directory, url, *options)
        return cli("append", directory, "--tier", url, "--durability", "cloud", *options)

    refused = ship(ours)
    assert refused.code == 4
    assert "walstore upload --take-over" in refused.error
    assert ship(ours, "--take-over").code == 0
    assert ship(ours).code == 0
    assert ship(theirs).code == 4
    asyncio.run(fill(ours, records=2, start=4))
    assert ship(ours).code == 0
    assert len(cli("dump", url).lines) == 5


def test_what_the_other_one_shipped_is_not_lost(cli: Cli, tmp_path: Path) -> None:
    """A directory that lacks it is refused, also with the option."""
    ours, theirs, url = tmp_path / "a", tmp_path / "b", (tmp_path / "store").as_uri()
    asyncio.run(fill(ours, records=3))
    assert cli("upload", ours, url).code == 0
    asyncio.run(_open_there(theirs, url, append=b"theirs"))
    done = cli("upload", ours, url, "--take-over")
    assert (done.code, "this log ends at 4" in done.error) == (4, True)
    assert len(cli("dump", url).lines) == 4
    asyncio.run(fill(ours, records=1, start=4))
    for verb in (("upload", ours, url), ("append", ours, "--tier", url)):
        done = cli(*verb, "--take-over", stdin=b"not appended\n")
        assert (done.code, "holds other records" in done.error) == (4, True)
    assert len(cli("dump", ours).lines) == 4
    assert cli("upload", theirs, url).code == 0


async def _open_there(directory: Path, url: str, *, append: bytes | None = None) -> None:
    async with Wal.open(directory, tier=CloudTier(url)) as wal:
        if append is not None:
            await wal.append(append, durability="cloud")


def test_a_damaged_log_and_a_newer_one(cli: Cli, damaged: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    assert cli("upload", damaged, url).code == 2
    make_newer(max(damaged.glob("*.wal")))
    done = cli("upload", damaged, url)
    assert done.code == 1
    assert "newer version" in done.error


def test_a_log_that_is_open(log: Path, tmp_path: Path) -> None:
    async def hold() -> tuple[int | None, bytes]:
        async with Wal.open(log):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "walstore.cli", "upload", str(log), (tmp_path / "store").as_uri()),
                stderr=asyncio.subprocess.PIPE,
            )
            _, err = await process.communicate()
            return process.returncode, err

    code, err = asyncio.run(hold())
    assert code == 4
    assert b"open for writing elsewhere" in err


def test_a_store_that_cannot_be_written(cli: Cli, log: Path) -> None:
    done = cli("upload", log, "file:///proc/walstore-store")
    assert done.code in (1, 3)
    assert len(done.err.splitlines()) == 1


@pytest.mark.s3
def test_s3(cli: Cli, log: Path, s3_url: str) -> None:
    assert cli("upload", log, s3_url).code == 0
    assert cli("dump", s3_url).out == cli("dump", log).out
    assert cli("verify", s3_url, "--json").json["records"] == 100
    assert cli("inspect", s3_url, "--json").json["tail"] == 101


@pytest.mark.s3
def test_a_bucket_that_does_not_exist(cli: Cli, log: Path, s3_url: str) -> None:
    url = s3_url.replace("bucket-", "no-such-bucket-")
    for arguments in (("upload", log, url), ("dump", url), ("inspect", url), ("verify", url)):
        done = cli(*arguments)
        assert done.code == 3, arguments
        assert "no-such-bucket" in done.error


@pytest.mark.s3
def test_missing_credentials(
    cli: Cli, log: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for arguments in (("upload", log, s3_url), ("dump", s3_url)):
        done = cli(*arguments)
        assert done.code == 1, arguments
        assert "credentials" in done.error.lower()


@pytest.mark.s3
def test_an_emulator_without_conditional_puts(
    cli: Cli, log: Path, s3_url: str, s3_bucket: str, s3_server: S3Server, s3_admin: Any
) -> None:
    s3_server.unconditional_buckets.add(s3_bucket)
    done = cli("upload", log, s3_url)
    assert done.code == 1
    assert "ignores the conditions of puts" in done.error
    listed = s3_admin.list_objects_v2(Bucket=s3_bucket).get("Contents", [])
    assert not [item for item in listed if "/log/" in item["Key"] or "MANIFEST" in item["Key"]]
