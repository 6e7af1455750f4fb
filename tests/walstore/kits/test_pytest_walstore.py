"""The fixtures of ``pytest_walstore.py``, in projects of their own: a pytest in another process runs each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ASYNCIO = ["-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function"]
TESTS = """
import pytest
import walstore
from walstore.testing import MemoryFileSystem

async def test_a_log(wal, tmp_path):
    assert await wal.append(b"1") == 1
    assert not wal.path.exists() and wal.path == tmp_path / "log"

async def test_it_is_empty_each_time(wal):
    assert wal.tail == 1
    await wal.append(b"1")

async def test_a_server(wal_server, wal):
    async with walstore.connect(wal_server) as remote:
        assert await remote.append(b"1") == 1
    assert wal.tail == 2

def test_a_place_alone(wal_bucket, wal_clock, wal_file_system):
    assert wal_bucket.startswith("memory://")
    assert wal_clock.monotonic() == 0
    assert isinstance(wal_file_system, MemoryFileSystem)

async def test_a_bucket(wal_bucket):
    from walstore.cloud import CloudLog, CloudWriter, WriterSettings
    async with CloudWriter.open(wal_bucket, settings=WriterSettings(interval_seconds=0)) as log:
        await log.append(b"1")
    async with CloudLog.open(wal_bucket) as log:
        assert log.limit == 2

async def test_time(wal, wal_clock):
    await wal.append(b"1")
    assert await wal.timestamp_at(1) == wal_clock.now_us()
    wal_clock.advance(60)
    await wal.append(b"2")
    assert await wal.timestamp_at(2) - await wal.timestamp_at(1) == 60_000_000
"""


def run(directory: Path, text: str, *options: str, conftest: str = "") -> str:
    """Run a test file; return what pytest says."""
    (directory / "test_it.py").write_text(text)
    (directory / "conftest.py").write_text(conftest)
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "-p",
            "pytest_walstore",
            "-p",
            "no:cacheprovider",
        ],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("marks", "options"),
    [
        ("pytestmark = pytest.mark.asyncio", [*ASYNCIO, "-o", "asyncio_mode=strict"]),
        ("", [*ASYNCIO, "-o", "asyncio_mode=auto"]),
        (
            "pytestmark = pytest.mark.asyncio(loop_scope='session')",
            [*ASYNCIO[:3], "asyncio_default_fixture_loop_scope=session"],
        ),
        ("pytestmark = pytest.mark.anyio", ["-p", "anyio.pytest_plugin"]),
    ],
    ids=["strict", "auto", "session", "anyio"],
)
def test_the_fixtures_in_each_mode(tmp_path: Path, marks: str, options: list[str]) -> None:
    backend = "import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"
    text = TESTS + f"\n{marks}\n"
    if "asyncio" in marks:
        text = text.replace(
            "def test_a_place", "@pytest.mark.filterwarnings('ignore')\ndef test_a_place"
        )
    out = run(tmp_path, text, *options, conftest=backend)
    assert " 6 passed" in out, out


def test_a_project_chooses_settings_and_place(tmp_path: Path) -> None:
    conftest = """
import pytest
@pytest.fixture
def wal_file_system(): return None
@pytest.fixture
def wal_settings():
    from walstore import Settings
    return Settings(durability="memory")
"""
    text = """
import pytest
@pytest.mark.asyncio
async def test_a_log(wal):
    assert wal.path.is_dir() and wal.settings.durability == "memory"
"""
    out = run(tmp_path, text, *ASYNCIO, conftest=conftest)
    assert " 1 passed" in out, out


def test_nothing_is_imported_before_a_test_asks(tmp_path: Path) -> None:
    text = """
import sys
def test_nothing():
    assert "pytest_walstore" in sys.modules
    assert not {"walstore", "uploader"} & sys.modules.keys()
def test_a_clock(wal_clock):
    assert "walstore" in sys.modules and "uploader" not in sys.modules
"""
    out = run(tmp_path, text)
    assert " 2 passed" in out, out
