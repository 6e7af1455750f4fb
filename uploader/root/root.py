"""What the rest of the cloud tier requires of a log's root: the object that names every fragment.

Owns the ``Root`` Protocol. Two layouts implement it: one manifest that is swapped (``swapped_root.py``,
wal3's, the default), and a chain of immutable ones (``chain/``). Never does I/O.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.stores.port import ListedObject, ObjectStore

Change = Callable[[Manifest], Manifest | None]
"""Makes the next manifest from the newest one; None if there is nothing to do. Pure: it may be called
several times, on a worker thread, each time with a newer manifest. After a lost answer that one may
already contain an earlier call's change."""

Note: TypeAlias = Callable[[Sequence[Fragment]], Awaitable[None]]
"""Awaited with fragments that are about to be published, such as :meth:`uploader.DirtyLog.note_for`
returns. They are published once it returns, and not if it raises. It may be called again with the same, and
is also called with fragments that another writer left behind."""


def make_checked(make: Change, manifest: Manifest) -> Manifest | None:
    """Return what ``make`` makes of the manifest; CorruptionError if that is not a sound successor."""
    made = make(manifest)
    if made is not None:
        made.scrub()
        manifest.scrub_successor(made)
    return made


class Root(Protocol):
    """The root of one log in an object store, as one program sees it. Belongs to one event loop."""

    @property
    def manifest(self) -> Manifest:
        """The newest manifest known to be current when it was read or written."""

    @property
    def is_known(self) -> bool:
        """Whether there is a manifest, as far as we know."""

    @property
    def max_publishing(self) -> int:
        """How many calls of :meth:`publish` may be in flight at once; at least 1."""

    def fragment_key(self, seq_no: int, *, start: int, limit: int, setsum: Setsum) -> str:
        """Return the key for a fragment of this log."""

    def early_key(self, seq_no: int) -> str | None:
        """Return the key of a fragment if its number alone determines it, else None."""

    def take_content(self, path: str, data: bytes, store: ObjectStore) -> bool:
        """Take a fragment that is to be published next, if the root can hold it itself.

        True: then its object need not be put, and the manifest that names it makes it durable. The root puts
        the object through ``store``, in the background; readers find the fragment before that. False: put the
        object first.
        """

    def begin_inline(self) -> None:
        """Begin to put the objects that the newest manifest known says may be missing; return at once.

        For writers that open the log: by the time of their first manifest most need not be listed any more.
        """

    async def put_inline(self) -> None:
        """Put the objects that the newest manifest known says may be missing, for programs that know only
        objects.

        Any program that may write may do so. The store's errors; CorruptionError for damaged manifests.
        """

    def unpublished(self) -> AsyncIterator[ListedObject]:
        """Yield the objects in the places of fragments behind the manifest's end, by number."""

    async def load(self) -> bool:
        """Read the newest manifest; return False if there is none, or none any more.

        CorruptionError if it is damaged, or does not continue the one known before (it is older, or names
        other records); else the store's errors: the store decides how often a read is repeated.
        """

    async def may_have_changed(self) -> bool:
        """Return False if :meth:`load` would find nothing new, where a cheaper request shows that.

        For readers: the answer may stay False for some seconds after a change. The store's errors.
        """

    async def load_or_create(self, writer: str) -> None:
        """Read the newest manifest, creating an empty one if there is none.

        Of several callers one creates it. A root that has known a log never creates one. LogNotFoundError if
        that log is gone, or was destroyed (``write_guard.py``). InvalidSettingsError if a log of the other
        layout was created meanwhile. OutcomeUnknownError if the store does not answer; call again.
        """

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Append fragments, which are in the store already or taken by the root, to the log.

        Returns when a manifest that readers find names them, also if an earlier call published them but its
        answer was lost. Start concurrent calls in the order of their fragments, each
        continuing the one before; none returns before earlier ones. ContentionError if another writer
        appended instead; FencedError if a directory claimed the log under another name than ``writer``
        (``uploader/root/ownership.py``); LogSealedError if the log was sealed; OutcomeUnknownError if
        the store does not answer: call again with the same fragments.
        """

    async def change(self, make: Change) -> bool:
        """Replace the newest manifest by the result of ``make``, despite concurrent writers.

        Two programs that make the same bytes of the same manifest both succeed, since they cannot be
        distinguished. Returns False if ``make`` returned None. Passes on what ``make`` raises;
        CorruptionError, and nothing is written, if the result is not a sound successor; OutcomeUnknownError
        as for :meth:`publish`.
        """

    async def aclose(self) -> None:
        """Cancel background work such as roll-ups, and wait for its end.

        Call it before the store is closed; idempotent. Nothing is lost: published fragments
        stay published, and the next writer restarts unfinished work.
        """
