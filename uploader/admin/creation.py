"""Creates the first manifest of a log explicitly, instead of by its first writer."""

from __future__ import annotations

from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import LogSession
from uploader.root import cas
from uploader.root.write_guard import check_not_destroyed
from walstore.errors import ContentionError


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
