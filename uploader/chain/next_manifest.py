"""The next link of a chain: its base, and the functions that make its manifest. Never puts it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from uploader.format.entries import Fragment
from uploader.format.layout import FragmentName
from uploader.format.link import Link
from uploader.format.manifest import Manifest
from uploader.root.garbage_file import Announced
from uploader.root.roller import Roller
from uploader.root.root import Change, make_checked
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import next_writer
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ObjectStore
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError


@dataclass(frozen=True, slots=True)
class LinkBase:
    """The manifest that a pending link is built upon."""

    manifest: Manifest
    is_durable: bool
    """If not, it may never be."""


Make = Callable[[LinkBase], Awaitable[Manifest | None]]
"""Makes the next manifest from the newest one. None: there is nothing to do."""


class WaitForDurableError(Exception):
    """The next step cannot be decided from a manifest that may never be durable."""


@dataclass(slots=True, eq=False)
class PendingLink:
    """Lives from a call of ``publish`` or ``change`` to its end."""

    make: Make
    is_append: bool
    """Whether it cannot do without the ones before it."""
    fragments: Sequence[Fragment] = ()
    """What it appends."""
    must_be_alone: bool = False
    """Whether it needs a durable manifest to be made from."""
    turn: asyncio.Future[None] | None = None
    """Set while it waits to be planned."""
    link: Link | None = None
    """What it is to become; None as long as it is not planned."""
    data: bytes = field(default=b"", repr=False)
    """The object of ``link``."""
    tried: Link | None = None
    """What it was to become before it had to be planned again."""
    since: TwoClockTime | None = None
    """When the slot of ``link`` was not taken yet."""
    sent: TwoClockTime | None = None
    """When ``link`` had not been put yet."""
    is_durable: bool = False
    """Whether its link is in the store. It counts once those before it are."""
    error: BaseException | None = None
    """Its error, from the outcome of another one or of its put."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is done, has an error, or lost its link and must be planned again."""
    is_done: bool = False
    """Whether its link, and all before it, are in the store."""

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error


class NextManifest:
    """Makes the manifests of one chain. Its functions may be called again with a newer manifest."""

    def __init__(
        self, store: ObjectStore, worker: Worker, roller: Roller, announced: Announced
    ) -> None:
        self._store = store
        self._worker = worker
        self._roller = roller
        self._announced = announced
        self._tree = ManifestTree(store, worker, cache_bytes=0)

    def append(self, fragments: Sequence[Fragment], writer: str) -> Make:
        """Return a function that appends fragments, rolls up what is ready and drops announced garbage.

        It returns None if they are published already. It raises ContentionError if they do not continue the
        log, LogSealedError if that is sealed, FencedError if a directory claimed it under another name.
        ValueError, from here, for a key that differs from its entry.
        """
        for fragment in fragments:
            _check_key(fragment)

        async def appended(base: LinkBase) -> Manifest | None:
            manifest = base.manifest
            if base.is_durable and await self._tree.is_published(manifest, fragments):
                return None
            name = next_writer(manifest, writer, url=self._store.url)
            first = fragments[0]
            if (manifest.next_seq_no, manifest.next_offset) == (first.seq_no, first.start):
                grown = manifest.apply_fragments(fragments, name)
                return self._roller.fold(self._announced.take_out(grown))
            if not base.is_durable:
                raise WaitForDurableError
            raise ContentionError(
                f"another writer published fragment {first.seq_no} of {self._store.url}; "
                "only one log may ship to a prefix"
            )

        return appended

    def change(self, make: Change) -> Make:
        """Return a function that makes any change; CorruptionError if the result is no sound successor."""

        async def changed(base: LinkBase) -> Manifest | None:
            made = await self._worker.run(make_checked, make, base.manifest)
            if made is None and not base.is_durable:
                raise WaitForDurableError
            return made

        return changed


def _check_key(fragment: Fragment) -> None:
    name = FragmentName.parse(fragment.path)
    stated = FragmentName(fragment.seq_no, fragment.start, fragment.limit, fragment.setsum)
    if name != stated:
        raise ValueError(f"fragment {fragment.seq_no} has the key {fragment.path!r}")
