"""bootstrap: creates an empty log that begins at a given offset, to continue where another log ended."""

from __future__ import annotations

import dataclasses

from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import LogSession, open_session
from uploader.root import cas
from uploader.root.ownership import BOOTSTRAP_NAME
from uploader.root.write_guard import check_creatable, check_not_destroyed
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.validation.arguments import as_int
from walstore.errors import ContentionError, InvalidSettingsError


async def bootstrap(
    url: str,
    *,
    start: int,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> None:
    """Create a log of the default layout whose first record gets the offset ``start``.

    Calling it again changes nothing unless records were appended. Raises ContentionError if another log
    exists, LogNotFoundError if a log was destroyed there, InvalidSettingsError for an offset that no record
    can have, and OutcomeUnknownError if the store does not answer: call again.

    Args:
        url: Location of the new log.
        start: Offset of the first record: 1 to 2**64 - 2.
        store: Replaces the store that the URL names, and stays open.
        retry: Retry policy of the put.
        clock: Sleeps between the attempts.
    """
    start = as_int(start, "start")
    if not layout.FIRST_OFFSET <= start < layout.MAX_U64:
        raise InvalidSettingsError(f"a record's offset is 1 to 2**64 - 2, not {start}")
    manifest = Manifest.initial(BOOTSTRAP_NAME)
    if start > layout.FIRST_OFFSET:
        manifest = dataclasses.replace(manifest, initial_offset=start)
    async with open_session(url, store=store, retry=retry, clock=clock) as session:
        if not session.root.is_known:
            await check_creatable(session.store, is_gone=False)
            await check_empty(session)
            await create_manifest(session, manifest)
        if session.root.manifest != manifest:
            raise ContentionError(f"there is a log at {session.store.url} already")


async def check_empty(session: LogSession) -> None:
    """Raise ContentionError if the prefix contains fragments that no manifest names."""
    async for listed in session.store.list(layout.FRAGMENT_FOLDER):
        if layout.is_among_fragments(listed.key):
            raise ContentionError(
                f"{session.store.url} is not empty ({listed.key}); take another prefix"
            )


async def create_manifest(session: LogSession, manifest: Manifest) -> None:
    """Put the manifest unless one exists, and load the one that is stored now.

    LogNotFoundError if the log was destroyed meanwhile, OutcomeUnknownError if the store does not answer.
    """
    data = await session.worker.run(manifest.serialise)
    result = await cas.create(session.store, layout.MANIFEST, data, retry=session.retry)
    result.decided(session.store.url, "the manifest was created; call again")
    await session.root.load()
    await check_not_destroyed(session.store)
