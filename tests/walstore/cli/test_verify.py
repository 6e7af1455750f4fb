"""walstore verify: exit code 2 and the place for damage, in a directory and in a store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from tests.walstore.cli.conftest import SMALL, Cli, flip
from uploader import CloudTier, UploadSettings
from walstore import Wal
from walstore.care.verify.verifying import VerifyReport, verify_directory
from walstore.core.files.directory import PROMISE_NAME


def _stored_files(url: str, pattern: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).glob(pattern))


def test_a_clean_directory(cli: Cli, log: Path) -> None:
    done = cli("verify", log)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1].split() == ["problems", "0"]
    found = cli("verify", log, "--json").json
    assert found["ok"] is True
    assert (found["kind"], found["records"], found["segments"]) == ("directory", 100, 1)
    assert (found["head"], found["limit"]) == (1, 101)
    assert (found["problem_count"], found["problems"]) == (0, [])


def test_a_damaged_directory(cli: Cli, damaged: Path) -> None:
    (segment,) = damaged.glob("*.wal")
    done = cli("verify", damaged)
    assert done.code == 2
    assert f"{segment} at byte" in done.err
    assert "is damaged" in done.err
    found = cli("verify", damaged, "--json").json
    assert found["ok"] is False
    assert found["problems"][0]["path"] == str(segment)
    assert isinstance(found["problems"][0]["position"], int)


def test_a_damaged_copy(cli: Cli, log: Path) -> None:
    """Of a replicated log: what helps is not a repair."""
    (log / PROMISE_NAME).write_bytes(b"garbage")
    done = cli("verify", log)
    assert (done.code, f"{log / PROMISE_NAME}: the promise" in done.err) == (2, True)
    assert "a copy of a replicated log: empty the directory" in done.err


def test_a_clean_store(cli: Cli, stored: str) -> None:
    done = cli("verify", stored)
    assert (done.code, done.err) == (0, "")
    found = cli("verify", stored, "--json").json
    assert (found["ok"], found["kind"], found["location"]) == (True, "store", stored)
    assert (found["records"], found["fragments"], found["problem_count"]) == (100, 1, 0)
    assert len(found["setsum"]) == 64


def test_a_damaged_fragment(cli: Cli, stored: str) -> None:
    (fragment,) = _stored_files(stored, "log/*/*.parquet")
    flip(fragment, 100)
    done = cli("verify", stored)
    assert done.code == 2
    assert fragment.name in done.err
    found = cli("verify", stored, "--json").json
    assert (found["ok"], found["problem_count"]) == (False, 1)
    assert fragment.name in found["problems"][0]["path"]


def test_a_damaged_manifest(cli: Cli, stored: str) -> None:
    (manifest,) = _stored_files(stored, "manifest/MANIFEST")
    manifest.write_bytes(manifest.read_bytes()[:50])
    done = cli("verify", stored)
    assert done.code == 2
    assert "MANIFEST" in done.err


def test_more_problems_than_are_listed(cli: Cli, log_directory: Path) -> None:
    from walstore.care.verify.segment import MAX_PROBLEMS

    for number in range(MAX_PROBLEMS + 5):
        log_directory.mkdir(exist_ok=True)
        (log_directory / f"{number}.wal").touch()
    cli("append", log_directory / "x", stdin=b"a\n")
    (log_directory / "x").joinpath("00000000000000000001.wal").rename(
        log_directory / "00000000000000000001.wal"
    )
    done = cli("verify", log_directory)
    assert done.code == 2
    assert "and 5 more problems" in done.err


async def test_segments_that_are_deleted_meanwhile_are_no_problem(
    log_directory: Path, tmp_path: Path
) -> None:
    """Beside a writer that ships and deletes as fast as it writes."""
    reports: list[VerifyReport] = []
    ended = threading.Event()

    def verify_again_and_again() -> None:
        while not ended.is_set():
            reports.append(verify_directory(log_directory))

    settings = SMALL.replace(retention_bytes=0)
    tier = CloudTier("memory://verify", settings=UploadSettings(fragment_age_seconds=0.001))
    async with Wal.open(log_directory, settings=settings, tier=tier) as wal:
        await wal.append(b"first")
        async with asyncio.TaskGroup() as group:
            verifying = group.create_task(asyncio.to_thread(verify_again_and_again))
            while not verifying.done() and len({report.head for report in reports}) < 10:
                await wal.append_many([bytes(700)] * 50, durability="cloud")
            ended.set()
    assert [str(problem) for report in reports for problem in report.problems] == []
