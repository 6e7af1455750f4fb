"""Whether a log may be written at all: not once it is sealed, nor where one was destroyed.

Two things say so. The manifest of a sealed log carries a mark (``sealing.py``), which no writer's change
of the root gets past. Where a log was destroyed, a tombstone stays behind: who creates a manifest looks for
it before and afterwards, and who opens a log for writing looks, too. A destroyed chain also keeps its last
manifest, which carries a mark of its own (docs/chain.md, "The end").
"""

from __future__ import annotations

from uploader.format import layout
from uploader.format.closings import carry_closings, check_closings, with_closings
from uploader.format.manifest import Manifest
from uploader.root.ownership import Claim, check_held, is_unwritten
from uploader.root.root import Root
from uploader.stores.port import ObjectStore
from walstore.errors import LogNotFoundError, LogSealedError


def check_unsealed(manifest: Manifest, *, url: str) -> None:
    """Raise LogSealedError if the log takes no more records."""
    if manifest.is_destroyed:
        raise LogSealedError(
            f"{url} was sealed at offset {manifest.next_offset} and destroyed; begin another log at another "
            "prefix",
            location=url,
        )
    if manifest.is_rebuilding:
        raise LogSealedError(
            f"{url} is being rebuilt; if that was interrupted, rebuild it again", location=url
        )
    if manifest.is_sealed:
        raise LogSealedError(
            f"{url} is sealed at offset {manifest.next_offset}; begin another log, or fork this one",
            location=url,
        )


def next_writer(manifest: Manifest, writer: str, *, url: str) -> str:
    """Return what the next manifest is to say of ``writer``, who appends fragments to this very one.

    LogSealedError, FencedError if a directory claimed the log since ``writer`` did, ContentionError if
    ``writer`` lacks closings of streams (``closings.py``).
    """
    check_unsealed(manifest, url=url)
    check_held(manifest, writer, url=url)
    if Claim.parse(writer) is not None:
        return writer
    check_closings(manifest.writer, writer, url=url)
    return carry_closings(manifest.writer, writer)


def writer_after_rebuild(writer: str, closings: int) -> str:
    """Return what a manifest that is made anew is to say of ``writer``: all closings have taken effect.

    The damaged one may have said so, and without a number closed streams would count as open. Directories
    that ship have no streams there.
    """
    if Claim.parse(writer) is not None or not closings:
        return writer
    return with_closings(writer, closings)


async def check_not_destroyed(store: ObjectStore) -> None:
    """Raise LogNotFoundError if a log was destroyed here: nothing may begin in its place.

    Who creates a manifest asks before it, so that nothing is created in vain, and afterwards: a destroyer
    puts the tombstone before it removes anything, so one of the two sees what the other did.
    """
    if await is_destroyed(store):
        raise destroyed(store.url)


async def is_destroyed(store: ObjectStore) -> bool:
    """Return whether a log was destroyed here."""
    return await store.head(layout.TOMBSTONE) is not None


async def check_exists(store: ObjectStore, root: Root) -> None:
    """Raise LogNotFoundError if the root, which is loaded, has found no log."""
    if not root.is_known:
        await check_not_destroyed(store)
        raise LogNotFoundError(f"there is no log at {store.url}", location=store.url)


async def check_creatable(store: ObjectStore, *, is_gone: bool) -> None:
    """Raise LogNotFoundError unless a manifest may be created where there is none.

    Not where a log was destroyed, nor by who has seen one that ``is_gone`` now: another one in its place
    would take what belongs to the first for its own.
    """
    await check_not_destroyed(store)
    if is_gone:
        raise LogNotFoundError(
            f"the log at {store.url} is gone: somebody deleted its manifest", location=store.url
        )


def has_records(manifest: Manifest) -> bool:
    """Return whether a log holds records, or held some: then its manifest tells whether it was destroyed.

    Whoever published them had looked for a tombstone after the manifest was there; so one that came later
    is that of a destroyer who sealed this manifest first. Only an empty one may have been made in a destroyed
    log's place, by a program that died before it looked.
    """
    return manifest.next_offset > layout.FIRST_OFFSET


def may_be_revived(manifest: Manifest) -> bool:
    """Return whether a manifest may have been created where a log was destroyed, by a request that came late.

    Not one that was changed since: who changes one has looked for a tombstone, and destroyers seal first.
    """
    return is_unwritten(manifest) and not manifest.is_sealed


def destroyed(url: str) -> LogNotFoundError:
    """Return the error for a log that was destroyed."""
    return LogNotFoundError(
        f"the log at {url} was destroyed; begin a new one at another prefix", location=url
    )
