"""Options of ``format("walstore")``: strings in, checked values out. Pure: no I/O, no Spark.

Names are those of Spark's Kafka source where it has one, and of Delta's where that has none. Option names are
case-insensitive; Spark passes them in lower case. Every error names the option and its valid values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, overload
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from walstore import InvalidSettingsError
from walstore.spark.bounds import (
    ENDING,
    STARTING,
    BoundNames,
    Bounds,
    Edge,
    TimeBound,
    parse_json_bounds,
)

_STORE_PREFIX: Final = "store."
DEFAULT_POLL_MS: Final = 500
DEFAULT_DISCOVERY_MS: Final = 30_000
DEFAULT_DELAY: Final = "15m"
"""``maxTriggerDelay``, as of Spark's Kafka source."""
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

SELECTORS: Final = ("subscribe", "subscribePattern", "assign")
"""Options that select among several logs; the caller gives at most one."""

KNOWN: Final = (
    "path",
    *SELECTORS,
    *STARTING.all,
    "startingOffsetsByTimestampStrategy",
    *ENDING.all,
    "stream",
    "pushdown",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "tier",
)
"""Every option of a batch read, except those that begin with ``store.``."""

STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "cursorName",
    "pollIntervalMs",
    "discoveryIntervalMs",
)
"""Options of a streaming read that a batch read does not have."""

STREAM_KNOWN: Final = (
    "path",
    *SELECTORS,
    *STARTING.all,
    "startingOffsetsByTimestampStrategy",
    *STREAM_ONLY,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "stream",
    "tier",
)
"""Every option of a streaming read, except those that begin with ``store.``."""


class Options:
    """The options of one read or write, checked against the known names."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        """Take the given options; InvalidSettingsError if one is not known.

        Those that begin with ``store.`` are always known; see :attr:`store`.
        """
        given = {name.lower(): value for name, value in options.items()}
        self.store = {
            name.removeprefix(_STORE_PREFIX): given.pop(name)
            for name in sorted(given)
            if name.startswith(_STORE_PREFIX)
        }
        """Parameters of the store's URL, by what follows the dot."""
        unknown = sorted(given.keys() - {name.lower() for name in known})
        if unknown:
            raise InvalidSettingsError(
                f"unknown option {', '.join(unknown)}; known are {', '.join(known)} and {_STORE_PREFIX}*"
            )
        self._given = given

    def text(self, name: str) -> str | None:
        """Return the given text, or None."""
        return self._given.get(name.lower())

    def one_of(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Return name and text of the option that is given; InvalidSettingsError if two are."""
        found = [(name, value) for name in names if (value := self.text(name)) is not None]
        if len(found) > 1:
            raise InvalidSettingsError(f"give {found[0][0]} or {found[1][0]}, not both")
        return found[0] if found else None

    @overload
    def number(self, name: str, *, low: int, default: int) -> int: ...

    @overload
    def number(self, name: str, *, low: int) -> int | None: ...

    def number(self, name: str, *, low: int, default: int | None = None) -> int | None:
        """Return a whole number of at least ``low``, or the default."""
        value = self.text(name)
        return default if value is None else _number(name, value, low=low)

    def flag(self, name: str, *, yes: str = "true", no: str = "false", default: bool) -> bool:
        """Return whether the value is the first of two words."""
        return self.word(name, (yes, no), default=yes if default else no) == yes

    def location(self, missing: str, *, not_a_store: str | None = None) -> Location:
        """Return where the option ``path`` leads.

        InvalidSettingsError that says ``missing`` without it, and ``not_a_store`` for a directory.
        """
        path = self.text("path")
        if not path:
            raise InvalidSettingsError(missing)
        found = parse_location(path, self.store)
        if not_a_store is not None and not found.is_store:
            raise InvalidSettingsError(not_a_store.format(path=path))
        return found

    def word(self, name: str, words: Sequence[str], *, default: str) -> str:
        """Return one of some words, in any case."""
        value = self.text(name)
        word = default if value is None else value.strip().lower()
        if word not in words:
            raise InvalidSettingsError(f"{name} must be {' or '.join(words)}, not {value!r}")
        return word


def _number(name: str, value: str, *, low: int) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or int(text) < low:
        raise InvalidSettingsError(f"{name} must be a whole number from {low}, not {value!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Location:
    """A location passed to ``load``."""

    text: str
    """A path, or a URL in which ``store.*`` options have become query parameters."""
    is_store: bool
    """Whether it is the URL of an object store."""
    topic: str
    """Name of the log: the last component of the path."""

    def child(self, name: str) -> Location:
        """Return the location of a log below this one: a subdirectory, or a longer prefix."""
        if not self.is_store:
            return Location(os.path.join(self.text, name), is_store=False, topic=_topic(name))  # noqa: PTH118
        bare, mark, query = self.text.partition("?")
        url = f"{bare.rstrip('/')}/{quote(name)}{mark}{query}"
        return Location(url, is_store=True, topic=_topic(name))


def parse_location(path: str, store: Mapping[str, str]) -> Location:
    """Return the location that ``path`` names.

    ``store`` contains the options ``store.*``, keyed by what follows the dot; they become query parameters
    of the URL. Raises InvalidSettingsError for a location that Spark's tasks could not open.
    """
    if "://" not in path:
        path = os.path.abspath(path)  # noqa: PTH100 - as the shell does, links kept
        if store:
            raise InvalidSettingsError(
                "options store.* go with a store URL; a log directory knows where it was shipped to"
            )
        return Location(path, is_store=False, topic=_topic(path))
    if path.startswith("s3a://"):  # Hadoop's name for the same location
        path = "s3" + path.removeprefix("s3a")
    parts = urlsplit(path)
    if parts.scheme == "memory":
        raise InvalidSettingsError(
            "Spark cannot read a memory:// store: it exists only in the process that made it"
        )
    if "@" in parts.netloc:
        raise InvalidSettingsError(
            "a URL cannot carry credentials; they come from the environment of driver and executors"
        )
    named = parse_qsl(parts.query, keep_blank_values=True)
    twice = sorted({name for name, _ in named} & store.keys())
    if twice:
        raise InvalidSettingsError(
            f"give {', '.join(twice)} in the URL or as an option store.*, not both"
        )
    url = path
    if store:
        bare = path.partition("?")[0]
        url = f"{bare}?{urlencode([*named, *store.items()])}"
    return Location(url, is_store=True, topic=_topic(unquote(parts.path)) or parts.netloc)


def _topic(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


class Budget(NamedTuple):
    """How much one micro-batch may take; None for no limit."""

    rows: int | None = None
    """Records or updates, all logs together."""
    size_bytes: int | None = None
    """Stored bytes, approximately, all logs together."""
    times: int | None = None
    """Times of a collection."""
    least_rows: int | None = None
    """Records for which a micro-batch of logs waits, all logs together."""


NO_LIMIT: Final = Budget()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which logs are read: the one at the location itself, or some of several below it."""

    names: tuple[str, ...] = ()
    """Names of logs, of partitioned logs, or of single partitions (``orders/1``)."""
    pattern: str | None = None
    """A regular expression that must match a log's whole name."""
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Topics, and partitions of each."""

    @property
    def is_whole(self) -> bool:
        """Whether the location is the log, or the partitioned log."""
        return not self.names and self.pattern is None and not self.assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What to read, and how, once or as a stream."""

    location: Location
    selection: Selection = field(default_factory=Selection)
    starting: Bounds = field(default_factory=Bounds)
    """Where a read starts; of a stream, without a checkpoint and a cursor."""
    needs_record: bool = True
    """Whether a starting time after the last record fails; else the read starts at the tail."""
    stream: str | None = None
    """The stream whose records are read; None for all records."""
    min_partitions: int = 1
    """A minimum that may be missed: partitions are cut only between fragments, or batches of a local file."""
    most_records: int | None = None
    """Most records of a task; None for any number."""
    fail_on_data_loss: bool = True
    """Whether trimmed records, or requested offsets that are not written, fail the read."""
    include_headers: bool = False
    use_tier: bool = True
    """Whether the older part of a local log is read from the store to which it was shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(CommonOptions):
    """What a batch reads."""

    ending: Bounds
    takes_filters: bool = False
    """Whether the filters that Spark passes may narrow the read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(CommonOptions):
    """What a stream follows."""

    most: Budget = NO_LIMIT
    """Limits of one micro-batch."""
    delay_seconds: float = 900.0
    """How long after the one before a micro-batch waits at most for ``most.least_rows``."""
    cursor: str | None = None
    """Name of the cursor that marks the start of the query and is moved behind it."""
    poll_seconds: float = DEFAULT_POLL_MS / 1000
    """Poll interval of an active log; it grows while the log is idle."""
    discovery_seconds: float = DEFAULT_DISCOVERY_MS / 1000
    """Interval at which new logs that match the pattern are discovered."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the checked options of a batch read, or raise InvalidSettingsError."""
    given = Options(options, KNOWN)
    ending = parse_bounds(given, ENDING, default=Edge.LATEST)
    if Edge.EARLIEST in (ending.every, *(ending.each or {}).values()):
        raise InvalidSettingsError("endingOffsets cannot be earliest (-2): nothing would be read")
    return ReadOptions(
        **_parse_common(given),
        ending=ending,
        takes_filters=given.flag("pushdown", yes="on", no="off", default=False),
    )


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Return the checked options of a streaming read, or raise InvalidSettingsError."""
    _refuse_endings(options)
    given = Options(options, STREAM_KNOWN)
    found = _parse_common(given)
    cursor = given.text("cursorName")
    if cursor is None and moves(found["starting"]):
        raise InvalidSettingsError(
            f"{found['starting'].option} must be resolved once and for all, and Spark asks again after a"
            " crash: name a cursor that holds the answer, with the option cursorName"
        )
    most = Budget(
        rows=given.number("maxOffsetsPerTrigger", low=1),
        size_bytes=given.number("maxBytesPerTrigger", low=1),
        least_rows=given.number("minOffsetsPerTrigger", low=1),
    )
    _check_least(given, most)
    return StreamOptions(
        **found,
        most=most,
        delay_seconds=_duration("maxTriggerDelay", given.text("maxTriggerDelay") or DEFAULT_DELAY),
        cursor=cursor,
        poll_seconds=given.number("pollIntervalMs", low=1, default=DEFAULT_POLL_MS) / 1000,
        discovery_seconds=given.number("discoveryIntervalMs", low=1, default=DEFAULT_DISCOVERY_MS)
        / 1000,
    )


def _check_least(given: Options, most: Budget) -> None:
    if given.text("maxTriggerDelay") is not None and most.least_rows is None:
        raise InvalidSettingsError("maxTriggerDelay goes with minOffsetsPerTrigger")
    if None not in (most.rows, most.least_rows) and most.least_rows > most.rows:  # type: ignore[operator]
        raise InvalidSettingsError(
            f"minOffsetsPerTrigger must be at most maxOffsetsPerTrigger, {most.rows}, not {most.least_rows}"
        )


def _duration(name: str, value: str) -> float:
    """Return the seconds of a duration as Spark writes it, such as ``15m``."""
    found = re.fullmatch(r"\s*(\d{1,15})\s*(ms|s|m|min|h|d)\s*", value.lower(), re.ASCII)
    if found is None:
        raise InvalidSettingsError(f"{name} must be a time such as 90s, 15m or 1h, not {value!r}")
    return int(found[1]) * _SECONDS[found[2]]


def _parse_common(given: Options) -> dict[str, Any]:
    """Return the fields of :class:`CommonOptions`."""
    return {
        "location": given.location(
            "name the log: .load('s3://bucket/prefix'), .load('file:///dir') or .load('/log/dir')"
        ),
        "selection": parse_selection(given),
        "starting": parse_bounds(given, STARTING, default=Edge.EARLIEST),
        "needs_record": given.flag(
            "startingOffsetsByTimestampStrategy", yes="error", no="latest", default=True
        ),
        "stream": given.text("stream"),
        "min_partitions": given.number("minPartitions", low=1, default=1),
        "most_records": given.number("maxRecordsPerPartition", low=1),
        "fail_on_data_loss": given.flag("failOnDataLoss", default=True),
        "include_headers": given.flag("includeHeaders", default=False),
        "use_tier": given.flag("tier", yes="auto", no="off", default=True),
    }


def _refuse_endings(options: Mapping[str, str]) -> None:
    """Raise InvalidSettingsError for options that end a read; it names the alternative."""
    given = {name.lower() for name in options}
    for name in ENDING.all:
        if name.lower() in given:
            raise InvalidSettingsError(
                f"{name} is an option of batch reads: a stream has no end; .trigger(availableNow=True) "
                "stops it at what is there when it starts"
            )


def moves(starting: Bounds) -> bool:
    """Return whether resolving the bounds later may skip records."""
    bounds = [starting.every] if starting.each is None else [*starting.each.values()]
    return any(bound is Edge.LATEST or isinstance(bound, TimeBound) for bound in bounds)


def parse_bounds(given: Options, names: BoundNames, *, default: Edge) -> Bounds:
    """Return the bounds that one of the options ``names`` sets; InvalidSettingsError if it is malformed."""
    found = given.one_of(names.all)
    if found is None:
        return Bounds(default, None, names.offsets)
    name, value = found
    if name == names.time:
        return Bounds(TimeBound(_number(name, value, low=0) * 1000), None, name)
    if name == names.times:
        return Bounds(default, parse_json_bounds(name, value, is_times=True), name)
    text = value.strip()
    if text.lower() in {"earliest", "latest"}:
        return Bounds(Edge[text.upper()], None, name)
    if text.isascii() and text.isdigit():
        return Bounds(int(text), None, name)
    return Bounds(default, parse_json_bounds(name, text, is_times=False), name)


def parse_selection(given: Options) -> Selection:
    """Return which logs to read; InvalidSettingsError if two of :data:`SELECTORS` are given."""
    found = given.one_of(SELECTORS)
    if found is None:
        return Selection()
    option, value = found
    if option == "assign":
        return Selection(assigned=_parse_assigned(value))
    if option == "subscribePattern":
        return Selection(pattern=_parse_pattern(value))
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if "" in names:
        raise InvalidSettingsError(
            f"subscribe must be names of logs with commas between them, not {value!r}"
        )
    return Selection(names=names)


def _parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidSettingsError(
            f"subscribePattern must be a regular expression: {error}"
        ) from None
    return value


def _parse_assigned(value: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parse Kafka's form, ``{"orders":[0,2]}``."""
    try:
        found = json.loads(value)
        pairs = tuple((topic, tuple(sorted(set(numbers)))) for topic, numbers in found.items())
    except (ValueError, TypeError, AttributeError):
        pairs = ()
    if not pairs or not all(
        numbers and all(type(number) is int and number >= 0 for number in numbers)
        for _, numbers in pairs
    ):
        raise InvalidSettingsError(
            f'assign must be JSON as {{"orders": [0, 2]}}, partitions of each log, not {value}'
        )
    return pairs
