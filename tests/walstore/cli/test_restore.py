"""walstore restore: the directory is a log again, whole or up to a place, and says what it is."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, flip
from uploader import CloudTier
from walstore import Wal


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


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["restore", "fork", "scrub"])
def test_a_bar_is_shown_on_terminals_only(stored: str, tmp_path: Path, verb: str) -> None:
    targets = {"restore": [str(tmp_path / "new")], "fork": [(tmp_path / "new").as_uri()]}
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "walstore.cli", verb, stored, *targets.get(verb, [])],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
            check=False,
        )
        shown = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert {"restore": b"restoring", "fork": b"copying", "scrub": b"scrubbing"}[verb] in shown
    assert b"\x1b" not in done.stdout


@pytest.mark.s3
def test_from_s3(cli: Cli, log: Path, s3_url: str, tmp_path: Path) -> None:
    assert cli("upload", log, s3_url).code == 0
    assert cli("restore", s3_url, tmp_path / "new").code == 0
    assert cli("dump", tmp_path / "new").out == cli("dump", log).out
    for line in (("manifest",), ("fragments", "--times"), ("scrub",), ("gc", "plan")):
        assert cli(*line, s3_url).code == 0, line
