"""docs/repair.md: its commands run and print what the page says, and it explains every step and message."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from walstore.care.repair.plan import RepairKind

PAGE = (Path(__file__).parents[3] / "docs" / "repair.md").read_text()
SOURCES = Path(__file__).parents[3] / "walstore"


def _run(command: list[str], directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_run_in_order(tmp_path: Path) -> None:
    """Lines that follow a block directly are among what it prints."""
    found = re.findall(r"```(sh|python)\n(.*?)```\n(?:\n```\n(.*?)```)?", PAGE, re.DOTALL)
    assert len(found) == 7
    for language, code, output in found:
        shell = (
            ["bash", "-eu", "-o", "pipefail", "-c"] if language == "sh" else [sys.executable, "-c"]
        )
        printed = _run([*shell, code], tmp_path).splitlines()
        missing = [line for line in output.splitlines() if line not in printed]
        assert not missing, (missing, printed)


def test_every_step_is_in_the_table() -> None:
    steps = PAGE.partition("| step |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", steps, re.MULTILINE) == [str(k) for k in RepairKind]


def test_the_messages_are_those_of_the_program() -> None:
    """Each quoted message, up to its first number, stands in the sources."""
    texts = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    sources = re.sub(r'"\s*\n\s*f?"', "", texts)
    table = PAGE.partition("| message |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        for message in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
            for part in re.split(r"\[A, B\)|\b[NM]\b|…", message):
                assert part.strip() in sources, message
