"""walstore bench: measures every part, and leaves nothing behind."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from walstore.cli import bench
from walstore.cli.measurement import MeasurePlan, measure_all

PARTS = [
    "write + fdatasync",
    "the same, growing file",
    "the same, blocks written before",
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


async def test_each_part_is_measured_once_at_least_however_slow_the_machine_is(
    tmp_path: Path,
) -> None:
    plan = MeasurePlan(tmp_path, seconds=1e-9, producers=3, record_bytes=1, has_steps=True)
    results = await measure_all(plan, lambda _: None)
    assert all(one.records > 0 for one in [*results.parts, *results.appends.values()])


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


def test_a_page_and_json(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "<page>.html"
    file.write_text("an older one")
    line = ("--seconds", "0.2", "--producers", 4, "--html", file, "--json")
    found = cli("bench", tmp_path, *line).json
    assert [one["name"].replace("4", "8") for one in found["results"]] == PARTS
    page = file.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg") == 3
    assert all(part in page for part in (f"{tmp_path}", "<th>4 producers</th>", ">256<", ">100 k<"))
    assert list(tmp_path.iterdir()) == [file]


def test_steps_are_those_that_are_not_measured_anyway_within_the_same_time() -> None:
    plan = MeasurePlan(Path("x"), seconds=5, producers=64, record_bytes=100, has_steps=True)
    by_producers, by_size = [(4, 100), (16, 100), (256, 100)], [1_000, 10_000, 100_000]
    assert plan.steps == [*by_producers, *((64, size) for size in by_size)]
    for seconds in (0.1, 5, 3600):
        plan = replace(plan, seconds=seconds)
        assert 4 * plan.part_seconds + 6 * plan.step_seconds == pytest.approx(seconds)
        assert plan.step_seconds <= 1
    assert replace(plan, producers=10_000).steps[-1] == (10_000, 1_000)
    assert replace(plan, has_steps=False).steps == []


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_measured(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure_all", None)
    file = tmp_path / "file"
    file.touch()
    nowhere, below = tmp_path / "nowhere" / "page.html", file / "page.html"
    for target, code, error in (
        (tmp_path, 1, f"is a directory: {tmp_path}"),
        (nowhere, 3, f"no such file or directory: {nowhere}"),
        (below, 3, f"not a directory: {below}"),
        ("/sys/page.html", 1, ": /sys/page.html"),
    ):
        with case(str(target)):
            done = cli("bench", tmp_path, "--html", target)
            assert (done.code, done.out) == (code, b"")
            assert done.error.endswith(error)
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_is_left_behind_by_a_failure(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("an older one")

    async def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(bench, "measure_all", fail)
    done = cli("bench", tmp_path, "--html", page)
    assert done.code == 1
    assert "no space left" in done.error
    assert list(tmp_path.iterdir()) == [page]
    assert page.read_text() == "an older one"
