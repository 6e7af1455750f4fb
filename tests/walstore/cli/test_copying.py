"""walstore upload and restore: everything durable is shipped once, and is a log again, whole or in part."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.walstore.cli.conftest import Cli, Done, Held, fill, flip, make_newer
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


@pytest.mark.slow
def test_a_log_that_is_open(cli: Cli, log: Path, held: Held, tmp_path: Path) -> None:
    with held(log):
        done = cli("upload", log, (tmp_path / "store").as_uri())
    assert done.code == 4
    assert "open for writing elsewhere" in done.error


@pytest.mark.slow
def test_a_store_that_cannot_be_written(cli: Cli, log: Path) -> None:
    done = cli("upload", log, "file:///proc/walstore-store")
    assert done.code in (1, 3)
    assert len(done.err.splitlines()) == 1


@pytest.mark.s3
@pytest.mark.slow
def test_s3(cli: Cli, log: Path, s3_url: str) -> None:
    assert cli("upload", log, s3_url).code == 0
    assert cli("dump", s3_url).out == cli("dump", log).out
    assert cli("verify", s3_url, "--json").json["records"] == 100
    assert cli("inspect", s3_url, "--json").json["tail"] == 101


@pytest.mark.slow
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


def fragment_files(url: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).glob("log/*/*.parquet"))


def test_whole(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    done = cli("restore", stored, tmp_path / "new")
    assert (done.code, done.err) == (0, "")
    assert "[1, 101)" in done.out.decode()
    assert cli("dump", tmp_path / "new").out == cli("dump", log).out
    assert cli("verify", tmp_path / "new").code == 0
    before, after = (cli("inspect", path, "--json").json for path in (log, tmp_path / "new"))
    for name in ("log_id", "head", "durable_limit", "uploaded_limit", "tier_url"):
        assert after[name] == before[name], name

    async def go_on() -> None:
        async with Wal.open(tmp_path / "new", tier=CloudTier(stored)) as wal:
            assert await wal.append(b"more", durability="cloud") == 101

    asyncio.run(go_on())
    assert cli("tail", stored).lines[-1] == "more"


def test_json(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    found = cli("restore", stored, tmp_path / "new", "--json").json
    assert (found["directory"], found["url"]) == (str(tmp_path / "new"), stored)
    assert (found["head"], found["limit"], found["records"]) == (1, 101, 100)
    assert (found["segments"], found["fragments"], found["streams"]) == (1, 1, 1)
    assert (found["owns_prefix"], found["resumed_at"], found["adopted_fragments"]) == (True, 1, 0)
    assert found["bytes"] > 0
    assert found["fragment_bytes"] > 0


def test_up_to_an_offset(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    done = cli("restore", stored, tmp_path / "part", "--to-offset", "50")
    assert done.code == 0
    assert done.error == f"this is a log of its own; it cannot ship to {stored}"
    assert cli("dump", tmp_path / "part").out == cli("dump", log, "--to", "50").out
    done = cli("upload", tmp_path / "part", stored)
    assert done.code == 4
    for offset in ("0", "102"):
        done = cli("restore", stored, tmp_path / "none", "--to-offset", offset)
        assert done.code == 1
        assert "requested=" in done.error


def test_up_to_a_time(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    done = cli("restore", stored, tmp_path / "early", "--to-time", "2001-01-01", "--json")
    assert (done.json["records"], done.json["owns_prefix"]) == (0, False)
    done = cli("restore", stored, tmp_path / "late", "--to-time", "2999-01-01T00:00Z", "--json")
    assert (done.json["records"], done.json["owns_prefix"]) == (100, False)


def test_mistakes(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for arguments, code, message in [
        ((stored, log), 1, "is not empty"),
        ((stored, new, "--to-offset", "5", "--to-time", "2001-01-01"), 1, "not both"),
        ((stored, new, "--to-time", "latest"), 1, "--to-time takes a time"),
        ((stored, new, "--to-time", "someday"), 1, "not a place in a log"),
        ((tmp_path, new), 1, "restore needs a store URL"),
        ((stored, stored), 1, "restore needs a log directory"),
        (((tmp_path / "none").as_uri(), new), 3, "there is no log at"),
    ]:
        done = cli("restore", *arguments)
        assert done.code == code, arguments
        assert message in done.error
    assert not new.exists()


def test_a_damaged_fragment(cli: Cli, stored: str, tmp_path: Path) -> None:
    (fragment,) = fragment_files(stored)
    flip(fragment, 100)
    done = cli("restore", stored, tmp_path / "new")
    assert done.code == 2
    assert fragment.name in done.error
    assert cli("inspect", tmp_path / "new").code == 3


def test_a_directory_in_use(cli: Cli, stored: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    with (new / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = cli("restore", stored, new)
    assert done.code == 4


@pytest.mark.slow
def test_interrupted_it_is_no_log(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    """SIGINT while the store does not answer: code 1, no log yet; the same command makes it."""
    new = tmp_path / "new"
    manifest = Path(stored.removeprefix("file://")) / "manifest" / "MANIFEST"
    data = manifest.read_bytes()
    manifest.unlink()
    os.mkfifo(manifest)
    process = subprocess.Popen(
        [sys.executable, "-m", "walstore.cli", "restore", stored, str(new)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    is_interrupted = False
    while not is_interrupted:
        with manifest.open("wb") as answer:  # opens once the program asks for it
            if (new / "LOCK").exists():
                process.send_signal(signal.SIGINT)
                with (new / "LOCK").open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # it has noticed once it gives this up
                is_interrupted = True
            manifest.unlink()
            os.mkfifo(manifest)
            answer.write(data)
    manifest.unlink()
    manifest.write_bytes(data)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, b"", b"walstore: interrupted\n")
    assert cli("dump", new).code == 3
    assert cli("restore", stored, new).code == 0
    assert cli("dump", new).out == cli("dump", log).out


@pytest.mark.parametrize("verb", ["dump", "tail", "inspect", "segments", "verify", "repair"])
def test_what_is_half_restored_is_no_log(cli: Cli, log: Path, verb: str) -> None:
    """Nor is it made one by a repair, which would take a part for all of it."""
    (log / "restore.wal").touch()
    done = cli(verb, log)
    assert (done.code, done.out) == (2, b"")
    assert "a restore was interrupted; restore the log again" in done.error


@pytest.mark.parametrize("verb", ["restore", "fork", "scrub"])
def test_a_bar_is_shown_on_terminals_only(
    cli: Cli, stored: str, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = {"restore": [str(tmp_path / "new")], "fork": [(tmp_path / "new").as_uri()]}
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = os.openpty()
    try:
        with open(theirs, "w") as terminal, monkeypatch.context() as replaced:
            replaced.setattr(sys, "stderr", terminal)
            done = cli(verb, stored, *targets.get(verb, []))
            shown = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
    assert done.code == 0
    assert {"restore": b"restoring", "fork": b"copying", "scrub": b"scrubbing"}[verb] in shown
    assert b"\x1b" not in done.out


@pytest.mark.slow
@pytest.mark.s3
def test_from_s3(cli: Cli, log: Path, s3_url: str, tmp_path: Path) -> None:
    assert cli("upload", log, s3_url).code == 0
    assert cli("restore", s3_url, tmp_path / "new").code == 0
    assert cli("dump", tmp_path / "new").out == cli("dump", log).out
    for line in (("manifest",), ("fragments", "--times"), ("scrub",), ("gc", "plan")):
        assert cli(*line, s3_url).code == 0, line
