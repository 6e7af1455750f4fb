"""Whether a log may be written at all, not once it is sealed or destroyed; and how a directory claims it.

The manifest of a sealed log carries a mark (``manifest.py``), which stops every writer's change
of the root. A destroyed log leaves a tombstone: a program that creates a manifest looks for
it before and afterwards, and one that opens a log for writing looks, too. A destroyed chain also keeps its
last manifest, which carries a mark of its own (docs/chain.md, "The end").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.format.stream_table import carry_closings, check_closings, with_closings
from uploader.root.ownership import Claim, check_held, is_unwritten, next_claim
from uploader.root.root import Root
from uploader.runtime.task_groups import gather_all
from uploader.stores.port import ObjectStore
from walstore.core.format.claims import Claims
from walstore.errors import InvalidSettingsError, LogNotFoundError, LogSealedError


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
    """Return the writer for the next manifest, where ``writer`` appends fragments to this one.

    LogSealedError, FencedError if a directory claimed the log since ``writer`` did, ContentionError if
    ``writer`` lacks closings of streams (``stream_table.py``).
    """
    check_unsealed(manifest, url=url)
    check_held(manifest, writer, url=url)
    if Claim.parse(writer) is not None:
        return writer
    check_closings(manifest.writer, writer, url=url)
    return carry_closings(manifest.writer, writer)


def writer_after_rebuild(writer: str, closings: int) -> str:
    """Return the writer for a rebuilt manifest by ``writer``: all closings have taken effect.

    The damaged one may have said so, and without a number closed streams would count as open. Directories
    that ship have no streams there.
    """
    if Claim.parse(writer) is not None or not closings:
        return writer
    return with_closings(writer, closings)


async def check_not_destroyed(store: ObjectStore) -> None:
    """Raise LogNotFoundError if a log was destroyed here: nothing may begin in its place.

    Called before a manifest is created, so that nothing is created in vain, and afterwards: a destroyer
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
        raise missing(store.url)


async def check_creatable(store: ObjectStore, *, is_gone: bool) -> None:
    """Raise LogNotFoundError unless a manifest may be created where there is none.

    Not where a log was destroyed, nor by a program whose own log ``is_gone``: a new log in its place
    would take objects of the first for its own. InvalidSettingsError where there is a collection.
    """
    tombstone, collection = await gather_all(
        store.head(key) for key in (layout.TOMBSTONE, layout.COLLECTION_HEAD)
    )
    if tombstone is not None:
        raise destroyed(store.url)
    if collection is not None:
        raise InvalidSettingsError(
            f"there is a collection at {store.url}; give the log its own prefix"
        )
    if is_gone:
        raise LogNotFoundError(
            f"the log at {store.url} is gone: its manifest was deleted", location=store.url
        )


def has_records(manifest: Manifest) -> bool:
    """Return whether a log holds or held records: then its manifest shows whether it was destroyed.

    Their writer had looked for a tombstone after the manifest was there; so a later tombstone
    is from a destroyer that sealed this manifest first. Only an empty manifest may have been made in a
    destroyed log's place, by a program that died before it looked.
    """
    return manifest.next_offset > layout.FIRST_OFFSET


def may_be_revived(manifest: Manifest) -> bool:
    """Return whether a late request may have created a manifest where a log was destroyed.

    Not one that was changed since: its writer has looked for a tombstone, and destroyers seal first.
    """
    return is_unwritten(manifest) and not manifest.is_sealed


def missing(url: str) -> LogNotFoundError:
    """Return the error for a log that is not there."""
    return LogNotFoundError(f"there is no log at {url}", location=url)


def destroyed(url: str) -> LogNotFoundError:
    """Return the error for a log that was destroyed."""
    return LogNotFoundError(
        f"the log at {url} was destroyed; begin a new one at another prefix", location=url
    )


Remember = Callable[[Claims], Awaitable[None]]
"""Makes the directory's record of its claims durable."""


@dataclass(frozen=True, slots=True)
class Claiming:
    """A directory that is about to claim a prefix. Fields as the arguments of :func:`next_claim`.

    One change of the root; rules in ``ownership.py``. The process may die, or its caller be cancelled, at any
    line here, and the change may take effect after the call ended. The directory has stored the name before,
    so it recognises its own claim later. A claim that was overtaken by another one never takes effect: the
    root has changed since.
    """

    root: Root
    """Loaded."""
    log_id: bytes
    claims: Claims | None
    remember: Remember
    limit: int | None
    take_over: bool
    url: str
    is_replicated: bool = False

    async def take(self, *, proven: Manifest | None = None) -> Claim | None:
        """Put a claim into the newest manifest and return it.

        None if the directory must first be checked to hold what that names, and ``proven`` is not it. Where
        there is no manifest yet, this sends no request: the uploader first creates one with this claim,
        and learns whether another directory was quicker. For a replicated log it is created here: the
        late request of an earlier primary would otherwise come first, and end the time of this one. Errors
        as for :func:`next_claim`; LogSealedError, OutcomeUnknownError if the store does not answer, and its
        errors. Another call uses another name.
        """
        root, claims = self.root, self.claims
        while True:
            before = root.manifest
            following = next_claim(
                before,
                self.log_id,
                claims,
                limit=self.limit,
                take_over=self.take_over,
                url=self.url,
                is_replicated=self.is_replicated,
            )
            if following.must_prove and before is not proven:
                return None
            name = following.claim.name
            await self.remember(following.claims)
            if root.is_known:
                await root.change(partial(_claimed, before=before, name=name, url=self.url))
            elif self.is_replicated:
                await root.load_or_create(name)
            else:
                return following.claim
            if root.manifest.writer == name:
                return following.claim
            if claims is not None:  # another directory was quicker; must its claim be respected?
                claims = following.claims


def _claimed(manifest: Manifest, *, before: Manifest, name: str, url: str) -> Manifest | None:
    """Return the manifest with a claim; None if another one, or more records, came in between."""
    check_unsealed(manifest, url=url)
    if (manifest.writer, manifest.next_offset) != (before.writer, before.next_offset):
        return None
    return dataclasses.replace(manifest, writer=name)
