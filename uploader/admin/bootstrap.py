"""bootstrap: an empty log that does not begin at offset 1, to go on where something else ended."""

from __future__ import annotations

import dataclasses

from uploader.admin.creation import check_empty, create_manifest
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import open_session
from uploader.root.ownership import BOOTSTRAP_NAME
from uploader.root.write_guard import check_not_destroyed
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError, InvalidSettingsError
from walstore.ports import Clock
from walstore.validation.arguments import as_int

"""What wal3's manifests say after the same."""


async def bootstrap(
    url: str,
    *,
    start: int,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> None:
    """Create a log of the default layout whose first record is going to have the offset ``start``.

    Calling it again changes nothing, as long as nothing was appended. Raises ContentionError if there is
    another log, LogNotFoundError if one was destroyed there, InvalidSettingsError for an offset that no
    record can have, and OutcomeUnknownError if the store does not answer: call again.

    Args:
        url: Where the log is to lie.
        start: Offset of its first record: 1 to 2**64 - 2.
        store: Replaces the store that the URL names, and stays open.
        retry: How the put is repeated.
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
            await check_not_destroyed(session.store)
            await check_empty(session)
            await create_manifest(session, manifest)
        if session.root.manifest != manifest:
            raise ContentionError(f"there is a log at {session.store.url} already")
