"""Plans which fragments the JVM reads, and what remains for the Python source. Blocking I/O, many at a time.

The plan is that of ``format("walstore")``. Of a local log's files only those remain whose records are in no
fragment yet.

The JVM's reader knows neither the manifest nor the formats: columns that a fragment lacks are nulls to it.
The manifest says from which fragment on all are ours, of this version, so those are planned without a
request. Of the others the footer is read, a small ranged request each, and its columns, number of records,
offsets and length are compared with the entry. All are read for one stream, since footers name the streams.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from uploader import open_store
from uploader.format.entries import Fragment
from uploader.format.layout import SHARD_PREFIX
from uploader.fragments.fragment_file import (
    FORMAT_VERSION,
    OUR_FIELDS,
    WAL3_FIELDS,
    Footer,
)
from uploader.layouts.log_session import find_root
from uploader.read.fragment_reader import FragmentReader
from uploader.runtime.task_groups import gather_all
from uploader.stores import ObjectStore, RetryPolicy
from walstore import CorruptionError, FormatVersionError, LogNotFoundError, WalError
from walstore.core.runtime.threads import Worker
from walstore.spark.blocking import run_blocking
from walstore.spark.environment import FastPathError
from walstore.spark.options import ReadOptions
from walstore.spark.partitions import FilePartition, FragmentPart, FragmentPartition, LogPartition
from walstore.spark.planned_log import StoreLog
from walstore.spark.reader import Narrowed, plan_read

PARALLEL_FOOTERS: Final = 32
"""Footers of one log read concurrently."""
_WAL3_NAMES: Final = frozenset(field.name for field in WAL3_FIELDS)
_OUR_NAMES: Final = frozenset(field.name for field in OUR_FIELDS)


class FragmentKind(Enum):
    """Which program wrote a fragment, and so how its columns are stored."""

    OURS = "ours"
    """All of our columns. Offsets and times are stored as deltas."""
    WAL3 = "wal3"
    """wal3's columns alone. Offsets and times may be stored through a dictionary."""


def kind_of(footer: Footer, entry: Fragment) -> FragmentKind:
    """Return the kind of a manifest entry's fragment.

    Raises CorruptionError if its number of records or offsets differ from the entry or a column is missing;
    FormatVersionError if a newer version of this program wrote it; FastPathError if it has columns that only
    the Python source can interpret.
    """
    if footer.version not in {None, FORMAT_VERSION}:
        raise FormatVersionError(
            "a fragment of a newer version",
            path=entry.path,
            found=(footer.version or b"").decode(errors="replace"),
            supported=FORMAT_VERSION.decode(),
        )
    _same("number of records", entry, entry.limit - entry.start, footer.rows)
    if footer.offsets is not None:
        _same("offsets", entry, (entry.start, entry.limit - 1), footer.offsets)
    wanted = _WAL3_NAMES if footer.version is None else _WAL3_NAMES | _OUR_NAMES
    missing = sorted(wanted - footer.columns)
    if missing:
        raise CorruptionError(f"a fragment lacks the column {missing[0]!r}", path=entry.path)
    if footer.version is not None:
        return FragmentKind.OURS
    strange = sorted(name for name in footer.columns if name in _OUR_NAMES)
    if strange:
        raise FastPathError(
            f"{entry.path} was written by another program and has a column {strange[0]!r}, which only"
            " the Python source can interpret"
        )
    return FragmentKind.WAL3


def _same(what: str, entry: Fragment, expected: object, found: object) -> None:
    if found != expected:
        raise CorruptionError(
            f"a fragment's {what}: {found}, but the manifest says {expected}",
            path=entry.path,
            expected=expected,
            found=found,
        )


KnownPart = tuple[FragmentPart, FragmentKind]


def read_footers(
    url: str, parts: Sequence[FragmentPart], stream: str | None, *, are_trusted: bool = True
) -> list[KnownPart]:
    """Return each fragment of the log at ``url`` with its kind, in order.

    Leaves out fragments whose footers exclude ``stream``, if one is named. Without one, footers of our own
    fragments are read only if they are not trusted. Raises what :func:`kind_of` raises, OffsetTrimmedError
    for a fragment that was collected since the manifest was read, CorruptionError for one that is missing or
    has other records, and the store's errors.
    """
    found: dict[int, KnownPart] = {}
    if are_trusted and stream is None:
        found = {at: (part, FragmentKind.OURS) for at, part in enumerate(parts) if part.is_ours}
    if len(found) < len(parts) or any(map(_may_be_inline, parts)):
        run_blocking(lambda: _read_footers(open_store(url), parts, stream, found))
    return [found[at] for at in sorted(found)]


def _may_be_inline(part: FragmentPart) -> bool:
    """Return whether the fragment may be in a manifest alone: only in layout chain."""
    return part.entry.path.startswith(SHARD_PREFIX)


async def _read_footers(
    store: ObjectStore,
    parts: Sequence[FragmentPart],
    stream: str | None,
    found: dict[int, KnownPart],
) -> None:
    """Add the parts that are not in ``found`` by their footers."""
    worker = Worker("footers")
    reader = FragmentReader(store=store, worker=worker, cache_bytes=0)
    unknown = [at for at in range(len(parts)) if at not in found]
    pending = iter(unknown)

    async def take() -> None:
        for at in pending:
            footer = await reader.footers.get(parts[at].entry)
            kind = kind_of(footer, parts[at].entry)
            if stream is None or footer.streams.may_hold(stream):
                found[at] = parts[at], kind

    try:
        if any(map(_may_be_inline, parts)):
            await _put_inline(store, worker)
        await gather_all(take() for _ in range(min(PARALLEL_FOOTERS, len(unknown))))
    finally:
        await reader.aclose()
        worker.close()
        await store.aclose()


async def _put_inline(store: ObjectStore, worker: Worker) -> None:
    """Put the objects that the JVM looks for and that are not there yet; FastPathError if that fails."""
    root = await find_root(store, retry=RetryPolicy(), worker=worker, layout="chain")
    try:
        await root.put_inline()
    except WalError as error:
        raise FastPathError(
            f"some fragments of {store.url} are in its manifests alone, and their objects cannot be put from "
            f"here ({error}); the Python source reads them"
        ) from error
    finally:
        await root.aclose()


logger = logging.getLogger("walstore.spark")

PARALLEL_LOGS: Final = 8
"""Logs whose footers are read concurrently."""
_ANY_SIZE: Final = 1 << 62
MOST_SCANS: Final = 64
"""Most scans into which ``minPartitions`` divides a read: Spark takes some 30 ms to plan each."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Fragments of one log that one Parquet scan reads."""

    topic: str
    partition: int
    url: str
    """The log's store."""
    kind: FragmentKind
    parts: tuple[FragmentPart, ...] = field(repr=False)
    cut: tuple[int, int] | None = None
    """Offsets ``[start, limit)`` to read, if the fragments contain others too."""

    @property
    def size_bytes(self) -> int:
        """Length of the fragments together."""
        return sum(part.size_bytes for part in self.parts)


def scans_of(
    topic: str, partition: int, url: str, found: Sequence[KnownPart], bounds: tuple[int, int]
) -> list[Scan]:
    """Return the scans of one log's fragments for the offsets ``bounds``.

    Only the fragments that the bounds cut, at most two, are scanned with a filter on the offset.
    """
    whole: dict[FragmentKind, list[FragmentPart]] = {}
    cut: dict[FragmentKind, list[FragmentPart]] = {}
    for part, kind in found:
        is_whole = (part.start, part.limit) == (part.entry.start, part.entry.limit)
        (whole if is_whole else cut).setdefault(kind, []).append(part)
    return [
        *(Scan(topic, partition, url, kind, tuple(parts)) for kind, parts in whole.items()),
        *(Scan(topic, partition, url, kind, tuple(parts), bounds) for kind, parts in cut.items()),
    ]


def divide(scans: Sequence[Scan], count: int) -> list[Scan]:
    """Return about ``count`` scans of about the same size, as far as the fragments allow."""
    total = sum(scan.size_bytes for scan in scans) or 1
    goal = min(count, MOST_SCANS)
    if len(scans) >= goal:
        return list(scans)
    return [piece for scan in scans for piece in _pieces(scan, goal * scan.size_bytes // total)]


def _pieces(scan: Scan, count: int) -> Iterable[Scan]:
    parts = scan.parts
    count = max(1, min(count, len(parts)))
    for at in range(count):
        low, high = len(parts) * at // count, len(parts) * (at + 1) // count
        yield replace(scan, parts=parts[low:high])


@dataclass(frozen=True, slots=True)
class FileRange:
    """Records that are only in the files of a log's directory."""

    topic: str
    partition: int
    directory: str
    start: int
    limit: int


@dataclass(frozen=True, slots=True)
class FastPathPlan:
    """What the JVM reads, and what the Python source reads."""

    fragments: Sequence[FragmentPartition]
    """Consecutive fragments of one log each."""
    files: Sequence[FileRange]

    def scans(self, stream: str | None) -> list[Scan]:
        """Return the scans; reads the footers that it needs."""
        with ThreadPoolExecutor(PARALLEL_LOGS, "walstore-footers") as threads:
            looks = [threads.submit(_scans, found, stream) for found in self.fragments]
        return [scan for look in looks for scan in look.result()]

    def check(self) -> None:
        """Compare each fragment's footer with its entry; raises what is wrong."""
        for found in self.fragments:
            read_footers(found.url, found.parts, None, are_trusted=False)


def _scans(found: FragmentPartition, stream: str | None) -> list[Scan]:
    known = read_footers(found.url, found.parts, stream)
    return scans_of(found.topic, found.partition, found.url, known, (found.start, found.limit))


def plan(options: ReadOptions) -> FastPathPlan:
    """Plan a read; errors as for :func:`walstore.spark.reader.plan_read`."""
    fragments: list[FragmentPartition] = []
    files: list[FileRange] = []
    for members in _by_log(plan_read(options, Narrowed())):
        stored = [found for found in members if isinstance(found, FragmentPartition)]
        local = [found for found in members if isinstance(found, FilePartition)]
        if stored:
            fragments.append(_join(stored))
        if local:
            start, limit = local[0].start, local[-1].limit
            shipped = _shipped(local[0], start, limit)
            if shipped is not None:
                fragments.append(shipped)
                start = shipped.limit
            if start < limit:
                first = local[0]
                files.append(FileRange(first.topic, first.partition, first.directory, start, limit))
    return FastPathPlan(fragments, files)


def _by_log(partitions: Iterable[LogPartition]) -> list[list[LogPartition]]:
    found: dict[tuple[str, int], list[LogPartition]] = {}
    for partition in partitions:
        found.setdefault((partition.topic, partition.partition), []).append(partition)
    return list(found.values())


def _join(partitions: Sequence[FragmentPartition]) -> FragmentPartition:
    first = partitions[0]
    parts = tuple(part for partition in partitions for part in partition.parts)
    return FragmentPartition(
        topic=first.topic, partition=first.partition, url=first.url, parts=parts
    )


def _shipped(files: FilePartition, start: int, limit: int) -> FragmentPartition | None:
    """Return the fragments that contain the first of the files' records, if any.

    The files have all records, so a tier that does not answer only makes the read slower.
    """
    if files.tier_url is None:
        return None
    try:
        with closing(StoreLog.open(files.tier_url, files.topic, files.partition)) as tier:
            limit = min(limit, tier.limit)
            if start >= limit or tier.is_trimmed(start):
                return None
            found = tier.partitions(start, limit, _ANY_SIZE)
    except LogNotFoundError:
        return None  # nothing has been shipped yet
    except WalError as error:
        logger.warning("%s is read from its files: %s", files.topic, error)
        return None
    return _join([partition for partition in found if isinstance(partition, FragmentPartition)])
