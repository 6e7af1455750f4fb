"""Options of ``df.write.format("walstore")`` and ``writeStream``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from uploader import Layout
from uploader.partitioned import SinkSettings
from uploader.partitioned.partitions import MOST_PARTITIONS
from uploader.partitioned.sink_settings import FRAGMENT_BYTES
from uploader.partitioned.write_id import check_query
from walstore import InvalidSettingsError
from walstore.spark.options import Location, Options

BATCH_OPTIONS: Final = (
    "path",
    "partitions",
    "partitionBy",
    "queryId",
    "epoch",
    "layout",
    "fragmentBytes",
)
"""Every option of a batch write, except those that begin with ``store.``."""
STREAM_OPTIONS: Final = (
    *(name for name in BATCH_OPTIONS if name != "epoch"),
    "checkpointLocation",
)
"""Every option of a stream. Spark itself uses the checkpoint's location, and numbers the micro-batches."""

_BY: Final = ("key", "column", "task")
_LEAST_FRAGMENT_BYTES: Final = 1024
_MOST_FRAGMENT_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where rows are written, and how."""

    location: Location
    partitions: int | None = None
    """Number of logs; None keeps the existing number, or makes one."""
    partition_by: str | None = None
    """``key``, ``column`` or ``task``; None chooses by the columns."""
    query: str | None = None
    """Name of a write that takes effect once, however often it is run."""
    epoch: int = 0
    """Number of the write among those of that name; one older than the newest is not written."""
    layout: Layout | None = None
    """Layout of new logs."""
    fragment_bytes: int = FRAGMENT_BYTES

    @property
    def settings(self) -> SinkSettings:
        """How rows are staged and published."""
        return SinkSettings(layout=self.layout, fragment_bytes=self.fragment_bytes)


def parse_sink_options(options: Mapping[str, str], known: Sequence[str]) -> SinkOptions:
    """Return the checked options; InvalidSettingsError names the option and its valid values."""
    given = Options(options, known)
    location = given.location(
        "name the place to write to: .save('s3://bucket/prefix') or .save('file:///directory')",
        not_a_store="rows go to logs in an object store: s3://bucket/prefix or file:///directory; a log "
        "directory has one writer, which is not Spark",
    )
    layout = given.word("layout", ("swap", "chain", "any"), default="any")
    query = given.text("queryId")
    epoch = given.number("epoch", low=0)
    if epoch is not None and query is None:
        raise InvalidSettingsError("epoch counts the writes of a queryId: give both, or neither")
    partition_by = given.text("partitionBy")
    return SinkOptions(
        location=location,
        partitions=_partitions(given),
        partition_by=None
        if partition_by is None
        else given.word("partitionBy", _BY, default="task"),
        query=None if query is None else check_query(query),
        epoch=epoch or 0,
        layout=None if layout == "any" else cast(Layout, layout),
        fragment_bytes=_fragment_bytes(given),
    )


def _partitions(given: Options) -> int | None:
    found = given.number("partitions", low=1)
    if found is not None and found > MOST_PARTITIONS:
        raise InvalidSettingsError(f"partitions must be 1 to {MOST_PARTITIONS}, not {found}")
    return found


def _fragment_bytes(given: Options) -> int:
    found = given.number("fragmentBytes", low=_LEAST_FRAGMENT_BYTES, default=FRAGMENT_BYTES)
    if found > _MOST_FRAGMENT_BYTES:
        raise InvalidSettingsError(f"fragmentBytes must be at most {_MOST_FRAGMENT_BYTES}")
    return found
