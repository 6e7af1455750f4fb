"""The guard of conftest.py itself: what it must catch, and what it must leave alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

import walstore
from tests import guard
from walstore.core.files.posix import PosixFileSystem


@pytest.fixture
def descriptor(tmp_path: Path):
    """An open file of 100 bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    found = os.open(path, os.O_RDWR)
    yield found
    os.close(found)


CALLS = {
    "fsync": lambda fd: os.fsync(fd),
    "fdatasync": lambda fd: os.fdatasync(fd),
    "pread": lambda fd: os.pread(fd, 1, 0),
    "preadv": lambda fd: os.preadv(fd, [bytearray(1)], 0),
    "pwrite": lambda fd: os.pwrite(fd, b"a", 0),
    "pwritev": lambda fd: os.pwritev(fd, [b"a"], 0),
    "writev": lambda fd: os.writev(fd, [b"a"]),
    "posix_fallocate": lambda fd: os.posix_fallocate(fd, 0, 10),
    "ftruncate": lambda fd: os.ftruncate(fd, 10),
}


@pytest.mark.parametrize("name", CALLS)
async def test_durable_calls_fail_on_the_loop_and_pass_in_a_thread(name, descriptor) -> None:
    with pytest.raises(BlockingError, match=name):
        CALLS[name](descriptor)
    guard.violations.clear()

    await asyncio.to_thread(CALLS[name], descriptor)
    await asyncio.get_running_loop().run_in_executor(None, CALLS[name], descriptor)


@pytest.mark.parametrize("name", CALLS)
def test_durable_calls_pass_without_a_loop(name, descriptor) -> None:
    CALLS[name](descriptor)


async def test_our_own_code_may_not_even_open_a_file_on_the_loop(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")  # the test itself may
    for call in (
        lambda: PosixFileSystem().open(tmp_path / "file", "r"),
        lambda: PosixFileSystem().read(tmp_path / "file"),
        lambda: PosixFileSystem().list(tmp_path),
        lambda: PosixFileSystem().make_directory(tmp_path / "new"),
        lambda: PosixFileSystem().free_bytes(tmp_path),
        lambda: PosixFileSystem().lock(tmp_path / "lock", "me"),
        lambda: PosixFileSystem().cell(tmp_path / "cell", 64),
    ):
        with pytest.raises(BlockingError):
            call()
    guard.violations.clear()


def test_who_runs_the_loop_is_a_caller_too(tmp_path: Path) -> None:
    """Each time it runs, also if it is the same loop."""

    async def look() -> None:
        os.stat(tmp_path)

    def run_from(path: str) -> None:
        exec(compile("loop.run_until_complete(look())", path, "exec"), {"loop": loop, "look": look})

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        run_from("/elsewhere.py")
        with pytest.raises(BlockingError, match=r"os\.stat"):
            run_from(walstore.__file__)
        run_from("/elsewhere.py")
    guard.violations.clear()


async def test_a_swallowed_error_is_remembered(descriptor) -> None:
    with contextlib.suppress(Exception):
        os.fdatasync(descriptor)
    assert [str(found) for found in guard.violations] == ["Blocking call to os.fdatasync"]
    guard.violations.clear()


async def test_sleeping_is_left_to_the_tests() -> None:
    time.sleep(0.0)  # counts only below walstore and uploader


FAILING_TESTS = """
import asyncio, contextlib, os

async def test_blocks(tmp_path):
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    with contextlib.suppress(Exception):
        os.fdatasync(fd)
    os.close(fd)

async def test_blocks_in_a_thread(tmp_path):
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    await asyncio.to_thread(os.fdatasync, fd)
    os.close(fd)

async def _fail():
    raise RuntimeError("nobody sees me")

async def test_loses_a_task():
    task = asyncio.create_task(_fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
"""


@pytest.mark.slow
def test_the_verdict_of_a_whole_run(tmp_path: Path) -> None:
    """Plugins, fixtures and result, in a pytest of its own."""
    (tmp_path / "test_failing.py").write_text(FAILING_TESTS)
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml"]
    command += ["-p", "no:cacheprovider", str(tmp_path / "test_failing.py")]
    result = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    failed = re.findall(r"^ERROR \S*::(\w+)", result.stdout, re.MULTILINE)
    assert failed == ["test_blocks", "test_loses_a_task"]
