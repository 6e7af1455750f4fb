"""Spark's checkpoint and the table next to it: what has landed durably, and whether they belong together.

The checkpoint is authoritative for what has landed: Spark writes ``offsets/N`` before batch N begins and
``commits/N`` when it is in the table; it repeats a batch without a commit. Reads through Spark's own file
systems, wherever the checkpoint is; writes nothing.

Spark never syncs a file. A cursor that moves lets records be collected. On an object store or HDFS what Spark
wrote is durable by then; on a local disk it is in the page cache, and a power loss would destroy the only
copy. Therefore :func:`sync_file_systems`.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from walstore import FormatVersionError, InvalidSettingsError, StorageUnavailableError
from walstore.spark.bounds import LogName, from_json, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


VERSION: Final = "v1"
_SINK_LOG: Final = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """The newest batch that is committed to the table."""

    batch: int
    positions: dict[LogName, int]
    """For each log the offset after its last record in the table."""


class SparkFolder:
    """A directory in one of Spark's file systems; read-only."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        """Read nothing yet."""
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 - PySpark has no public way to files
        self._path = self._jvm.org.apache.hadoop.fs.Path(place)
        self._files = self._path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in it, or in a folder of it; none if the folder does not exist."""
        path = self._under(folder)
        if not self._files.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(path))

    def read(self, name: str) -> str:
        """Return a small file as text."""
        stream = self._files.open(self._under(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _under(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name) if name else self._path


class QueryCheckpoint:
    """The checkpoint of a query with one source."""

    def __init__(self, folder: SparkFolder) -> None:
        """Read from ``folder``."""
        self._folder = folder

    def is_begun(self) -> bool:
        """Return whether a query has used it."""
        return "metadata" in self._folder.names()

    def check_logs(self, commit: LandedBatch, logs: Collection[LogName]) -> None:
        """Raise InvalidSettingsError if none of the ``logs`` has landed with it."""
        if logs and not commit.positions.keys() & set(logs):
            there = ", ".join(show(name) for name in sorted(commit.positions))
            raise InvalidSettingsError(
                f"the checkpoint belongs to {there}: name the table of this log, or a new one"
            )

    def commit(self) -> LandedBatch | None:
        """Return the newest committed batch, or None."""
        batches = [int(name) for name in self._folder.names("commits") if name.isdigit()]
        if not batches:
            return None
        newest = max(batches)
        return LandedBatch(newest, parse_offset_log(self._folder.read(f"offsets/{newest}")))


def parse_offset_log(text: str) -> dict[LogName, int]:
    """Return the offsets in a file ``offsets/N``: a version, a line for the batch, and one for each source.

    FormatVersionError for another version, InvalidSettingsError for the file of another query.
    """
    version, *lines = text.splitlines()
    if version != VERSION:
        raise FormatVersionError(
            "the checkpoint was written by another version of Spark's offset log",
            path="offsets",
            found=version,
            supported=VERSION,
        )
    if len(lines) != 2:
        raise InvalidSettingsError(
            f"the checkpoint is that of a query with {len(lines) - 1} sources, not of a sidecar; name "
            "another one"
        )
    try:
        found = json.loads(lines[1])
    except ValueError:
        found = lines[1]
    return from_json(found)


def check_parquet_table(table: SparkFolder, place: str, checkpoint: QueryCheckpoint) -> None:
    """Raise InvalidSettingsError unless the table matches the checkpoint.

    Spark's file sink skips batches whose numbers the table has, by any query, and readers see only what
    it wrote. With another table's checkpoint, or without its own, records would be lost.
    """
    names = table.names()
    newest = max(_batches(table.names(_SINK_LOG)), default=-1)
    commit = checkpoint.commit()
    landed = -1 if commit is None else commit.batch
    # The batch after the last commit may be in the table, if Spark was killed before the commit.
    if newest > (landed + 1 if checkpoint.is_begun() else -1):
        raise InvalidSettingsError(
            f"the table at {place} has {newest + 1} batches and the checkpoint knows of {landed + 1}: name "
            "the checkpoint that the table was made with, or another table"
        )
    if landed > newest:
        raise InvalidSettingsError(
            f"the checkpoint has landed {landed + 1} batches and the table at {place} has {newest + 1}: "
            "name the table that it was made for, or another checkpoint"
        )
    if not checkpoint.is_begun():
        files = [name for name in names if not name.startswith(("_", "."))]
        if files:
            raise InvalidSettingsError(
                f"{place} holds files that no sidecar wrote ({files[0]}); name a new table"
            )


def _batches(names: Iterable[str]) -> list[int]:
    """Return the batches in the sink's log: files ``N``, and ``N.compact`` for all up to N."""
    words = [name.removesuffix(".compact") for name in names]
    return [int(word) for word in words if word.isdigit()]


def sync_file_systems(places: Iterable[str]) -> None:
    """Sync the file systems that contain these directories. Blocking.

    StorageUnavailableError if a disk fails; the directories may then not be durable.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # Linux has it
        os.sync()
        return
    synced: set[int] = set()
    for place in places:
        path = _existing(Path(place))
        try:
            device = path.stat().st_dev
            if device in synced:
                continue
            descriptor = os.open(path, os.O_RDONLY)
            try:
                if libc.syncfs(descriptor):
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), str(path))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageUnavailableError(f"cannot make {place} durable: {error}") from error
        synced.add(device)


def _existing(path: Path) -> Path:
    return next(found for found in (path, *path.parents) if found.exists())
