"""What the demo compares: each acknowledged record is read exactly once, in order, byte for byte. Pure."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

from crc32c import crc32c

from walstore import Batch
from walstore.cli.child_process import LatencySamples

_K = TypeVar("_K", int, str)

MAX_COMPLAINTS: Final = 20

KEY: Final = struct.Struct(">HQII")
"""Key of a record: its producer, then of its append: the number of the first record, the number of records,
and the checksum over all values of the producer up to its last record.

All records of an append share a key. So a reader finds a record that is missing, altered, or there twice,
and an atomic append that is not whole.
"""
STREAMS: Final = ("cpu", "memory", "disk", "network", "processes", "text", "text", "text")
"""The stream of each producer; the last three append text."""
_PER_LIFE: Final = 100

# Messages of the writing process.
OPENED: Final = "opened"
"""The log is open: a map of what opening found."""
ACK: Final = "ack"
"""A producer's records are on disk: its number, and how many so far."""
STATUS: Final = "status"
"""State of the log: a map of counters, then append and tail latencies in µs since the last one."""
STOPPED: Final = "stopped"
"""The producers have stopped: the next offset of the reader that began at the first record."""
CLOSED: Final = "closed"
"""The log is closed."""


def producer_number(life: int, index: int) -> int:
    """Return a number for a producer that no other life uses."""
    return life * _PER_LIFE + index


def digest(values: Sequence[bytes], before: int) -> int:
    """Return the checksum over a producer's values, given that of the values before.

    It is the same however the values are divided into calls.
    """
    return crc32c(b"\n".join([*values, b""]), before)


@dataclass(slots=True)
class ProducerTally:
    """What was read of one producer."""

    stream: str
    count: int = 0
    size_bytes: int = 0
    checksum: int = 0
    append_first: int = 0
    """Number of the first record of the append that was read last."""
    append_limit: int = 0
    """The number after its last one."""


class ReadTally:
    """Checks all records of one reader, and keeps a few numbers for each producer."""

    def __init__(self) -> None:
        self.position: int | None = None
        """Next offset to read; None before the first batch."""
        self.records = 0
        self.size_bytes = 0
        self.duplicated = 0
        self.skipped = 0
        """Records that were missing when a later one of the same producer was read."""
        self.producers: dict[int, ProducerTally] = {}
        self.complaints: list[str] = []

    def take(self, batch: Batch) -> None:
        """Check the next batch."""
        if self.position is not None and batch.start != self.position:
            self.complain(f"read offsets [{batch.start}, {batch.limit}) at {self.position}")
        self.position = batch.limit
        values = batch.values
        at = 0
        for (key, stream), same in groupby(zip(batch.keys, batch.streams, strict=True)):
            rows = sum(1 for _ in same)
            self._take_run(key, stream or "", values[at : at + rows])
            at += rows
        self.records += len(batch)

    def settle(self, acknowledged: Mapping[int, int], lives: int) -> int:
        """Compare with what was acknowledged to each producer; return how many records are lost."""
        lost = self.skipped
        numbers = {
            producer_number(life + 1, at): at for life in range(lives) for at in range(len(STREAMS))
        }
        for number, at in numbers.items():
            found = self.producers.get(number) or ProducerTally(STREAMS[at])
            if found.stream != STREAMS[at]:
                self.complain(f"producer {number} is of {STREAMS[at]}, not {found.stream}")
            if found.count < acknowledged.get(number, 0):
                lost += acknowledged[number] - found.count
                self.complain(
                    f"producer {number} had {acknowledged[number]} records acknowledged, "
                    f"{found.count} are there"
                )
            elif found.count != found.append_limit:
                self.complain(f"an append of producer {number} is not whole")
        for number in self.producers.keys() - numbers:
            self.complain(f"producer {number} is not known")
        return lost

    def by_stream(self) -> dict[str, tuple[int, int]]:
        """Return records and bytes of values by stream."""
        totals: dict[str, tuple[int, int]] = {}
        for found in self.producers.values():
            records, size = totals.get(found.stream, (0, 0))
            totals[found.stream] = (records + found.count, size + found.size_bytes)
        return dict(sorted(totals.items()))

    def complain(self, text: str) -> None:
        """Note a problem; only the first ones are kept."""
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(text)

    def _take_run(self, key: bytes | None, stream: str, values: Sequence[bytes]) -> None:
        """Check consecutive records of one key: an append, or a part of it."""
        size = sum(map(len, values))
        self.size_bytes += size
        if key is None or len(key) != KEY.size:
            self.complain(f"a record before offset {self.position} has the key {key!r}")
            return
        number, first, rows, checksum = KEY.unpack(key)
        found = self.producers.setdefault(number, ProducerTally(stream))
        if stream != found.stream:
            self.complain(f"producer {number} appended to {stream} and {found.stream}")
        # An append may be read in parts: then its first record was counted before.
        expected = found.append_first if found.count < found.append_limit else found.count
        if first < expected or found.count + len(values) > first + rows:
            self.duplicated += len(values)
            self.complain(f"records of producer {number} are there twice, from its number {first}")
            return
        if first > found.count:
            self.skipped += first - found.count
            self.complain(f"producer {number}: its number {found.count} is missing before {first}")
            found.count = first
        found.append_first, found.append_limit = first, first + rows
        found.count += len(values)
        found.size_bytes += size
        found.checksum = digest(values, found.checksum)
        if found.count == found.append_limit and found.checksum != checksum:
            self.complain(f"records of producer {number} are not those that it appended")
            found.checksum = checksum


class Story:
    """What the writing process reported, over all of its lives."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``monotonic`` returns the time in seconds."""
        self._monotonic = monotonic
        self._since: float | None = None
        self._seconds = 0.0
        self.acknowledged: Counter[int] = Counter()
        """By producer: its records on disk."""
        self.append_latencies = LatencySamples()
        self.tail_latencies = LatencySamples()
        self.opened: list[dict[str, Any]] = []
        """What each life found when it opened the log."""
        self.history_limit: int | None = None
        """Next offset of the reader inside when the producers stopped."""
        self.is_closed = False
        """Whether the last life closed the log."""
        self._states: list[dict[str, Any]] = []
        """The last state of the log in each life."""

    @property
    def status(self) -> dict[str, Any]:
        """State of the log when the process last reported it."""
        return self._states[-1] if self._states else {}

    @property
    def append_seconds(self) -> float:
        """How long the producers have run, over all lives."""
        running = 0.0 if self._since is None else self._monotonic() - self._since
        return self._seconds + running

    def total(self, counter: str) -> int:
        """Return a counter of the log, over all lives."""
        return sum(state.get(counter, 0) for state in self._states)

    def end_life(self) -> None:
        """The producers stopped, or were killed."""
        self._seconds, self._since = self.append_seconds, None

    def take(self, message: list[Any]) -> None:
        """Take a message of the writing process into account."""
        kind, *items = message
        if kind == ACK:
            self.acknowledged[items[0]] = items[1]
        elif kind == STATUS:
            self._states[-1] = items[0]
            self.append_latencies.add(items[1])
            self.tail_latencies.add(items[2])
        elif kind == OPENED:
            self.opened.append(items[0])
            self._states.append({})
            self._since = self._monotonic()
        elif kind == STOPPED:
            self.history_limit = items[0]
            self.end_life()
        elif kind == CLOSED:
            self.is_closed = True


def compare_batches(one: Batch, other: Batch) -> str | None:
    """Return what differs between the same records from two places, or None."""
    for column in ("values", "keys", "streams", "headers", "timestamps_us"):
        if list(getattr(one, column)) != list(getattr(other, column)):
            return f"{column} of [{one.start}, {one.limit}) differ"
    return None


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was read from the store, and compared with the disk."""

    tally: ReadTally
    """Its complaints include those about the disk."""
    head: int
    limit: int
    disk_head: int
    """First offset that is still on local disk."""
    fragments: int
    setsum: str


@dataclass(frozen=True, slots=True)
class SparkTotals:
    """What Spark counted."""

    version: str
    by_stream: dict[str, tuple[int, int]]
    """Records and bytes of values by stream."""
    head: int
    limit: int


def judge(
    story: Story, read: ReadBack, outside: ReadTally, spark: SparkTotals | Exception | str
) -> dict[str, Any]:
    """Compare everything that was reported and read; docs/cli.md describes the fields.

    ``spark`` is what it counted, how it failed, or why it was left out.
    """
    tally, restart, lives = read.tally, story.opened[-1], len(story.opened)
    lost = tally.settle(story.acknowledged, lives)
    outside.settle(story.acknowledged, lives)
    acknowledged = story.acknowledged.total()
    spark_problems = list(_spark_problems(spark, read))
    problems = [
        *tally.complaints,
        *_problems(story, read, outside),
        *spark_problems,
        *(() if acknowledged else ("nothing was appended",)),
    ]
    remark = spark if isinstance(spark, str) else (spark_problems or [""])[0]
    if isinstance(spark, SparkTotals) and not spark_problems:
        remark = f"version {spark.version}, {len(spark.by_stream)} streams"
    return {
        "ok": not (problems or lost or tally.duplicated),
        "records": tally.records,
        "acknowledged": acknowledged,
        "megabytes": tally.size_bytes / 1e6,
        "appends_per_second": acknowledged / max(story.append_seconds, 1e-9),
        "append_p50_ms": story.append_latencies.milliseconds(50),
        "append_p99_ms": story.append_latencies.milliseconds(99),
        "tail_p50_ms": story.tail_latencies.milliseconds(50),
        "tail_p99_ms": story.tail_latencies.milliseconds(99),
        "commits": story.total("commits"),
        "segments": story.total("rotations"),
        "fragments": read.fragments,
        "lost": lost,
        "duplicated": tally.duplicated,
        "disk_head": read.disk_head,
        "setsum": read.setsum,
        "kills": lives - 1,
        "recovered_tail": restart["tail"],
        "truncated_bytes": restart["truncated_bytes"],
        "streams": tally.by_stream(),
        "spark": remark,
        "spark_ok": None if isinstance(spark, str) else not spark_problems,
        "problems": problems,
    }


def _problems(story: Story, read: ReadBack, outside: ReadTally) -> Iterator[str]:
    """Compare what the processes reported, and what the consumer outside read, with what the store holds."""
    if not story.is_closed:
        yield "the writing process did not close the log"
    missing = story.opened[-1]["missing_from"]
    if missing is not None:
        yield f"the restart missed records from offset {missing} on"
    if story.history_limit != read.limit:
        yield f"the reader inside ended at {story.history_limit}, the log at {read.limit}"
    if failure := story.status.get("tier_failure"):
        yield f"shipping failed: {failure}"
    for text in outside.complaints:
        yield f"the consumer outside: {text}"
    if outside.position != read.limit:
        yield f"the consumer outside ended at {outside.position}, not {read.limit}"
    for number in _different(outside.producers, read.tally.producers):
        yield f"two readers saw different records of producer {number}"


def _spark_problems(spark: SparkTotals | Exception | str, read: ReadBack) -> Iterator[str]:
    if isinstance(spark, Exception):
        yield str(spark)
    if not isinstance(spark, SparkTotals):
        return
    ours, theirs = read.tally.by_stream(), spark.by_stream
    for stream in _different(ours, theirs):
        yield (
            f"Spark counts {theirs.get(stream)} records and bytes in stream {stream}, "
            f"the log holds {ours.get(stream)}"
        )
    if (spark.head, spark.limit) != (read.head, read.limit):
        yield (
            f"Spark saw offsets [{spark.head}, {spark.limit}), the log holds "
            f"[{read.head}, {read.limit})"
        )


def _different(one: Mapping[_K, object], other: Mapping[_K, object]) -> list[_K]:
    """Return the keys under which the two have different values."""
    return [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
