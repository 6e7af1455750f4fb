"""Misfits: fragments behind a log's end that no manifest can ever name, but that wal3 would still link.

A writer that opens the log voids them (``root/orphan_recovery.py``). So does a collector, since none of our
writers may open the log for a long time. A fragment that may still fit is left alone, however old it is:
its writer may be alive, and would publish and acknowledge a fragment that is no longer there.
"""

from __future__ import annotations

import logging
from typing import Final

from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.root import cas
from uploader.root.orphan_recovery import VOID, can_follow
from uploader.root.ownership import is_shipped_to
from uploader.root.root import Root
from uploader.root.stored_document import read_object
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import CorruptionError
from walstore.runtime.threads import Worker

logger = logging.getLogger("walstore")

_MOST: Final = 100
"""Objects behind the end that are read in one go. A writer has at most a few dozen under way."""


async def void_misfits(
    store: ObjectStore, root: Root, *, retry: RetryPolicy, worker: Worker
) -> tuple[str, ...]:
    """Void objects behind the end of ``root``, as last read, that can never follow; return their keys.

    Only where numbers alone are keys, so that wal3 may write there. A directory that ships to the log
    judges the objects there itself, and stops at what others put. A sealed log is safe.
    Costs a listing, and reads each fragment behind the end. The store's errors are passed on.
    """
    manifest = root.manifest
    is_ours_alone = root.early_key(layout.FIRST_SEQ_NO) is None or is_shipped_to(manifest)
    if is_ours_alone or manifest.is_sealed:
        return ()
    found = [listed.key async for listed in root.unpublished()]
    voided = []
    for key in [key for key in found if layout.fragment_number(key) is not None][:_MOST]:
        if await _void(store, key, manifest, retry, worker):
            voided.append(key)
            logger.warning("%s: %s can never be part of the log", store.url, key)
    return tuple(voided)


async def _void(
    store: ObjectStore, key: str, manifest: Manifest, retry: RetryPolicy, worker: Worker
) -> bool:
    """Void one object if it is a misfit; an object that replaced it since the read is left alone."""
    try:
        stored = await read_object(store, key)
        entry = await worker.run(inspect_fragment, stored.data, key)
    except (ObjectNotFoundError, CorruptionError):
        return False  # wal3 would not link it
    end = manifest.next_seq_no, manifest.next_offset
    if entry.seq_no < manifest.next_seq_no or can_follow(entry, *end):
        return False
    result = await cas.swap(store, key, VOID, stored.etag, retry=retry)
    return result.outcome is cas.PutOutcome.COMMITTED
