"""Syncing what Spark wrote: every file system once, and an error where a disk has one."""

from __future__ import annotations

from pathlib import Path

from walstore.spark.sidecar.checkpoint import sync_file_systems


def test_directories_that_are_there_and_such_that_will_be(tmp_path: Path):
    sync_file_systems([str(tmp_path), str(tmp_path / "not" / "yet")])
    sync_file_systems([])
