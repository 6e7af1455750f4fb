"""ScrubRoot: reads the manifest of a log that is being scrubbed, even if it is damaged.

Owns the handling of a damaged manifest: every fault is reported, and the manifest is still followed as far as
possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uploader.format import layout
from uploader.format.findings import Finding, check_manifest, of_error
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import find_root
from uploader.root.root import Root
from uploader.root.stored_document import read_stored
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import CorruptionError, FormatVersionError, LogNotFoundError
from walstore.runtime.threads import Worker


class ScrubRoot:
    """The root of one log for one scrub. Any number of tasks may call it."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        retry: RetryPolicy,
        *,
        report: Callable[[Finding], None],
    ) -> None:
        """``report`` receives the manifest's faults."""
        self._store = store
        self._worker = worker
        self._retry = retry
        self._report = report
        self._root: Root | None = None
        self._known: Manifest | None = None
        # One request for the manifest at a time, so that an older answer never replaces a newer one.
        self._reading = asyncio.Lock()

    async def read(self) -> Manifest | None:
        """Return the newest manifest, or the last one that could be read; None if none ever could.

        LogNotFoundError if there is none.
        """
        async with self._reading:
            await self._read()
            return self._known

    async def newest(self) -> Manifest:
        """Return what :meth:`read` returns, once it has returned a manifest."""
        manifest = await self.read()
        assert manifest is not None
        return manifest

    async def aclose(self) -> None:
        """Close the root; the store stays open."""
        if self._root is not None:
            await self._root.aclose()

    async def _read(self) -> None:
        try:
            if self._root is None:
                self._root = await find_root(self._store, retry=self._retry, worker=self._worker)
                is_there = self._root.is_known
            else:
                is_there = await self._root.load()
            if not is_there:
                raise self._missing()
            self._known = self._root.manifest
        except FormatVersionError as error:
            self._report(of_error(error))
        except CorruptionError as error:
            await self._read_damaged(error)

    async def _read_damaged(self, error: CorruptionError) -> None:
        if error.path != layout.MANIFEST:
            self._report(of_error(error))
            return
        try:
            read = await read_stored(self._store, layout.MANIFEST, _parse, worker=self._worker)
            manifest, findings = read.value
        except ObjectNotFoundError:
            raise self._missing() from None
        except (CorruptionError, FormatVersionError) as damage:
            self._report(of_error(damage))
            return
        for finding in findings or [of_error(error)]:
            self._report(finding)
        self._known = manifest

    def _missing(self) -> LogNotFoundError:
        return LogNotFoundError(f"there is no log at {self._store.url}", location=self._store.url)


def _parse(data: bytes) -> tuple[Manifest, list[Finding]]:
    manifest = Manifest.parse(data)
    return manifest, check_manifest(manifest)
