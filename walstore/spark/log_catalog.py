"""Catalogs of several logs, each under a name: a WalStore's directory, or a prefix of a bucket. Blocking.

A catalog returns the partitions of a name and lists all names. It reads nothing of the logs themselves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeAlias, cast

from uploader.format.layout import FRAGMENT_FOLDER, MANIFEST
from uploader.partitioned import PARTITIONS, read_partitions
from uploader.stores import ListedObject, ObjectStore, StoredObject, StoreWrapper
from uploader.stores.port import ListingOrder, get_bounded
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.segment import parse_file_name
from walstore.spark.blocking import StoreReading
from walstore.spark.options import Location
from walstore.store.directory import directory_of, list_logs

PARALLEL: Final = 16
"""Names looked up concurrently."""
_LONG_FOLDER: Final = 1000
"""Objects after which a listing skips the rest of their folder: the page size of most stores."""

_PARTITION: Final = re.compile(r"(.+)/(0|[1-9][0-9]{0,8})")
_MANIFEST: Final = re.compile(rf"(.+)/{MANIFEST}(?:\.[0-9a-f]{{16}})?")
_PARTITIONS: Final = re.compile(rf"(.+)/{PARTITIONS}")
_DATA: Final = re.compile(
    r"((?:.*/)?(?:log(?=/Bucket=)|snapshot(?=/SNAPSHOT\.)|manifest(?=/MANIFEST\.)|shard[0-9]{4}))/[^/]+"
    r"(?:/[^/]+)?"
)
"""Keys of which a log may have many; the group is their folder."""

Counts = Mapping[str, tuple[int, ...] | None]
"""The partitions of each name; None for a log that is not partitioned."""


def split_partition(name: str) -> tuple[str, int] | None:
    """Return topic and number if the name has the form of a partition, ``orders/3``."""
    found = _PARTITION.fullmatch(name)
    return (found[1], int(found[2])) if found else None


class DirectoryCatalog:
    """The logs in a WalStore's directory, listed at construction."""

    def __init__(self, location: Location) -> None:
        """Read the directory's names; none if there is no such directory."""
        self.location = location
        try:
            logs = list_logs(PosixFileSystem(), Path(location.text))
        except (FileNotFoundError, NotADirectoryError):
            logs = []
        self._counts: dict[str, tuple[int, ...] | None] = dict.fromkeys(logs)
        for name in logs:
            part = split_partition(name)
            if part and part[0] not in logs:
                before = self._counts.get(part[0]) or ()
                self._counts[part[0]] = tuple(sorted((*before, part[1])))

    def counts(self, names: Iterable[str]) -> Counts:
        """Return the partitions of those names that exist."""
        return {name: self._counts[name] for name in names if name in self._counts}

    def names(self, *, most_objects: int | None = None) -> list[str]:
        """Return the names of logs and partitioned logs, in order; partitions alone are not among them."""
        return [name for name in _topics(self._counts) if self._is_log(name)]

    def location_of(self, name: str) -> Location:
        """Return the log's directory."""
        return self.location.child(directory_of(name))

    def _is_log(self, name: str) -> bool:
        """Return whether the directory contains a log; it may be an unrelated directory."""
        parts = self._counts[name]
        names = [name] if parts is None else [f"{name}/{part}" for part in parts]
        return any(
            parse_file_name(file) is not None
            for log in names
            for file in PosixFileSystem().list(Path(self.location_of(log).text))
        )

    def close(self) -> None:
        """Do nothing."""


class StoreCatalog(StoreReading):
    """The logs below a prefix of an object store."""

    def __init__(self, location: Location) -> None:
        """Open the store at a location; the first request is made by the first call."""
        super().__init__(location.text)
        self.location = location

    def counts(self, names: Iterable[str]) -> Counts:
        """Return the partitions of the names; does not check that an unpartitioned log exists.

        The empty name is the location itself. One small request for each name.
        """
        found = list(names)
        for name in filter(None, found):
            directory_of(name)  # refuses names that lead out of the prefix
        return self.run(self._counts(found))

    def names(self, *, most_objects: int | None = None) -> list[str]:
        """Return the names of logs and partitioned logs below the location, in order, by one listing.

        With ``most_objects`` at most that many objects are listed, so names may be missing.
        """
        return self.run(self._names(most_objects))

    def has_fragments(self) -> bool:
        """Return whether the location itself contains a fragment; lists only the first keys."""
        return self.run(self._has_fragments())

    def location_of(self, name: str) -> Location:
        """Return the log's URL."""
        directory_of(name)
        return self.location.child(name)

    async def _counts(self, names: list[str]) -> Counts:
        gate = asyncio.Semaphore(PARALLEL)

        async def count(name: str) -> tuple[int, ...] | None:
            async with gate:
                found = await read_partitions(_Below(self.store, name))
            return None if found is None else tuple(range(found))

        return dict(zip(names, await asyncio.gather(*map(count, names)), strict=True))

    async def _has_fragments(self) -> bool:
        for folder in (FRAGMENT_FOLDER, "shard"):
            listing = cast("AsyncGenerator[ListedObject, None]", self.store.list(folder))
            async with aclosing(listing):
                async for _ in listing:
                    return True
        return False

    async def _names(self, most_objects: int | None) -> list[str]:
        logs, partitioned = await list_names(self.store, most_objects=most_objects)
        return _topics({**dict.fromkeys(logs), **await self._counts(sorted(partitioned))})


LogCatalog: TypeAlias = DirectoryCatalog | StoreCatalog
"""A location that contains logs, each under a name."""


def open_catalog(location: Location) -> LogCatalog:
    """Return the catalog of a location."""
    return StoreCatalog(location) if location.is_store else DirectoryCatalog(location)


class _Below(StoreWrapper):
    """The objects of a store whose keys begin with a name."""

    def __init__(self, inner: ObjectStore, name: str) -> None:
        super().__init__(inner)
        self._prefix = f"{name}/" if name else ""

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        return await get_bounded(self.inner, self._prefix + key, max_bytes)


def _topics(counts: Counts) -> list[str]:
    """Return the names without those that are a partition of another one."""

    def is_part(name: str) -> bool:
        part = split_partition(name)
        return part is not None and part[1] in (counts.get(part[0]) or ())

    return sorted(name for name in counts if not is_part(name))


async def list_names(
    store: ObjectStore, *, most_objects: int | None = None
) -> tuple[set[str], set[str]]:
    """Return the names under which a log has a manifest, and those that are partitioned.

    The objects of a log are in a few folders. A folder longer than a page is skipped if the store lists in
    order. If it turns out not to, all objects are listed.
    """
    found = _Listed()
    await _walk(store, found, most_objects)
    if found.has_leapt and not found.order.is_proven:
        found = _Listed(may_leap=False)
        await _walk(store, found, most_objects)
    return found.logs, found.partitioned


async def _walk(store: ObjectStore, found: _Listed, most_objects: int | None) -> None:
    """Pass the keys of a store to ``found``, at most ``most_objects`` of them."""
    after: str | None = ""
    while after is not None:
        listing = cast("AsyncGenerator[ListedObject, None]", store.list("", after=after or None))
        async with aclosing(listing):
            after = None
            async for item in listing:
                after = found.add(item.key)
                if after is not None or found.objects == most_objects:
                    break


class _Listed:
    """Collects names from the keys of a listing, and where the listing may continue."""

    def __init__(self, *, may_leap: bool = True) -> None:
        self.logs: set[str] = set()
        self.partitioned: set[str] = set()
        self.objects = 0
        self.order = ListingOrder()
        """Of all keys so far, also across skips."""
        self.has_leapt = False
        self._may_leap = may_leap
        self._folder = ""
        self._in_folder = 0

    def add(self, key: str) -> str | None:
        """Take the next key; return the key after which to list again, or None to continue."""
        self.objects += 1
        self.order.note(key)
        manifest, partitions = _MANIFEST.fullmatch(key), _PARTITIONS.fullmatch(key)
        if manifest:
            self.logs.add(manifest[1])
        elif partitions:
            self.partitioned.add(partitions[1])
        data = _DATA.fullmatch(key)
        folder = data[1] if data else ""
        self._in_folder = self._in_folder + 1 if folder == self._folder else 1
        self._folder = folder
        is_long = folder and self._in_folder >= _LONG_FOLDER
        if not (is_long and self._may_leap and self.order.is_proven):
            return None
        self.has_leapt = True
        return f"{folder}0"  # sorts after every key of the folder
