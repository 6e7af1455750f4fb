"""walstore soak: what it refuses, in one line, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("full",), 1, "full is not empty; the soak needs a directory of its own"),
        (("~/x",), 1, "~/x was not expanded by the shell"),
        (("",), 1, "the name of the log directory is empty"),
        (("memory://x",), 1, "a memory:// store is gone when this command ends"),
        (("http://host/x",), 1, "must begin with"),
        (
            ("file:///x", "--durability", "disk"),
            1,
            "--durability memory or disk are for directories",
        ),
        (("file:///x", "--tier", "file:///y"), 1, "--tier and --durability"),
        (("new", "--tier", "y"), 1, "--tier needs a store URL"),
        (("--minutes", "0"), 1, "--minutes"),
        (("--minutes", "nan"), 1, "--minutes"),
        (("--rate", "0.5"), 1, "--rate"),
        (("--kill-seconds", "-1"), 1, "--kill-seconds"),
        (("--layout", "ring"), 1, "--layout"),
    ],
)
def test_mistakes(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").write_text("x")
    done = cli("soak", *arguments)
    assert (done.code, done.out) == (code, b"")
    assert words in done.error
    assert [one.name for one in tmp_path.iterdir()] == ["full"]
