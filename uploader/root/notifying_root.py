"""NotifyingRoot: calls a note with fragments before they are published.

It delegates all work to the inner root. Each note is delivered at least once, also when
publishing fails afterwards; fragments without a delivered note are not published. This includes fragments
that another writer left behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.root.root import Change, Root
from uploader.stores.port import ListedObject

Note: TypeAlias = Callable[[Sequence[Fragment]], Awaitable[None]]
"""Awaited with fragments that are about to be published, such as :meth:`uploader.DirtyLog.note_for`
returns. They are published once it returns, and not if it raises. It may be called again with the same."""


class NotifyingRoot:
    """A :class:`uploader.root.root.Root` that calls a :data:`Note` before it publishes."""

    def __init__(self, inner: Root, note: Note) -> None:
        """Wrap a root, which is closed with this one."""
        self._inner = inner
        self._note = note

    @property
    def manifest(self) -> Manifest:
        """As inside."""
        return self._inner.manifest

    @property
    def is_known(self) -> bool:
        """As inside."""
        return self._inner.is_known

    @property
    def max_publishing(self) -> int:
        """One, so that a failed note leaves no hole before later ones."""
        return 1

    def fragment_key(self, seq_no: int, *, start: int, limit: int, setsum: Setsum) -> str:
        """As inside."""
        return self._inner.fragment_key(seq_no, start=start, limit=limit, setsum=setsum)

    def early_key(self, seq_no: int) -> str | None:
        """As inside."""
        return self._inner.early_key(seq_no)

    def unpublished(self) -> AsyncIterator[ListedObject]:
        """As inside."""
        return self._inner.unpublished()

    async def load(self) -> bool:
        """As inside."""
        return await self._inner.load()

    async def may_have_changed(self) -> bool:
        """As inside."""
        return await self._inner.may_have_changed()

    async def load_or_create(self, writer: str) -> None:
        """As inside."""
        await self._inner.load_or_create(writer)

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Call the note with the fragments, then publish them. Raises what either raises."""
        await self._note(fragments)
        await self._inner.publish(fragments, writer)

    async def change(self, make: Change) -> bool:
        """As inside."""
        return await self._inner.change(make)

    async def aclose(self) -> None:
        """As inside."""
        await self._inner.aclose()


def with_note(root: Root, note: Note | None) -> Root:
    """Return the root, wrapped if there is a note to call."""
    return root if note is None else NotifyingRoot(root, note)
