"""What builds wal3 says so when it cannot, and leaves alone what need not be built again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.wal3 import build
from tests.wal3.build import CANNOT, EDITS, CannotBuildError, ChangedError, Edit


@pytest.mark.parametrize("chroma", ["", "/"])
def test_without_its_repository_the_tests_are_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chroma: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["build.py", "run", chroma, "false"])
    assert build.main() == CANNOT
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("no wal3 here: ")


def test_without_cargo_they_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuildError, match="cargo"):
        build.build(tmp_path)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.what)
def test_an_edit_that_does_not_fit_is_told(edit: Edit) -> None:
    with pytest.raises(ChangedError, match=edit.path):
        edit.apply({edit.path: b"fn main() {}"})
    with pytest.raises(ChangedError, match=edit.path):
        edit.apply({})


def test_what_is_there_already_keeps_its_time(tmp_path: Path) -> None:
    build.lay_out({"Cargo.lock": b"1", "same": b"1", "other": b"1", "gone/file": b"1"}, tmp_path)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    build.lay_out({"Cargo.lock": b"2", "same": b"1", "other": b"2", "new/file": b"1"}, tmp_path)
    kept = {
        path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_mtime == 1
    }
    assert kept == {"Cargo.lock", "same"}
    assert (tmp_path / "other").read_bytes() == b"2"
    assert (tmp_path / "new" / "file").is_file()
    assert not (tmp_path / "gone" / "file").exists()
