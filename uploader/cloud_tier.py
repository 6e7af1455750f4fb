"""CloudTier: the adapter that gives a local log a second home in object storage.

Passed to ``Wal.open(path, tier=CloudTier(url))``. Composes the store, the manifest, the uploader and the
reader of fragments; the protocol of each is in its own module.
"""

from __future__ import annotations

from uploader import layout
from uploader.fragment_reader import FragmentReader
from uploader.manifest_log import ManifestLog
from uploader.ownership import check_owner, owner
from uploader.stores import open_store
from uploader.stores.port import ObjectStore
from uploader.stores.probe import probe_conditional_puts
from uploader.stores.retry import RetryPolicy
from uploader.uploader import Uploader, UploadSettings
from walstore.batch import Batch
from walstore.clock import SystemClock
from walstore.errors import CorruptionError
from walstore.ports import Clock, TierSource
from walstore.threads import Worker


class CloudTier:
    """Ships a log to a prefix of an object store, and reads what is there. For one ``Wal.open``."""

    def __init__(
        self,
        url: str,
        *,
        settings: UploadSettings | None = None,
        cache_bytes: int = 64 << 20,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Name the place: ``file:///dir``, ``s3://bucket/prefix?endpoint_url=…`` or ``memory://name``.

        ``cache_bytes`` bounds the fragments kept for readers. ``store`` replaces the one that the URL
        names; it is closed with the tier all the same. ``retry`` says how conditional puts are repeated;
        reads are repeated by the store. Nothing is contacted before the log opens.
        """
        self._store = store if store is not None else open_store(url)
        self._clock = clock or SystemClock()
        self._retry = retry or RetryPolicy(clock=self._clock)
        self._worker = Worker("cloud", threads=2)
        self._manifest_log = ManifestLog(self._store, self._retry, self._worker)
        self._uploader = Uploader(
            store=self._store,
            manifest_log=self._manifest_log,
            settings=settings or UploadSettings(),
            retry=self._retry,
            clock=self._clock,
            worker=self._worker,
        )
        self._fragments = FragmentReader(
            store=self._store, worker=self._worker, cache_bytes=cache_bytes
        )

    @property
    def url(self) -> str:
        """Where the tier lies, without credentials."""
        return self._store.url

    @property
    def log_id(self) -> bytes | None:
        """Identity of the log that ships here, or None if anybody may begin one."""
        return owner(self._manifest_log.manifest)

    @property
    def head(self) -> int:
        """First offset the tier holds."""
        return self._manifest_log.manifest.oldest_offset

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read from the tier."""
        return self._manifest_log.manifest.next_offset

    @property
    def uploader(self) -> Uploader:
        """Counters of what was shipped."""
        return self._uploader

    async def open(self, log_id: bytes | None) -> None:
        """Check the store, read the manifest, and look for fragments that a crash left unpublished.

        ``log_id`` is the local log's identity, None if it does not exist yet: then such fragments are
        published at once, and the new log begins behind them. ContentionError if the prefix belongs to
        another log; CorruptionError for damaged objects, or fragments without a manifest; else the store's
        errors.
        """
        await probe_conditional_puts(self._store, retry=self._retry)
        if not await self._manifest_log.load():
            async for listed in self._store.list(layout.FRAGMENT_FOLDER):
                raise CorruptionError(
                    f"the manifest is missing although there are fragments ({listed.key}); restore it",
                    path=layout.MANIFEST,
                )
            return
        if log_id is not None:
            check_owner(self._manifest_log.manifest, log_id, url=self.url)
        await self._uploader.prepare(is_new=log_id is None)

    async def run(self, source: TierSource) -> None:
        """Ship until the source drains; see :meth:`uploader.uploader.Uploader.run`."""
        await self._uploader.run(source)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return the rest of the fragment that holds ``position``, up to ``limit``.

        In batches of about ``max_bytes``, which share the fragment's memory.
        """
        return await self._fragments.read_from(
            self._manifest_log.manifest, position, limit, max_bytes
        )

    async def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older."""
        return await self._fragments.offset_at(self._manifest_log.manifest, timestamp_us)

    async def aclose(self) -> None:
        """Release connections and threads; twice is allowed."""
        self._worker.close()
        await self._store.aclose()
