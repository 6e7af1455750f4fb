"""Maker: what the next manifest of a chain is to be, made of the newest one. Never puts it."""

from __future__ import annotations

from collections.abc import Sequence

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.names import FragmentName
from uploader.format.pending_link import LinkBase, Make, WaitForDurableError
from uploader.garbage.announced import Announced
from uploader.root.published import is_published
from uploader.root.roller import Roller
from uploader.root.root import Change
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import next_writer
from uploader.stores.port import ObjectStore
from walstore.errors import ContentionError
from walstore.runtime.threads import Worker


class Maker:
    """Makes the manifests of one chain. What it returns may be called again, each time with a newer one."""

    def __init__(
        self, store: ObjectStore, worker: Worker, roller: Roller, announced: Announced
    ) -> None:
        self._store = store
        self._worker = worker
        self._roller = roller
        self._announced = announced
        self._tree = ManifestTree(store, worker, cache_bytes=0)

    def append(self, fragments: Sequence[Fragment], writer: str) -> Make:
        """Return what appends fragments, rolls up what is ready and drops what is announced as garbage; None
        if they are published already.

        ValueError for a key that does not say what the entry says. What is returned raises ContentionError
        if they do not continue the log, LogSealedError if it is sealed, FencedError if a directory claimed
        it under another name.
        """
        for fragment in fragments:
            _check_key(fragment)

        async def appended(ground: LinkBase) -> Manifest | None:
            manifest, last = ground.manifest, fragments[-1]
            if ground.is_durable and await is_published(
                self._tree, manifest, last, url=self._store.url
            ):
                return None
            name = next_writer(manifest, writer, url=self._store.url)
            first = fragments[0]
            if (manifest.next_seq_no, manifest.next_offset) == (first.seq_no, first.start):
                grown = manifest.apply_fragments(fragments, name)
                return self._roller.fold(self._announced.take_out(grown))
            if not ground.is_durable:
                raise WaitForDurableError
            raise ContentionError(
                f"another writer published fragment {first.seq_no} of {self._store.url}; "
                "only one log may ship to a prefix"
            )

        return appended

    def change(self, make: Change) -> Make:
        """Return what changes a manifest in any way; CorruptionError if that is no sound successor."""

        async def changed(ground: LinkBase) -> Manifest | None:
            made = await self._worker.run(_make_checked, make, ground.manifest)
            if made is None and not ground.is_durable:
                raise WaitForDurableError
            return made

        return changed


def _check_key(fragment: Fragment) -> None:
    name = FragmentName.parse(fragment.path)
    stated = FragmentName(fragment.seq_no, fragment.start, fragment.limit, fragment.setsum)
    if name != stated:
        raise ValueError(f"fragment {fragment.seq_no} has the key {fragment.path!r}")


def _make_checked(make: Change, manifest: Manifest) -> Manifest | None:
    made = make(manifest)
    if made is not None:
        made.scrub()
        manifest.scrub_successor(made)
    return made
