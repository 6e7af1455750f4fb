"""CloudTier: the adapter that also keeps a local log in object storage.

Passed to ``Wal.open(path, tier=CloudTier(url))``. It composes the store, the manifest, the uploader and the
reader of fragments; the protocol of each is in its own module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from uploader.chain.chain_root import ChainSettings
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import Layout, LogSession, needs_swaps
from uploader.read.fragment_cache import FragmentCache
from uploader.read.fragment_reader import FragmentReader, pieces
from uploader.read.read_ahead import ReadersAhead
from uploader.root.ownership import check_owner, check_shippable, is_shipped_to, owner
from uploader.root.root import Note, Root
from uploader.root.write_guard import check_not_destroyed, check_unsealed, has_records
from uploader.stores.port import ObjectStore
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from uploader.write.uploader import Uploader
from uploader.write.writer_settings import UploadSettings
from walstore.core.batches.batch import Batch
from walstore.core.format.claims import Claims
from walstore.core.ports import Clock
from walstore.core.runtime.statistics import UploadStatistics
from walstore.core.tier_port import Extent, LocalRecords, TierSource
from walstore.core.validation.arguments import as_count, as_settings
from walstore.errors import ContentionError, CorruptionError


class CloudTier:
    """Ships a log to a prefix of an object store, and reads what is there. For one ``Wal.open``."""

    def __init__(
        self,
        url: str,
        *,
        settings: UploadSettings | None = None,
        cache_bytes: int = 64 << 20,
        disk_cache: FragmentCache | None = None,
        layout: Layout | None = None,
        chain: ChainSettings | None = None,
        note: Note | None = None,
        take_over: bool = False,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Name the place: ``file:///dir``, ``s3://bucket/prefix?endpoint_url=…`` or ``memory://name``.

        ``cache_bytes`` bounds the fragments kept for readers; read-ahead for sequential readers takes at most
        the same again. ``disk_cache`` keeps fragments on local disk,
        too. A new log gets the layout ``"swap"``, wal3's, unless ``layout`` says ``"chain"`` (docs/chain.md);
        opening raises InvalidSettingsError if the log there has the other one. ``chain`` has its
        settings. ``note`` is awaited with fragments before they are published, such as
        :meth:`uploader.DirtyLog.note_for` returns. ``take_over`` lets a directory take the prefix back from
        another one, if it holds every record that is there (docs/design.md, "Who may ship"); a new
        directory does not need it, a new replicated log does, to continue one whose copies are all lost.
        ``store`` replaces the one that the URL names; it is also closed with the tier. ``retry`` says how
        conditional puts are repeated; reads are repeated by the store. No request is made before the log
        opens.
        """
        cache_bytes = as_count(cache_bytes, "cache_bytes", low=0)
        self._session = LogSession(url, store=store, retry=retry, clock=clock)
        self._store = self._session.store
        self._settings = as_settings(settings, UploadSettings)
        self._layout: Layout | None = layout
        self._chain = chain
        self._note = note
        self._take_over = take_over
        self._root: Root | None = None
        self._uploader: Uploader | None = None
        self._fragments = FragmentReader(
            store=self._store,
            worker=self._session.worker,
            cache_bytes=cache_bytes,
            disk_cache=disk_cache,
        )
        self._ahead = ReadersAhead(self._fragments, max_bytes=cache_bytes // 4, most=4)

    @property
    def url(self) -> str:
        """Location of the tier, without credentials."""
        return self._store.url

    @property
    def log_id(self) -> bytes | None:
        """Identity of the log that ships here, or None if any directory may begin one."""
        return owner(self._manifest)

    @property
    def head(self) -> int:
        """First offset the tier holds."""
        return self._manifest.oldest_offset

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read from the tier."""
        return self._manifest.next_offset

    @property
    def uploads(self) -> UploadStatistics | None:
        """What was shipped since the tier was opened; None before."""
        return None if self._uploader is None else self._uploader.statistics()

    @property
    def extents(self) -> Sequence[Extent]:
        """What the manifest itself names: snapshots of older fragments, then fragments."""
        manifest = self._manifest
        return [
            *(
                Extent(one.start, one.limit, one.num_bytes, "snapshot", one.path_to_snapshot)
                for one in manifest.snapshots
            ),
            *(
                Extent(one.start, one.limit, one.num_bytes, "fragment", one.path)
                for one in manifest.fragments
            ),
        ]

    @property
    def uploader(self) -> Uploader:
        """Counters of what was shipped. It exists once the tier is open."""
        assert self._uploader is not None, "open the log first"
        return self._uploader

    async def open(self, log_id: bytes | None, *, is_replicated: bool = False) -> None:
        """Check the store, read the manifest, and look for fragments that a crash left unpublished.

        ``log_id`` is the local log's identity, None if it does not exist yet: then such fragments are
        published at once, and the new log begins behind them. For a replicated log :meth:`claim` does all
        that. ContentionError if the prefix belongs to
        another log; LogSealedError if it was sealed, LogNotFoundError if it was destroyed; CorruptionError
        for damaged objects, or fragments without a manifest; else the store's errors.
        """
        root = self._root = await self._open_root()
        self._uploader = Uploader(self._session, root, self._settings)
        if not root.is_known:
            return
        check_unsealed(root.manifest, url=self.url)
        if not has_records(root.manifest):
            await check_not_destroyed(self._store)
        check_shippable(root.manifest, url=self.url)
        if is_replicated:
            return
        if log_id is not None:
            check_owner(root.manifest, log_id, url=self.url)
        await self._uploader.prepare(is_new=log_id is None)

    async def claim(
        self,
        log_id: bytes,
        claims: Claims | None,
        remember: Callable[[Claims], Awaitable[None]],
        *,
        local: LocalRecords | None = None,
        is_replicated: bool = False,
    ) -> None:
        """Claim the prefix for the directory: any directory that shipped there before is fenced.

        See :meth:`walstore.core.tier_port.Tier.claim`. FencedError if another directory took the prefix over
        and ``take_over`` is not set, or this one holds other records than what is there.
        """
        if is_replicated:
            await self._look_again(is_new=claims is None)
        await self.uploader.claim(
            log_id,
            claims,
            remember,
            local=local,
            take_over=self._take_over,
            is_replicated=is_replicated,
        )

    async def run(self, source: TierSource) -> None:
        """Ship until the source drains; see :meth:`uploader.write.uploader.Uploader.run`."""
        await self.uploader.run(source)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return the rest of the fragment that holds ``position``, up to ``limit``.

        Its batches have about ``max_bytes`` each and share the fragment's memory.
        """
        batch = await self._ahead.read(self._manifest, position, limit)
        return pieces(batch, position, limit, max_bytes)

    async def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older."""
        return await self._fragments.offset_at(self._manifest, timestamp_us)

    async def aclose(self) -> None:
        """Release connections and threads; twice is allowed."""
        try:
            await self._fragments.aclose()
        finally:
            await self._session.aclose()

    async def _look_again(self, *, is_new: bool) -> None:
        """Read the manifest of a replicated log again: its last primary went on while the copies decided.

        ContentionError if the log is new and another one ships here: then two logs have one prefix, or all
        copies of one are lost, which only ``take_over`` distinguishes.
        """
        root = self._root
        assert root is not None, "open the tier first"
        if not await root.load() or not is_new:
            return
        if is_shipped_to(root.manifest) and not self._take_over:
            raise ContentionError(
                f"{self.url} belongs to another log, and this one is new; ship it to a prefix of its own, "
                "or, if all copies of that log are lost, continue it with CloudTier(take_over=True), or "
                "'walstore serve --take-over'"
            )
        await self.uploader.prepare(is_new=True)

    async def _open_root(self) -> Root:
        """Return the root, whose store is known to enforce conditions; its log may not be begun yet."""
        root = await self._find_root()
        await require_conditional_puts(
            self._store,
            with_swaps=needs_swaps(root),
            is_new=not root.is_known,
            retry=self._session.retry,
        )
        if root.is_known:
            return root
        await check_not_destroyed(self._store)
        async for listed in root.unpublished():
            # Another machine may have begun the log since the manifest was looked for.
            root = await self._find_root()
            if not root.is_known:
                raise CorruptionError(
                    f"the manifest is missing although there are fragments ({listed.key}); restore it",
                    path=layout.MANIFEST,
                )
            break
        return root

    async def _find_root(self) -> Root:
        return await self._session.find_root(
            layout=self._layout,
            chain=self._chain,
            roll_up=self._settings.roll_up,
            note=self._note,
        )

    @property
    def _manifest(self) -> Manifest:
        return _NOTHING if self._root is None else self._root.manifest


_NOTHING = Manifest.initial("")
