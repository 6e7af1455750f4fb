"""Whether a log may be written at all: not once it is sealed, nor where one was destroyed.

Two things say so. The manifest of a sealed log carries a mark (``sealing.py``), which no writer's swap
gets past. A destroyed log has no manifest that could carry one, so a tombstone stays behind; whoever
creates a manifest looks for it afterwards, and so does whoever opens a log for writing.
"""

from __future__ import annotations

from uploader import layout
from uploader.manifests.manifest import Manifest
from uploader.stores.port import ObjectStore
from uploader.writing.ownership import check_held
from walstore.errors import LogNotFoundError, LogSealedError


def check_unsealed(manifest: Manifest, *, url: str) -> None:
    """Raise LogSealedError if the log takes no more records."""
    if manifest.is_sealed:
        raise LogSealedError(
            f"{url} is sealed at offset {manifest.next_offset}; begin another log, or fork this one",
            location=url,
        )


def check_appendable(manifest: Manifest, writer: str, *, url: str) -> None:
    """Raise LogSealedError, or FencedError if a directory claimed the log since ``writer`` did.

    Asked of the very manifest that is to be replaced, by whoever appends fragments to it.
    """
    check_unsealed(manifest, url=url)
    check_held(manifest, writer, url=url)


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


async def check_writable(store: ObjectStore, manifest: Manifest) -> None:
    """Raise LogSealedError or LogNotFoundError if nothing may be appended; one request."""
    check_unsealed(manifest, url=store.url)
    await check_not_destroyed(store)
