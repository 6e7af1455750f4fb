"""The logs of a read: from a location and a selection to one location for each log. Blocking I/O.

A log is partitioned or not. In an object store the object ``partitioned/PARTITIONS`` defines it
(``uploader/partitioned``). In a WalStore's directory the names do: ``orders/0``, ``orders/1``, … are the
partitions of ``orders``, unless there is a log ``orders``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final

from walstore import CorruptionError, InvalidSettingsError, LogNotFoundError, WalError
from walstore.spark.log_catalog import (
    Counts,
    LogCatalog,
    StoreCatalog,
    open_catalog,
    split_partition,
)
from walstore.spark.options import Location, Selection
from walstore.spark.planned_log import DirectoryLog, PlannedLog, StoreLog

_SHOWN: Final = 5
"""Most names in a message."""
_LOOKED_AT: Final = 10_000
"""Objects of a bucket that are listed for a message, at most."""


@dataclass(frozen=True, slots=True)
class NamedLog:
    """One log of a read."""

    topic: str
    """Its name; that of the partitioned log if it is a partition."""
    partition: int
    """Number of the partition; 0 for a log that is not partitioned."""
    location: Location
    """Where it is; the topic is the same."""
    is_part: bool = False
    """Whether it is a partition of a partitioned log in a store, which may have no records yet."""


def find_logs(location: Location, selection: Selection) -> list[NamedLog]:
    """Return the logs that a selection names, sorted by topic and partition.

    Reads a small object for each name in a store, or the names in a directory; lists a prefix only
    for a pattern. Does not check that a log in a store exists; opening it does.

    Raises LogNotFoundError for a name that a directory does not have and for a pattern that no log
    matches, InvalidSettingsError for partitions that do not exist, CorruptionError, and the store's
    errors.
    """
    if selection.is_whole and not location.is_store:
        return [NamedLog(location.topic, 0, location)]
    with closing(open_catalog(location)) as catalog:
        if selection.is_whole:
            return _whole(catalog)
        if selection.assigned:
            found = _assigned(catalog, selection)
        elif selection.pattern is not None:
            found = _matching(catalog, selection.pattern)
        else:
            found = _named(catalog, selection.names)
    return sorted(set(found), key=lambda log: (log.topic, log.partition))


def open_log(log: NamedLog, *, use_tier: bool) -> PlannedLog:
    """Return the log, opened for planning; the caller closes it.

    A partition of a partitioned log that was never written to is an empty log. Any other missing log raises
    LogNotFoundError, which names the logs below the location, if any. Raises CorruptionError, also for
    fragments without a manifest, and the store's errors.
    """
    try:
        return _open(log, use_tier=use_tier)
    except LogNotFoundError as error:
        if not log.is_part:
            _hint(error, log.location)
            raise
    if not _has_fragments(log.location):
        return StoreLog(log.location.text, log.topic, log.partition)
    try:
        return _open(log, use_tier=use_tier)  # it may have been created meanwhile
    except LogNotFoundError as error:
        raise CorruptionError(
            f"partition {log.partition} of {log.topic!r} has fragments and its manifest is missing",
            path=error.location,
        ) from error


def _open(log: NamedLog, *, use_tier: bool) -> PlannedLog:
    if log.location.is_store:
        return StoreLog.open(log.location.text, log.topic, log.partition)
    return DirectoryLog(log.location.text, log.topic, log.partition, use_tier=use_tier)


def _has_fragments(location: Location) -> bool:
    with closing(StoreCatalog(location)) as catalog:
        return catalog.has_fragments()


def _hint(error: LogNotFoundError, location: Location) -> None:
    """Add a note if there are other logs below the location."""
    with suppress(WalError), closing(open_catalog(location)) as catalog:
        names = catalog.names(most_objects=_LOOKED_AT)
        if names:
            error.add_note(f"there are logs below it, for the option subscribe: {_some(names)}")


def _whole(catalog: LogCatalog) -> list[NamedLog]:
    """Return the log at the location in a store, or its partitions."""
    location = catalog.location
    partitions = catalog.counts([""])[""]
    if partitions is None:
        return [NamedLog(location.topic, 0, location)]
    return [
        _part(location.topic, at, catalog.location_of(str(at)), is_part=True) for at in partitions
    ]


def _named(catalog: LogCatalog, names: Iterable[str]) -> list[NamedLog]:
    """Return the named logs: a log, all partitions of one, or one partition."""
    parts = {name: split_partition(name) for name in names}
    counts = catalog.counts({*parts, *(part[0] for part in parts.values() if part)})
    found: list[NamedLog] = []
    for name, part in parts.items():
        if part and counts.get(part[0]):
            found += _of_topic(catalog, counts, part[0], (part[1],))
        else:
            found += _of_topic(catalog, counts, name)
    return found


def _assigned(catalog: LogCatalog, selection: Selection) -> list[NamedLog]:
    assigned = dict(selection.assigned)
    counts = catalog.counts(assigned)
    return [
        log
        for topic, partitions in assigned.items()
        for log in _of_topic(catalog, counts, topic, partitions)
    ]


def _matching(catalog: LogCatalog, pattern: str) -> list[NamedLog]:
    names = catalog.names()
    matching = [name for name in names if re.fullmatch(pattern, name)]
    if not matching:
        where = catalog.location.text
        raise LogNotFoundError(
            f"no log at {where} matches subscribePattern {pattern!r}; there are {_some(names)}",
            location=where,
        )
    counts = catalog.counts(matching)
    return [log for name in matching for log in _of_topic(catalog, counts, name)]


def _of_topic(
    catalog: LogCatalog,
    counts: Counts,
    topic: str,
    partitions_wanted: Iterable[int] | None = None,
) -> list[NamedLog]:
    """Return the requested partitions of a topic, by default all."""
    if topic not in counts:
        where = catalog.location.text
        raise LogNotFoundError(
            f"there is no log {topic!r} at {where}; there are {_some(catalog.names())}",
            location=where,
        )
    there = counts[topic]
    missing = sorted(set(partitions_wanted or ()) - set(there or (0,)))
    if missing:
        raise InvalidSettingsError(
            f"{topic!r} has no partition {missing[0]}; it has {_some(there or (0,))}"
        )
    if there is None:
        return [_part(topic, 0, catalog.location_of(topic))]
    return [
        _part(topic, at, catalog.location_of(f"{topic}/{at}"), is_part=catalog.location.is_store)
        for at in there
        if partitions_wanted is None or at in partitions_wanted
    ]


def _part(topic: str, partition: int, location: Location, *, is_part: bool = False) -> NamedLog:
    return NamedLog(topic, partition, replace(location, topic=topic), is_part)


def _some(names: Iterable[object]) -> str:
    """Return some of the names for a message."""
    found = [json.dumps(name, ensure_ascii=False) for name in names]
    shown = ", ".join(found[:_SHOWN]) or "none"
    return shown if len(found) <= _SHOWN else f"{shown} and {len(found) - _SHOWN} more"
