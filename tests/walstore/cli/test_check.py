"""walstore check: what an operator wants of a log, as an exit code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from uploader import CloudTier
from walstore import Wal


async def _fill(path: Path, *, tier: str | None = None) -> None:
    async with Wal.open(path, tier=None if tier is None else CloudTier(tier)) as wal:
        await wal.append_many([b"v"] * 10)
        await (await wal.cursor("report")).commit(3)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    asyncio.run(_fill(tmp_path / "log"))
    return tmp_path / "log"


def test_limits(cli: Cli, log: Path) -> None:
    for options, problem in (
        ((), None),
        (("--max-lag", "8"), None),
        (("--max-lag", "7"), "cursor 'report' is 8 records behind"),
        (("--max-age", "1000"), None),
        (("--max-age", "0"), "the newest record is"),
        (("--min-free-bytes", "1"), None),
        (("--min-free-bytes", str(1 << 62)), "are free"),
        (("--max-upload-lag", "0"), "it is shipped nowhere"),
        (("--writer",), "no program has it open"),
    ):
        with case(options):
            done = cli("check", str(log), *options)
            assert done.code == (0 if problem is None else 1)
            assert done.lines[-1] == ("check: ok" if problem is None else "check: failed")
            assert (problem or "") in done.err
            assert bool(done.err) == (problem is not None)


def test_json(cli: Cli, log: Path) -> None:
    done = cli("check", str(log), "--max-lag", "0", "--writer", "--json")
    found = json.loads(done.out)
    assert done.code == 1
    assert found["cursors"] == {"report": 8}
    assert len(found["problems"]) == 2
    assert (found["ok"], found["limit"]) == (False, 11)


async def test_beside_a_writer(cli: Cli, log: Path) -> None:
    async with Wal.open(log) as wal:
        await wal.append(b"v")
        done = await asyncio.to_thread(cli, "check", str(log), "--writer", "--max-age", "100")
    assert done.code == 0, done


def test_an_empty_log_is_too_old(cli: Cli, tmp_path: Path) -> None:
    async def make() -> None:
        async with Wal.open(tmp_path / "log"):
            pass

    asyncio.run(make())
    assert cli("check", str(tmp_path / "log")).code == 0
    assert "it has no records" in cli("check", str(tmp_path / "log"), "--max-age", "9").err


def test_a_cursor_that_cannot_be_read(cli: Cli, log: Path) -> None:
    (damaged,) = (path for path in (log / "cursors").iterdir() if path.name.startswith("report"))
    damaged.write_bytes(b"nonsense")
    done = cli("check", str(log))
    assert done.code == 1
    assert "cursor 'report' cannot be read" in done.err


def test_records_that_are_missing(cli: Cli, log: Path) -> None:
    segment = max(log.glob("*.wal"))
    content = segment.read_bytes()
    segment.write_bytes(content[: len(content) // 8])
    done = cli("check", str(log))
    assert done.code in {1, 2}
    assert "missing" in done.err or "damaged" in done.err


def test_a_store_and_what_is_shipped_there(cli: Cli, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(_fill(tmp_path / "log", tier=url))
    done = cli("check", str(tmp_path / "log"), "--max-upload-lag", "0", "--json")
    assert (done.code, json.loads(done.out)["upload_lag"]) == (0, 0)
    done = cli("check", url, "--max-age", "1000", "--json")
    assert (done.code, json.loads(done.out)["limit"]) == (0, 11)
    assert "it has no disk here" in cli("check", url, "--min-free-bytes", "1").err
