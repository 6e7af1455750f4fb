"""seal: a log that takes no more records, from nobody and never again.

The seal is a change of the root like any other: the next manifest is the same log with a mark in it
(``sealing.py``). Every append commits by a change of the manifest it knew, so it comes either before that
one, and is in the sealed log, or after it: then the store refuses it, however long the request was on
its way, since it names a manifest that is there no more and never comes back. The writer reads the newer
one and finds the mark. There is no flag that could be looked at too early.

wal3's own writers do not know the mark. What keeps them out is an object that is no fragment where their
next one belongs, the blocker: their put fails, and opening fails on it. It comes first, and only into a
place that is free, or voided (``orphan_recovery.py``). An object there may be a fragment that its writer
is about to publish: it is published, as any other writer would do, and the next place is tried. So once
the blocker is put nobody publishes anything behind it, whether he knows the mark or not, and the mark
follows. Only what no manifest can ever name is replaced. A writer that puts several fragments at once may
have been in each next place before: then a blocker further ahead stops it, and what lies before that is
published.

Between any two calls to the store the sealer may die. Before the blocker nothing happened. Between blocker
and mark no append commits; writers are told that the log is sealed, readers are not yet. Calling again
finishes the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.closings import raise_closings
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.sealing import blocker, is_blocker
from uploader.fragments.fragment import fragment_closings, inspect_fragment
from uploader.layouts.log_session import LogSession, open_session
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root import cas
from uploader.root.orphan_recovery import VOID
from uploader.root.stream_file import StreamFile
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError, CorruptionError, LogSealedError
from walstore.ports import Clock

_PATIENT_TRIES: Final = 2
"""Places that are tried one after the other before a blocker is put further ahead."""


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

    Raises LogNotFoundError if there is no log, CorruptionError if its manifest is damaged, ContentionError
    if it is being rebuilt, and OutcomeUnknownError if the store does not answer: call again. Cancelled, the
    log may be sealed or not.

    Args:
        url: Where the log lies.
        store: Replaces the store that the URL names, and stays open.
        retry: How conditional puts are repeated.
        clock: Sleeps between the attempts.
    """
    async with open_session(url, store=store, retry=retry, clock=clock) as session:
        return await seal_root(session)


async def seal_root(session: LogSession) -> int:
    """Seal the log of a session; see :func:`seal`."""
    session.check_found()
    if session.root.manifest.is_rebuilding:
        raise ContentionError(
            f"{session.store.url} is being rebuilt; if that was interrupted, rebuild it again first"
        )
    if isinstance(session.root, SwappedRoot):
        await _seal_swapped(session)
    else:
        await session.root.change(_sealed)
    return session.root.manifest.next_offset


async def _seal_swapped(session: LogSession) -> None:
    """Put the blocker, then the mark. Begins again if the log went on in between, behind the blocker."""
    root = session.root
    while True:
        blocked = await _block(session)
        await root.change(partial(_sealed_at, seq_no=blocked))
        if root.manifest.is_sealed and root.manifest.next_seq_no == blocked:
            return


async def _block(session: LogSession) -> int:
    """Put the blocker where the log goes on, after publishing what lies there; return that number."""
    is_walled, lost = False, 0
    while True:
        manifest = session.root.manifest
        seq_no, limit = manifest.next_seq_no, manifest.next_offset
        result = await _put_blocker(session, seq_no, limit)
        if result.outcome is cas.PutOutcome.COMMITTED:
            return seq_no
        await _make_way(session, manifest, result)
        lost += 1
        if lost >= _PATIENT_TRIES and not is_walled:
            ahead = 1 << (lost - _PATIENT_TRIES)
            result = await _put_blocker(session, session.root.manifest.next_seq_no + ahead, limit)
            is_walled = result.data is None or is_blocker(result.data)


async def _put_blocker(session: LogSession, seq_no: int, limit: int) -> cas.PutResult:
    """Put the blocker in a place, if nothing is there, or what was voided."""
    key = layout.fragment_path(seq_no)
    result = await cas.fill(session.store, key, blocker(limit), nothing=VOID, retry=session.retry)
    return result.decided(session.store.url, f"{key} was put; call again")


async def _make_way(session: LogSession, seen: Manifest, taken: cas.PutResult) -> None:
    """Publish what lies where ``seen`` goes on, or replace what can never be published by the blocker.

    Also a blocker that was put before it was known where the log ends.
    """
    key = layout.fragment_path(seen.next_seq_no)
    assert taken.data is not None
    assert taken.etag is not None
    entry = await session.worker.run(_fragment, taken.data, key)
    if entry is not None and not await _is_admitted(session, taken.data, key):
        entry = None  # whoever knew less can name it no more
    if entry is not None and entry.start == seen.next_offset and not seen.is_sealed:
        try:
            await session.root.publish([entry], seen.writer)
        except (ContentionError, LogSealedError):
            await session.newest()  # another was quicker
        return
    if (await session.newest()).next_seq_no == seen.next_seq_no:
        data = blocker(seen.next_offset)
        result = await cas.swap(session.store, key, data, taken.etag, retry=session.retry)
        result.decided(session.store.url, f"{key} was put; call again")


async def _is_admitted(session: LogSession, data: bytes, key: str) -> bool:
    """Return whether no stream of a fragment was closed since it was made; see
    ``write/stream_guard.py``."""
    bound = await session.worker.run(partial(fragment_closings, data, path=key))
    if bound is None:
        return True
    closings, streams = bound
    table = await StreamFile(session.store, retry=session.retry, worker=session.worker).load()
    if table.admits(streams, closings):
        return True
    await session.root.change(partial(raise_closings, closings=table.closings))
    return False


def _fragment(data: bytes, key: str) -> Fragment | None:
    """Return what an object holds; None if it is no fragment."""
    try:
        return inspect_fragment(data, key)
    except CorruptionError:
        return None


def _sealed(manifest: Manifest) -> Manifest | None:
    return None if manifest.is_sealed else manifest.seal()


def _sealed_at(manifest: Manifest, *, seq_no: int) -> Manifest | None:
    """Return the sealed manifest if the log still goes on at ``seq_no``."""
    return _sealed(manifest) if manifest.next_seq_no == seq_no else None
