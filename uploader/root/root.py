"""What the rest of the cloud tier asks of a log's root: the object that names every fragment.

Owns the ``Root`` Protocol. Two layouts fulfil it: one manifest that is swapped (``swapped_root.py``,
wal3's, the default), and a chain of immutable ones (``chain/``). Never does I/O.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.stores.port import ListedObject

Change = Callable[[Manifest], Manifest | None]
"""Makes the next manifest from the newest one; None if there is nothing to do. Pure: it may be called
several times, on a worker thread, each time with a newer manifest. After a lost answer that one may hold
already what an earlier call made."""


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
        """How many calls of :meth:`publish` may be under way at once; at least 1."""

    def fragment_key(self, seq_no: int, *, start: int, limit: int, setsum: Setsum) -> str:
        """Return the key under which a fragment of this log is to be put."""

    def early_key(self, seq_no: int) -> str | None:
        """Return the key of a fragment if its number alone says it, else None."""

    def unpublished(self) -> AsyncIterator[ListedObject]:
        """Yield the objects that lie where fragments behind the manifest's end belong, by number."""

    async def load(self) -> bool:
        """Read the newest manifest; return False if there is none, or none any more.

        CorruptionError if it is damaged, or does not go on from the one known before (it is older, or names
        other records); else the store's errors.
        """

    async def may_have_changed(self) -> bool:
        """Return False if :meth:`load` would find nothing new, where that can be asked for less.

        For readers, who may be told no for some seconds after something came. The store's errors.
        """

    async def load_or_create(self, writer: str) -> None:
        """Read the newest manifest, creating an empty one if there is none.

        Several may try: one creates. A root that has known a log never creates one. LogNotFoundError if
        that is gone, or a log was destroyed there (``write_guard.py``). OutcomeUnknownError if the store does
        not answer; call again.
        """

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Append fragments, which are in the store already, to the log.

        Returns when they are named by a manifest that readers find, also if an earlier call had done it
        without learning it. Calls under way at once are begun in the order of their fragments, each
        continuing the one before; none returns before those. ContentionError if another writer appended
        instead; FencedError if a directory claimed the log under another name than ``writer``
        (``uploader/root/ownership.py``); LogSealedError if the log was sealed; OutcomeUnknownError if
        the store does not answer: call again with the same fragments.
        """

    async def change(self, make: Change) -> bool:
        """Replace the newest manifest by what ``make`` makes of it, whoever writes meanwhile.

        Two programs that make the same bytes of the same manifest both succeed, since nobody can tell
        which of them did. Returns False if ``make`` returned None. Passes on what ``make`` raises;
        CorruptionError if what it makes is no sound successor; OutcomeUnknownError as for :meth:`publish`.
        """

    async def aclose(self) -> None:
        """Give up what goes on behind publishing (rolling up, say), and wait for its end.

        To be called before the store is closed; twice is allowed. Nothing is lost: what was published
        stays so, and what was not finished is begun again by the next writer.
        """
