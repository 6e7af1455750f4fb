"""TreeWalk: what is below a manifest, in order. Pure: the caller reads the snapshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from uploader.format.entries import Entry, SnapshotPointer
from uploader.format.layout import MAX_U64
from uploader.format.manifest import Manifest

_Entry = TypeVar("_Entry", bound=Entry)


class TreeWalk(Generic[_Entry]):
    """Yields entries, each before what is below it, if the caller entered that.

    Keeps the entries of one snapshot on each level.
    """

    def __init__(
        self, entries: Iterable[_Entry], start: int = -1, limit: int = MAX_U64 + 1
    ) -> None:
        """Walk ``entries``, and pass over those that do not overlap ``[start, limit)``."""
        self._levels = [iter(entries)]
        self._start = start
        self._limit = limit

    def __iter__(self) -> Iterator[_Entry]:
        """Yield the entries; once."""
        while self._levels:
            entry = next(self._levels[-1], None)
            if entry is None:
                self._levels.pop()
            elif entry.limit > self._start and entry.start < self._limit:
                yield entry

    def enter(self, entries: Iterable[_Entry]) -> None:
        """Continue with what is below the last entry."""
        self._levels.append(iter(entries))


async def named_snapshots(
    manifest: Manifest, below: Callable[[SnapshotPointer], Awaitable[Iterable[SnapshotPointer]]]
) -> set[str]:
    """Return the keys of all snapshots under a manifest; ``below`` reads those that hold other snapshots."""
    named: set[str] = set()
    walk = TreeWalk(manifest.snapshots)
    for pointer in walk:
        named.add(pointer.path_to_snapshot)
        if pointer.depth > 1:
            walk.enter(await below(pointer))
    return named
