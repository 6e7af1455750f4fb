"""seal: ends a log permanently, so that no writer can append to it again.

The seal is an ordinary change of the root: the next manifest is the same log with a mark (``manifest.py``).
Every append commits by replacing the manifest its writer knew. So it either precedes the seal, and is in the
sealed log, or follows it: then the store refuses it, however long the request was in flight, since it names a
manifest that was replaced and never returns. The writer reads the newer manifest and finds the mark. There is
no separate flag that could be checked too early.

wal3's own writers do not know the mark. They are kept out by the blocker, an object at the key of the next
fragment that is not a fragment: their put fails, and so does opening. The blocker is put first, and only at a
key that is free or voided (``orphan_recovery.py``). An existing object may be a fragment that its writer is
about to publish: the sealer publishes it, as any other writer would, and tries the next key. So once the
blocker is put, no writer publishes anything after it, whether it knows the mark or not, and the mark follows.
Only an object that no manifest can ever name is replaced. A writer that puts several fragments at once may
occupy each next key first: then a blocker further ahead stops it, and the fragments before that are
published.

The sealer may die between any two calls to the store. Before the blocker nothing happened. Between blocker
and mark no append commits; writers get LogSealedError, but readers do not see the seal yet. Calling again
finishes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest, blocker, is_blocker
from uploader.format.stream_table import raise_closings
from uploader.fragments.fragment import fragment_closings, inspect_fragment
from uploader.layouts.log_session import LogSession, open_session
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root import cas
from uploader.root.orphan_recovery import VOID
from uploader.root.stream_file import StreamFile
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.errors import ContentionError, CorruptionError, LogSealedError

_PATIENT_TRIES: Final = 2
"""Keys that are tried one after the other before a blocker is put further ahead."""


async def seal(
    url: str,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> int:
    """Seal the log under ``url``, and return its end: the offset after its last record.

    After it returns no append commits, from any writer: an append under way raises LogSealedError. Records
    appended to a local log stay on its disk. Reading, cursors, collection, forks and :func:`uploader.destroy`
    work as before. A seal cannot be undone. Sealing a sealed log changes nothing and returns the same offset.

    Raises LogNotFoundError if there is no log, CorruptionError if its manifest is damaged, ContentionError
    if it is being rebuilt, and OutcomeUnknownError if the store does not answer: call again. After a
    cancelled call the log may be sealed or not.

    Args:
        url: Location of the log.
        store: Replaces the store that the URL names, and stays open.
        retry: Retry policy of conditional puts.
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
    """Put the blocker, then the mark. Starts again if the log grew beyond the blocker in between."""
    root = session.root
    while True:
        blocked = await _block(session)
        await root.change(partial(_sealed_at, seq_no=blocked))
        if root.manifest.is_sealed and root.manifest.next_seq_no == blocked:
            return


async def _block(session: LogSession) -> int:
    """Put the blocker at the log's next key, after publishing fragments found there; return its number."""
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
    """Put the blocker at a key, if that is free or voided."""
    key = layout.fragment_path(seq_no)
    result = await cas.fill(session.store, key, blocker(limit), nothing=VOID, retry=session.retry)
    return result.decided(session.store.url, f"{key} was put; call again")


async def _make_way(session: LogSession, seen: Manifest, taken: cas.PutResult) -> None:
    """Publish the object at the next key of ``seen``, or replace it by the blocker if it can never be
    published.

    Also replaces a blocker that was put before the log's end was known.
    """
    key = layout.fragment_path(seen.next_seq_no)
    assert taken.data is not None
    assert taken.etag is not None
    entry = await session.worker.run(_fragment, taken.data, key)
    if entry is not None and not await _is_admitted(session, taken.data, key):
        entry = None  # no writer can publish it any more
    if entry is not None and entry.start == seen.next_offset and not seen.is_sealed:
        try:
            await session.root.publish([entry], seen.writer)
        except (ContentionError, LogSealedError):
            await session.newest()  # another writer was faster
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
    """Return the entry of a fragment; None if the object is not a fragment."""
    try:
        return inspect_fragment(data, key)
    except CorruptionError:
        return None


def _sealed(manifest: Manifest) -> Manifest | None:
    return None if manifest.is_sealed else manifest.seal()


def _sealed_at(manifest: Manifest, *, seq_no: int) -> Manifest | None:
    """Return the sealed manifest if the log's next number is still ``seq_no``."""
    return _sealed(manifest) if manifest.next_seq_no == seq_no else None
