"""The object ``gc/GARBAGE``: collectors agree by it, one announces, any may finish; writers obey it.

Owns its compare-and-swap. It is created by the first collection, and never deleted: an empty document says
that no collection is under way, as in wal3, since stores have no conditional delete.

A collector swaps the manifest on top of what writers publish. With a writer that publishes all the time it
is always too late, so such a writer looks for an announcement from time to time, while it publishes, and
appends next to a manifest without the garbage. wal3's writers do the same when configured to.

Only what the collector asks for is dropped (``Garbage.cursors_checked``). The document may be forged, so the
writer checks the cursors itself; and only a recent check counts, since a collection may be abandoned.
Otherwise it is as if the collector had dropped it, and the collector finds it so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from uploader.format import layout
from uploader.format.garbage import Garbage, StaleGarbageError, apply_garbage
from uploader.format.manifest import Manifest
from uploader.root.holds import Keepers, lowest_cursor
from uploader.root.stored_document import find_stored
from uploader.root.swapped_document import SwappedDocument
from uploader.root.tree import ManifestTree
from uploader.runtime.task_groups import BackgroundTask
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, WalError


async def announced_head(store: ObjectStore) -> int:
    """Return where a log is going to begin, if a collection is announced; else its first offset.

    CorruptionError if the document is damaged.
    """
    found = await find_stored(store, layout.GARBAGE, Garbage.parse)
    return layout.FIRST_OFFSET if found is None else found.value.first_to_keep


class GarbageFile(SwappedDocument[Garbage]):
    """The announced collection of one log; empty if there is none.

    Reading raises CorruptionError also if the document names what no collector may take.
    """

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, worker: Worker) -> None:
        super().__init__(
            store,
            layout.GARBAGE,
            _parse,
            nothing=Garbage,
            retry=retry,
            question=f"{layout.GARBAGE} was written; collect again",
            worker=worker,
        )


logger = logging.getLogger("walstore.upload")

LOOK_SECONDS: Final = 2.0
"""How often a writer that publishes without such a pause looks; one request, if nothing is announced. Others
never look, since a collector gets in between."""
TRUSTED_SECONDS: Final = 2 * LOOK_SECONDS
"""How long after a look the announced garbage may be dropped."""


@dataclass(frozen=True, slots=True)
class _SeenAnnouncement:
    """An announcement, and when it was not read yet."""

    garbage: Garbage
    asked: TwoClockTime


class Announced:
    """What one writer of a log knows about announced collections. Belongs to one event loop."""

    def __init__(self, store: ObjectStore, worker: Worker, clock: Clock) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self._background = BackgroundTask[_SeenAnnouncement | None]()
        self._seen: _SeenAnnouncement | None = None
        self._published: TwoClockTime | None = None
        self._looked: TwoClockTime | None = None

    def begin(self) -> None:
        """Take note that something was published, and begin to look if it is time; return at once."""
        now, before = TwoClockTime.now(self._clock), self._published
        self._published = now
        is_steady = before is not None and before.age_seconds(self._clock) < LOOK_SECONDS
        if not is_steady or self._looked is None:
            self._looked = now
        elif not self._background.is_busy and self._looked.age_seconds(self._clock) >= LOOK_SECONDS:
            self._looked = now
            self._collect()
            self._background.start(self._look(now), f"look for garbage of {self._store.url}")

    def take_out(self, manifest: Manifest) -> Manifest:
        """Return the manifest without what is announced; the same object if it has nothing of that.

        Also the same if it cannot drop it exactly as announced: entries were rolled up since. The collector
        finds that, too.
        """
        self._collect()
        seen = self._seen
        if seen is None:
            return manifest
        if seen.asked.age_seconds(self._clock) >= TRUSTED_SECONDS:
            self._seen = None
            return manifest
        try:
            return apply_garbage(manifest, seen.garbage) or manifest
        except (StaleGarbageError, CorruptionError) as error:
            logger.info("%s: the announced garbage is not dropped: %s", self._store.url, error)
            self._seen = None
            return manifest

    async def wait(self) -> None:
        """Return when no look is under way."""
        await self._background.wait()

    async def aclose(self) -> None:
        """Cancel what is in progress, and wait for its end; may be called twice."""
        await self._background.aclose()

    # -- inside ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take the result of a look that has ended."""
        task = self._background.take()
        if task is None:
            return
        try:
            self._seen = task.result()
        except WalError as error:
            self._seen = None
            logger.info("%s: %s could not be read: %s", self._store.url, layout.GARBAGE, error)

    async def _look(self, asked: TwoClockTime) -> _SeenAnnouncement | None:
        found = await find_stored(self._store, layout.GARBAGE, _parse, worker=self._worker)
        if found is None or not found.value.cursors_checked:
            return None
        garbage = found.value
        lowest = lowest_cursor(await Keepers(self._store).list(), self._clock.now_us())
        if lowest is None or lowest.position < garbage.first_to_keep:
            return None
        if garbage.snapshot_for_root is not None:
            tree = ManifestTree(self._store, self._worker, cache_bytes=0)
            await tree.snapshot(garbage.snapshot_for_root)
        return _SeenAnnouncement(garbage, asked)


def _parse(data: bytes) -> Garbage:
    garbage = Garbage.parse(data)
    garbage.scrub()
    return garbage
