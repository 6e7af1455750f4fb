"""Whether a log may be written at all: not once it is sealed, nor where one was destroyed.

Two things say so. The manifest of a sealed log carries a mark (``sealing.py``), which no writer's swap
gets past. A destroyed log has no manifest that could carry one, so a tombstone stays behind; whoever
creates a manifest looks for it afterwards, and so does whoever opens a log for writing.
"""

from __future__ import annotations

from uploader import layout
from uploader.manifests.manifest import Manifest
from uploader.stores.port import ObjectStore
from walstore.errors import LogNotFoundError, LogSealedError


def check_unsealed(manifest: Manifest, *, url: str) -> None:
    """Raise LogSealedError if the log takes no more records."""
    if manifest.is_sealed:
        raise LogSealedError(
            f"{url} is sealed at offset {manifest.next_offset}; begin another log, or fork this one",
            location=url,
        )


async def check_not_destroyed(store: ObjectStore) -> None:
    """Raise LogNotFoundError if a log was destroyed here: nothing may begin in its place.

    A writer that creates a manifest asks afterwards, not before: a destroyer puts the tombstone before it
    removes anything, so one of the two sees what the other did.
    """
    if await store.head(layout.TOMBSTONE) is not None:
        raise LogNotFoundError(
            f"the log at {store.url} was destroyed; begin a new one at another prefix",
            location=store.url,
        )


def has_records(manifest: Manifest) -> bool:
    """Return whether a log holds records, or held some: then its manifest tells whether it was destroyed.

    Whoever published them had looked for a tombstone after the manifest was there; so one that came later
    is that of a destroyer who sealed this manifest first. Only an empty one may have been made in a destroyed
    log's place, by a program that died before it looked.
    """
    return manifest.next_offset > layout.FIRST_OFFSET
