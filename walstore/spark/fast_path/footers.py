"""Reads and checks the footers of the fragments that the JVM will scan. Blocking I/O, many at a time.

The JVM's reader knows neither the manifest nor the formats. What it would not notice is checked here: the
number of records, their offsets, and the columns. This costs a small ranged request for each fragment, which
checks its length too; the records of a fragment with another length are hashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from uploader import open_store
from uploader.format.entries import Fragment
from uploader.fragments.fragment_file import (
    FORMAT_VERSION,
    OUR_FIELDS,
    WAL3_FIELDS,
    Footer,
)
from uploader.read.fragment_reader import FragmentReader
from uploader.runtime.task_groups import gather_all
from uploader.stores import ObjectStore
from walstore import CorruptionError, FormatVersionError
from walstore.runtime.threads import Worker
from walstore.spark.fast_path.hadoop import FastPathError
from walstore.spark.partition import FragmentPart
from walstore.spark.store import SyncRunner

PARALLEL: Final = 32
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


def read_footers(url: str, parts: Sequence[FragmentPart], stream: str | None) -> list[KnownPart]:
    """Return each fragment of the log at ``url`` with its kind, in order.

    Leaves out fragments whose footers exclude ``stream``, if one is named. Raises what :func:`kind_of`
    raises, OffsetTrimmedError for a fragment that was collected since the manifest was read, CorruptionError
    for one that is missing or has other records, and the store's errors.
    """
    runner = SyncRunner()
    try:
        return runner.run(_read_footers(open_store(url), parts, stream))
    finally:
        runner.close()


async def _read_footers(
    store: ObjectStore, parts: Sequence[FragmentPart], stream: str | None
) -> list[KnownPart]:
    worker = Worker("footers")
    reader = FragmentReader(store=store, worker=worker, cache_bytes=0)
    pending = iter(range(len(parts)))
    found: dict[int, KnownPart] = {}

    async def take() -> None:
        for at in pending:
            footer = await reader.footers.get(parts[at].entry)
            kind = kind_of(footer, parts[at].entry)
            if stream is None or footer.streams.may_hold(stream):
                found[at] = parts[at], kind

    try:
        await gather_all(take() for _ in range(min(PARALLEL, len(parts))))
    finally:
        await reader.aclose()
        worker.close()
        await store.aclose()
    return [found[at] for at in sorted(found)]
