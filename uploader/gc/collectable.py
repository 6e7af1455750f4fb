"""Collectable: which objects of a log a collector may delete, according to the log itself.

Uses the newest manifest, keys, and the contents of snapshots. An announcement and a record of heads may be
forged: they can only reduce the set. It stays valid, since manifests only move forward:

  * a fragment whose number is below those that the manifest names: no number is given again;
  * a snapshot that begins below the log's head: no later manifest names a record from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from uploader.format.garbage import first_seq_no
from uploader.format.inventory import Part, fragment_number, part_of
from uploader.format.manifest import Manifest
from uploader.format.snapshot import Snapshot
from uploader.garbage.observed_heads import ObservedHead
from uploader.root.stored_document import read_stored
from uploader.runtime.task_groups import gather_all
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from walstore.errors import CollectionRefusedError, CorruptionError, FormatVersionError
from walstore.runtime.threads import Worker

logger = logging.getLogger("walstore")

_AT_ONCE: Final = 16


class Collectable:
    """The objects of one log that may be deleted, as of one manifest. One task at a time."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        manifest: Manifest,
        head: ObservedHead | None = None,
    ) -> None:
        """``manifest`` is the newest, or was a moment ago; with ``head``, only what is below that."""
        self._store = store
        self._worker = worker
        self._offset = manifest.oldest_offset
        self.limit_seq_no = first_seq_no(manifest)
        """Fragments with lower numbers may be deleted."""
        if head is not None:
            self._offset = min(self._offset, head.offset)
            self.limit_seq_no = min(self.limit_seq_no, head.seq_no)
        self._read: dict[str, bool] = {}

    def admits(self, key: str) -> bool:
        """Return whether the object may be deleted. Snapshots must have been read: see :meth:`read`."""
        part = part_of(key)
        if part is Part.FRAGMENT:
            return fragment_number(key) < self.limit_seq_no
        return part is Part.SNAPSHOT and self._read.get(key, False)

    async def read(self, key: str) -> bool | None:
        """Return whether the snapshot may be deleted; None if it is gone, or cannot be read.

        Reads it once. One that is damaged stays, with a warning. The store's errors are passed on.
        """
        if key not in self._read:
            snapshot = await self._snapshot(key)
            if snapshot is None:
                return None
            self._read[key] = snapshot.pointer().start < self._offset
        return self._read[key]

    async def check(self, keys: Sequence[str]) -> None:
        """Raise CollectionRefusedError if one of these snapshots must stay."""
        for low in range(0, len(keys), _AT_ONCE):
            some = keys[low : low + _AT_ONCE]
            for key, may_go in zip(some, await gather_all(map(self.read, some)), strict=True):
                if may_go is False:
                    raise CollectionRefusedError(
                        f"{key} in {self._store.url} holds what is not collected; verify the log"
                    )

    # -- inside ------------------------------------------------------------------------------

    async def _snapshot(self, key: str) -> Snapshot | None:
        try:
            found = await read_stored(
                self._store, key, partial(_parse, key=key), worker=self._worker
            )
            return found.value
        except ObjectNotFoundError:
            return None
        except (CorruptionError, FormatVersionError) as error:
            logger.warning("%s is left alone: %s", key, error)
            return None


def _parse(data: bytes, key: str) -> Snapshot:
    snapshot = Snapshot.parse(data, path=key)
    snapshot.scrub()
    if snapshot.path != key:
        raise CorruptionError(f"a snapshot that says that it is {snapshot.path}", path=key)
    return snapshot
