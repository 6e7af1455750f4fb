"""walstore bench: measures every part, and leaves nothing behind."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli
from walstore.cli import bench

PARTS = [
    "write + fdatasync",
    "1 producer",
    "8 producers",
    "append_many, 1000 records",
    "catching up",
]


@pytest.mark.slow
def test_all_parts(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", tmp_path, "--seconds", "0.2", "--producers", 8)
    assert (done.code, done.err) == (0, "")
    assert len(done.lines) == 1 + len(PARTS)
    for line, part in zip(done.lines[1:], PARTS, strict=True):
        assert line.startswith(part)
    assert list(tmp_path.iterdir()) == []


def test_as_json(cli: Cli, tmp_path: Path) -> None:
    found = cli("bench", tmp_path, "--seconds", "0.2", "--record-bytes", 0, "--json").json
    assert (found["producers"], found["record_bytes"]) == (64, 0)
    results = found["results"]
    assert len(results) == len(PARTS)
    assert all(one["records"] > 0 and one["records_per_second"] > 0 for one in results)
    assert all(one["p50_ms"] <= one["p99_ms"] for one in results[:-1])
    assert results[-1]["p50_ms"] is None


def test_a_log_is_not_written_into(cli: Cli, log: Path) -> None:
    done = cli("bench", log)
    assert done.code == 1
    assert "holds a log" in done.error
    assert not list(log.glob("walstore-bench*"))


def test_mistakes(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", tmp_path / "nowhere")
    assert done.code == 3
    assert done.error == f"there is no directory {tmp_path / 'nowhere'}"
    assert cli("bench", tmp_path, "--producers", "0").code == 1
    assert cli("bench", tmp_path, "--seconds", "-1").code == 1


def test_nothing_is_left_behind_by_a_failure(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(bench, "measure_all", fail)
    done = cli("bench", tmp_path)
    assert done.code == 1
    assert "no space left" in done.error
    assert list(tmp_path.iterdir()) == []
