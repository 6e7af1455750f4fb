"""Settings of a sidecar, checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

from walstore import InvalidSettingsError

DEFAULT_TRIGGER_SECONDS: Final = 10.0
DEFAULT_MAX_RECORDS: Final = 1_000_000

CHECKPOINT_NAME: Final = "_checkpoint"
"""Name of the checkpoint in a table's directory; readers of tables ignore names that begin with ``_``."""

PARTITION_COLUMNS: Final = ("stream", "topic", "partition", "date", "hour")
"""Columns that can partition a table; ``date`` and ``hour`` are derived from the record's time, in UTC."""

_CURSOR_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,100}")
_NOT_OF_NAMES: Final = re.compile(r"[^A-Za-z0-9]+")
_NAME_CHARS: Final = 40


class TableFormat(StrEnum):
    """How the table is stored."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"
    COLLECTION = "collection"
    """A versioned collection, which needs no Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Source, table and how to run. The constructor checks them; InvalidSettingsError."""

    location: str
    """A log's directory, or the URL of its store; with :attr:`subscribe`, the location of several logs."""
    table: str
    """Path or URL of the table; of an Iceberg table also its name in a catalog; URL of a collection."""
    checkpoint: str | None = None
    """Path or URL of Spark's checkpoint; by default in the table's directory, ``_checkpoint``."""
    table_format: TableFormat = TableFormat.PARQUET
    trigger_seconds: float = DEFAULT_TRIGGER_SECONDS
    """How often a batch begins, 0 or more: 0 is as soon as the last one has ended."""
    is_once: bool = False
    """Whether to end when everything that was in the logs at the start has landed."""
    max_records: int = DEFAULT_MAX_RECORDS
    """Most records of a batch, all logs together; 1 or more."""
    subscribe: str | None = None
    """Names of several logs below the location, with commas."""
    subscribe_pattern: str | None = None
    """Regular expression of the names of several logs below the location."""
    partition_by: Sequence[str] = ()
    """Partition columns of the table; some of :data:`PARTITION_COLUMNS`."""
    has_headers: bool = True
    """Whether the table has a column ``headers``."""
    cursor: str | None = None
    """Name of the cursor in each log; by default derived from the path of the checkpoint."""
    master: str | None = None
    """Spark's master; by default that of ``spark-submit``, or else this machine."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the Spark session."""
    envelope: str | None = None
    """What a record says; for a collection, which needs one."""

    def __post_init__(self) -> None:
        """Check what can be checked without I/O."""
        if not self.location or not self.table:
            raise InvalidSettingsError("a sidecar needs the log's location and the table's path")
        if not self.trigger_seconds >= 0:
            raise InvalidSettingsError(
                f"a trigger takes 0 seconds or more, not {self.trigger_seconds}"
            )
        if self.max_records < 1:
            raise InvalidSettingsError(
                f"a batch has one record or more at the most, not {self.max_records}"
            )
        if self.subscribe is not None and self.subscribe_pattern is not None:
            raise InvalidSettingsError("name the logs or give a pattern, not both")
        strange = [name for name in self.partition_by if name not in PARTITION_COLUMNS]
        if strange or len(set(self.partition_by)) != len(self.partition_by):
            raise InvalidSettingsError(
                f"a table can be divided by {', '.join(PARTITION_COLUMNS)}, each once; not by "
                f"{', '.join(self.partition_by)}"
            )
        if self.cursor is not None and not _CURSOR_NAME.fullmatch(self.cursor):
            raise InvalidSettingsError(
                "a cursor's name is made of letters A to Z, digits and '_', at most 100,"
                f" not {self.cursor!r}"
            )
        if self.table_format is TableFormat.ICEBERG and self.checkpoint is None:
            raise InvalidSettingsError(
                "an Iceberg table needs a checkpoint outside of its directory, where Iceberg removes "
                "what it does not know: name one"
            )
        self._check_collection()

    def _check_collection(self) -> None:
        """Refuse what has no effect: on a collection what is Spark's, on a table an envelope."""
        if self.table_format is not TableFormat.COLLECTION:
            if self.envelope is not None:
                raise InvalidSettingsError(
                    "an envelope is for collections; a table has the records as they are"
                )
            return
        if self.envelope is None:
            raise InvalidSettingsError(
                "a collection needs an envelope, which tells what a record says: append, upsert or debezium"
            )
        of_spark = {
            "a checkpoint": self.checkpoint,
            "several logs": self.subscribe or self.subscribe_pattern,
            "partition columns": self.partition_by,
            "a table without headers": not self.has_headers,
            "a master": self.master,
            "settings of Spark": self.config,
        }
        given = [name for name, value in of_spark.items() if value]
        if given:
            raise InvalidSettingsError(
                f"{' and '.join(given)}: that is for tables; a collection is kept without Spark, from one log"
            )

    @property
    def is_named(self) -> bool:
        """Whether the table is given by its name in a catalog, not by its path; only for Iceberg."""
        return self.table_format is TableFormat.ICEBERG and "/" not in self.table

    @property
    def table_place(self) -> str:
        """The table's path, absolute, or its URL or name."""
        return self.table if self.is_named else _absolute(self.table)

    @property
    def checkpoint_place(self) -> str:
        """The checkpoint's path, absolute, or its URL."""
        if self.checkpoint is not None:
            return _absolute(self.checkpoint)
        return f"{self.table_place.rstrip('/')}/{CHECKPOINT_NAME}"

    @property
    def cursor_name(self) -> str:
        """The cursor's name: as given, or the same for the same checkpoint and for no other."""
        if self.cursor is not None:
            return self.cursor
        place = self.checkpoint_place
        of = self.table_place if self.checkpoint is None else place
        word = _NOT_OF_NAMES.sub("_", of.rstrip("/").rpartition("/")[2]).strip("_")
        digest = sha256(place.encode()).hexdigest()[:10]
        return f"sidecar_{word[:_NAME_CHARS]}_{digest}"

    @property
    def local_places(self) -> tuple[str, ...]:
        """Directories of table and checkpoint on this machine; none if both are elsewhere."""
        found = (local_path(place) for place in (self.table_place, self.checkpoint_place))
        return tuple(place for place in found if place is not None)


def local_path(place: str) -> str | None:
    """Return the path on this machine of a path or URL; None if it is elsewhere."""
    found = re.match(r"(?:file:(?://)?(?!//))?(/.*)", place)
    return None if found is None else found[1]


def _absolute(place: str) -> str:
    return place if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", place) else str(Path(place).absolute())
