"""seal: a log that takes no more records, from nobody and never again.

The seal is a swap of the manifest like any other: the next manifest is the same log with a mark in it
(``sealing.py``). Every append commits by a swap of the manifest it knew, so it comes either before that
swap, and is in the sealed log, or after it: then the store refuses it, however long the request was on
its way, since it names a manifest that is there no more and never comes back. The writer reads the newer
one and finds the mark. There is no flag that could be looked at too early.

Between two calls to the store the sealer may die: before the swap nothing happened, after it the log is
sealed. Calling again finishes the rest.

wal3's own writers do not know the mark. What keeps them out is an object that is no fragment where their
next one belongs: their put fails, and opening fails on it. It takes the place of a fragment that somebody
put there and that no manifest names; since the log is sealed, none ever will.
"""

from __future__ import annotations

from uploader import layout
from uploader.errand import Errand, errand, put_anyhow
from uploader.manifests.manifest import Manifest
from uploader.manifests.manifest_log import ManifestLog
from uploader.manifests.sealing import blocker
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.ports import Clock


async def seal(
    url: str,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> int:
    """Seal the log under ``url``, and return where it ends: the offset after its last record.

    When it returns, no append commits any more, whoever makes it or has made it: one that is under way
    raises LogSealedError. Records appended to a local log stay on its disk. Reading, cursors, collection,
    forks and :func:`uploader.destroy` work as before. There is no way back. Sealing a sealed log changes
    nothing and returns the same.

    Raises LogNotFoundError if there is no log, CorruptionError if its manifest is damaged, and
    OutcomeUnknownError if the store does not answer: call again. Cancelled, the log may be sealed or not.

    Args:
        url: Where the log lies.
        store: Replaces the store that the URL names, and stays open.
        retry: How conditional puts are repeated.
        clock: Sleeps between the attempts.
    """
    async with errand(url, store=store, retry=retry, clock=clock) as found:
        return await seal_root(found)


async def seal_root(found: Errand) -> int:
    """Seal the log of an errand; see :func:`seal`."""
    found.check_found()
    await found.root.change(_sealed)
    manifest = found.root.manifest
    if isinstance(found.root, ManifestLog):
        key, data = layout.fragment_path(manifest.next_seq_no), blocker(manifest.next_offset)
        await put_anyhow(found.store, key, data, retry=found.retry)
    return manifest.next_offset


def _sealed(manifest: Manifest) -> Manifest | None:
    return None if manifest.is_sealed else manifest.seal()
