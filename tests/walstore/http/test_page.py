"""The commands of docs/http.md answer what the page says."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.walstore.http.conftest import Served

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
SERVER = "http://127.0.0.1:7421"


def commands() -> list[tuple[str, str]]:
    """Return each command of the page with what it prints."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for part in block.split("$ ")[1:]:
            command, _, printed = part.partition("\n")
            if command.startswith("curl"):
                found.append((command, printed))
    return found


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl(served: Served) -> None:
    found = commands()
    assert len(found) > 10
    for command, printed in found:
        here = command.replace("curl", "curl -s", 1).replace(SERVER, served.server.addresses[0])
        done = await asyncio.to_thread(
            subprocess.run, here, shell=True, capture_output=True, text=True, check=True
        )
        assert done.stdout.replace("\r", "").rstrip("\n") == printed.rstrip("\n"), command
