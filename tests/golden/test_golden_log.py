"""A log of version 1 stays readable, file by file. See regenerate_log.py for what it holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden.regenerate_log import DIRECTORY, expected
from walstore import Wal
from walstore.checkpoint import CELL_FILE_NAME, FILE_NAME
from walstore.verify.verifying import verify_directory
from walstore.view import LogView


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy that may be opened for writing."""
    return Path(shutil.copytree(DIRECTORY, tmp_path / "log"))


def test_the_files_are_there() -> None:
    names = sorted(path.name for path in DIRECTORY.iterdir())
    assert names == [
        "00000000000000000001.wal",
        "00000000000000000005.wal",
        "00000000000000000007.wal",
        FILE_NAME,
        CELL_FILE_NAME,
    ]


def test_it_reads_without_its_lock() -> None:
    view = LogView.open(DIRECTORY)
    assert (view.head, view.durable_limit, view.epoch) == (1, 8, 2)
    assert [record for batch in view.batches() for record in batch] == expected()


def test_nothing_is_wrong_with_it() -> None:
    assert not verify_directory(DIRECTORY).problems


@pytest.mark.parametrize("missing", [None, FILE_NAME, CELL_FILE_NAME])
async def test_it_opens_and_goes_on(copy: Path, missing: str | None) -> None:
    if missing is not None:
        (copy / missing).unlink()
    async with Wal.open(copy) as wal:
        assert [record async for record in wal.reader(follow=False)] == expected()
        assert await wal.append(b"new") == 8
