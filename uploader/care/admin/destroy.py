"""destroy: removes a log and all its objects, and prevents a new log from starting there by accident.

The order makes it safe. The process may die between any two calls to the store; another call continues, and
the precondition of each step still holds:

  1. The log is sealed: from now on no append commits (``seal.py``).
  2. A tombstone is put. From now on no writer starts a log here, not even one whose request to create the
     manifest is still in flight: it checks for the tombstone afterwards (``write_guard.py``).
  3. The manifest drops all its entries, as a collector would, and records that the log was destroyed, so
     readers do not mistake the next steps for damage.
  4. Fragments, snapshots, cursors and the rest are removed; then the manifest; then the seal's blocker at the
     key of the next fragment, so that no wal3 writer continues while a manifest exists.

The tombstone stays. A chain also keeps its last manifest and those in slots that a writer may believe to be
free (``chain/pruning.py``): only they show that writer that its put came too late. Objects whose key is not a
log's own are never removed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from uploader.care.admin.seal import seal_root
from uploader.chain.chain_reader import ChainReader
from uploader.chain.pruning import outlives
from uploader.format import layout
from uploader.format.document import position, serialise
from uploader.format.inventory import FOLDERS, Part, goes_with_its_log, part_of
from uploader.format.layout import MANIFEST_PREFIX, parse_manifest_key
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import LogSession
from uploader.root import cas
from uploader.stores.port import ListedObject, ObjectStore, remove
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OutcomeUnknownError,
)

_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Destroyed:
    """What :func:`destroy` has removed so far; objects that earlier calls removed are not counted."""

    objects: int = 0
    """Objects removed."""
    object_bytes: int = 0
    """Their length."""
    left: tuple[str, ...] = ()
    """Keys in the log's folders that are not part of a log and were left alone. The first thousand."""


async def destroy(
    url: str,
    *,
    confirm: bool = False,
    progress: Callable[[Destroyed], None] | None = None,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> Destroyed:
    """Remove the log under ``url`` permanently. Only its tombstone and the last manifests of a chain stay.

    No append commits any more, not even one of a writer that is open or was paused for an hour. Opening a
    writer where a log was destroyed raises LogNotFoundError. Calling again removes objects that arrived late
    or that an interrupted call left.

    Raises InvalidSettingsError if the log is not sealed and therefore may be in use, unless ``confirm`` is
    true. Raises LogNotFoundError if there is no log and none was destroyed here, CorruptionError if its
    manifest is damaged, and the store's errors; after OutcomeUnknownError call again. A cancelled call may
    have removed some or all objects; call again.

    Args:
        url: Location of the log.
        confirm: Whether to seal a log that is not sealed, and then destroy it.
        progress: Called with the totals so far, at least once per two hundred objects.
        store: Replaces the store that the URL names, and stays open.
        retry: Retry policy of conditional puts.
        clock: Gives the tombstone's time, and sleeps between attempts.
    """
    async with LogSession.once(url, store=store, retry=retry, clock=clock) as session:
        is_buried = await session.store.head(layout.TOMBSTONE) is not None
        last: AbstractSet[str] = frozenset()
        kept: AbstractSet[str] = frozenset()
        try:
            async with aclosing(await session.find_root()):
                if not is_buried:
                    session.check_found()
                if session.root.is_known:
                    await _end(session, confirm=confirm or is_buried)
                    last = {layout.fragment_path(session.root.manifest.next_seq_no)}
                kept = await _outliving(session)
        except (CorruptionError, LogNotFoundError):
            if not is_buried:
                raise
        return await _remove_all(session.store, progress, last=last, kept=kept)


async def _end(session: LogSession, *, confirm: bool) -> None:
    """Seal the log, put the tombstone, and replace the manifest by an empty one marked as destroyed."""
    manifest = session.root.manifest
    if not (manifest.is_sealed or confirm):
        raise InvalidSettingsError(
            f"{session.store.url} is not sealed and may be in use; seal it first, or confirm that it should "
            "be destroyed"
        )
    await seal_root(session)
    await _bury(session, session.root.manifest)
    await session.root.change(_destroyed)


async def _bury(session: LogSession, manifest: Manifest) -> None:
    """Put the tombstone unless it exists. Its content is for people only."""
    data = serialise(
        {
            "destroyed_us": session.clock.now_us(),
            "setsum": manifest.setsum.hexdigest(),
            "acc_bytes": manifest.acc_bytes,
            "limit": position(manifest.next_offset),
        }
    )
    result = await cas.create(session.store, layout.TOMBSTONE, data, retry=session.retry)
    if result.outcome is cas.PutOutcome.UNKNOWN or (
        result.outcome is cas.PutOutcome.LOST and result.data is None
    ):
        raise OutcomeUnknownError(
            f"{session.store.url} did not report whether the tombstone was put; call again",
            retriable=True,
        ) from result.cause


def _destroyed(manifest: Manifest) -> Manifest | None:
    return None if manifest.is_destroyed else manifest.destroy()


async def _outliving(session: LogSession) -> AbstractSet[str]:
    """Return the keys of a destroyed chain's manifests that stay; empty if the log is not a chain."""
    head = await ChainReader(session.store, session.worker, session.clock).find_head()
    if head is None or not head.link.manifest.is_destroyed:
        return frozenset()
    return {
        listed.key
        async for listed in session.store.list(MANIFEST_PREFIX)
        if part_of(listed.key) is Part.MANIFEST
        and outlives(head.link, parse_manifest_key(listed.key))
    }


async def _remove_all(
    store: ObjectStore,
    progress: Callable[[Destroyed], None] | None,
    *,
    last: AbstractSet[str],
    kept: AbstractSet[str],
) -> Destroyed:
    """Remove all objects except ``kept``, then the manifests, then the keys in ``last``."""
    removed = Destroyed()
    manifests: list[ListedObject] = []
    late: list[ListedObject] = []
    for folder, part in FOLDERS.items():
        async with aclosing(_batches(store, folder)) as batches:
            async for batch in batches:
                if part is Part.MANIFEST:
                    manifests += [listed for listed in batch if listed.key not in kept]
                    continue
                late += [listed for listed in batch if listed.key in last]
                removed = await _remove(
                    store, [listed for listed in batch if listed.key not in last], removed
                )
                if progress is not None:
                    progress(removed)
    # A chain destroyed by an earlier version may lack its last manifest. The newest one left, which has the
    # first key, then at least says that the log is sealed.
    manifests.sort(key=lambda listed: listed.key)
    for some in (manifests[1:], manifests[:1], late):
        removed = await _remove(store, some, removed)
        if progress is not None:
            progress(removed)
    return removed


async def _batches(store: ObjectStore, folder: str) -> AsyncGenerator[list[ListedObject], None]:
    batch: list[ListedObject] = []
    async for listed in store.list(folder):
        batch.append(listed)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


async def _remove(
    store: ObjectStore, batch: Sequence[ListedObject], removed: Destroyed
) -> Destroyed:
    parts = {listed: part_of(listed.key) for listed in batch}
    doomed = [listed for listed in batch if goes_with_its_log(listed.key)]
    await remove(store, [listed.key for listed in doomed], rule=goes_with_its_log)
    left = [listed.key for listed, part in parts.items() if part is None]
    return Destroyed(
        objects=removed.objects + len(doomed),
        object_bytes=removed.object_bytes + sum(listed.size_bytes for listed in doomed),
        left=(*removed.left, *left)[:1000],
    )
