"""Options of ``format("walstore.collection")``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from uploader.versioned.names import check_name
from uploader.versioned.registration import check_lease
from uploader.versioned.schema import MAX_TIME
from walstore import InvalidSettingsError
from walstore.spark.options import NO_LIMIT, Budget, Location, Options

BATCH_OPTIONS: Final = ("path", "asOf", "minPartitions", "leaseSeconds")
"""Every option of a batch read, except those that begin with ``store.``."""
STREAM_OPTIONS: Final = (
    "path",
    "reader",
    "startingFrom",
    "maxTimesPerTrigger",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "leaseSeconds",
    "pollIntervalMs",
)
"""Every option of a streaming read."""
READER: Final = "reader"
"""The option that a stream has and no batch read: Spark does not say which of them it is going to do."""
APPEND_OPTIONS: Final = ("path", "writer", "lower", "upper")
"""Every option of a batch write."""
SINK_OPTIONS: Final = ("path", "writer", "start", "checkpointLocation")
"""Every option of a streaming write. Spark itself uses the checkpoint's location."""

_LEASE_SECONDS: Final = 3600
_POLL_MS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionOptions:
    """What both reads have."""

    location: Location
    min_partitions: int = 1
    """A minimum that may be missed: a collection is only divided between row groups."""
    lease_seconds: float = float(_LEASE_SECONDS)
    """For at least so long the objects that were planned stay readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions(CollectionOptions):
    """What a batch reads."""

    as_of: int | None = None
    """The time as of which it is read; None for the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(CollectionOptions):
    """What a stream follows."""

    reader: str
    """The critical reader that holds what the query has not read."""
    starting: int | None = 0
    """The first time that is read, without a checkpoint; 0 for all, None for what comes later."""
    most: Budget = NO_LIMIT
    poll_seconds: float = _POLL_MS / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """Where updates are written."""

    location: Location
    writer: str = "main"
    """The shard."""
    lower: int | None = None
    """Of a batch: the first time; None for where the shard ends. Of a stream: the time of micro-batch 0."""
    upper: int | None = None


def parse_batch_options(options: Mapping[str, str]) -> ContentOptions:
    """Return the checked options of a batch read, or raise InvalidSettingsError."""
    given = Options(options, BATCH_OPTIONS)
    as_of = given.text("asOf")
    is_latest = as_of is None or as_of.strip().lower() == "latest"
    return ContentOptions(
        location=_location(given, "load"),
        min_partitions=given.number("minPartitions", low=1, default=1),
        lease_seconds=_lease(given),
        as_of=None if is_latest else _time(given, "asOf", "latest, or a time"),
    )


def parse_stream_options(options: Mapping[str, str]) -> ChangeOptions:
    """Return the checked options of a streaming read, or raise InvalidSettingsError."""
    given = Options(options, STREAM_OPTIONS)
    reader = given.text(READER)
    if not reader:
        raise InvalidSettingsError(
            "a stream needs the option reader: the name of a critical reader, which keeps the changes that "
            "the query has not read; release it when the query is given up for ever"
        )
    text = (given.text("startingFrom") or "earliest").strip().lower()
    starting: int | None = {"earliest": 0, "latest": None}.get(text, -1)
    if starting == -1:
        starting = _time(given, "startingFrom", "earliest, latest, or a time")
    return ChangeOptions(
        location=_location(given, "load"),
        min_partitions=given.number("minPartitions", low=1, default=1),
        lease_seconds=_lease(given),
        reader=check_name(reader, "reader"),
        starting=starting,
        most=Budget(
            given.number("maxRowsPerTrigger", low=1),
            given.number("maxBytesPerTrigger", low=1),
            given.number("maxTimesPerTrigger", low=1),
        ),
        poll_seconds=given.number("pollIntervalMs", low=1, default=_POLL_MS) / 1000,
    )


def parse_write_options(options: Mapping[str, str], known: Sequence[str]) -> UpdateOptions:
    """Return the checked options of a write, or raise InvalidSettingsError."""
    given = Options(options, known)
    is_stream = "start" in known
    lower = _number(given, "start" if is_stream else "lower")
    upper = None if is_stream else _number(given, "upper")
    if not is_stream and (lower is None) != (upper is None):
        raise InvalidSettingsError(
            "give lower and upper, or neither: then the rows get the time at which the shard ends"
        )
    if lower is not None and upper is not None and lower >= upper:
        raise InvalidSettingsError(f"lower must be before upper, not {lower} and {upper}")
    return UpdateOptions(
        location=_location(given, "save"),
        writer=check_name(given.text("writer") or "main", "writer"),
        lower=lower,
        upper=upper,
    )


def _location(given: Options, verb: str) -> Location:
    return given.location(
        f"name the collection: .{verb}('s3://bucket/prefix') or .{verb}('file:///directory')",
        not_a_store="a collection is in an object store: s3://bucket/prefix or file:///directory, not "
        "{path!r}",
    )


def _lease(given: Options) -> float:
    return check_lease(given.number("leaseSeconds", low=1, default=_LEASE_SECONDS))


def _time(given: Options, name: str, what: str) -> int:
    text = (given.text(name) or "").strip()
    if not (text.isascii() and text.isdigit()) or int(text) >= MAX_TIME:
        raise InvalidSettingsError(f"{name} must be {what} from 0 to 2**64 - 2, not {text!r}")
    return int(text)


def _number(given: Options, name: str) -> int | None:
    found = given.number(name, low=0)
    if found is not None and found > MAX_TIME:
        raise InvalidSettingsError(f"{name} must be at most 2**64 - 1, not {found}")
    return found
