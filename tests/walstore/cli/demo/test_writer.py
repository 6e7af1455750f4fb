"""The data that the demo appends: samples of this machine, and lines of source files."""

from __future__ import annotations

import json
import os
import sysconfig
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import msgpack
import pytest

from walstore.cli.demo.checks import STREAMS
from walstore.cli.demo.writer import MAX_PROCESSES, DemoJob, sample, texts


@pytest.mark.parametrize("stream", STREAMS[:-3])
def test_samples_are_of_this_machine(stream: str) -> None:
    first, second = (msgpack.unpackb(sample(stream)) for _ in range(2))
    assert 0 < first["at_ns"] < second["at_ns"]
    rows = first[stream]
    assert rows
    assert all(isinstance(word, int | str) for row in rows for word in row)
    names = {row[0]: row for row in rows}
    if stream == "cpu":
        assert (
            len([name for name in names if str(name).startswith("cpu")])
            == (os.cpu_count() or 0) + 1
        )
    if stream == "memory":
        assert names["MemTotal:"][1] > names["MemFree:"][1] > 0
    if stream == "processes":
        assert len(rows) <= MAX_PROCESSES


def _source_files_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = dict.fromkeys(("purelib", "platlib", "stdlib"), str(directory))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: places)


def test_text_has_no_end_and_empty_files_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "a.py").write_text("one\n\nthree")
    (tmp_path / "package" / "b.py").write_text("four\nfive\n")
    (tmp_path / "package" / "long.py").write_text("x\n" * 600)
    (tmp_path / "empty.py").touch()
    (tmp_path / "notes.txt").write_text("no")
    _source_files_in(tmp_path, monkeypatch)
    found = texts()
    once = list(islice(found, 5))
    assert sorted(once, key=len) == [
        [b"four", b"five"],
        [b"one", b"", b"three"],
        [b"x"] * 88,
        [b"x"] * 256,
        [b"x"] * 256,
    ]
    assert list(islice(found, 5)) == once


def test_no_text_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _source_files_in(tmp_path, monkeypatch)
    with pytest.raises(FileNotFoundError, match="no Python source files"):
        next(texts())


def test_a_job_is_passed_as_json() -> None:
    job = DemoJob(directory="/d", store_url="file:///s", seconds=1.5)
    assert DemoJob(**json.loads(json.dumps(asdict(job)))) == job
