"""CloudLog: a log read from its prefix in object storage alone, without the local directory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from uploader.entries import Fragment
from uploader.fragment import fragment_time_bounds, verify_fragment
from uploader.fragment_batch import FragmentBatch
from uploader.fragment_reader import FragmentReader
from uploader.manifest import Manifest
from uploader.manifest_log import ManifestLog
from uploader.stores import open_store
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.batch import Batch
from walstore.clock import SystemClock
from walstore.errors import CorruptionError, LogNotFoundError, WalClosedError
from walstore.ports import Clock
from walstore.reader import Reader
from walstore.records import Start
from walstore.resource import Opening
from walstore.threads import Worker

_FIRST_POLL_SECONDS = 0.1
_LONGEST_POLL_SECONDS = 2.0
_SAME_TIME_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Verified:
    """What :meth:`CloudLog.verify` has checked."""

    fragments: int
    records: int
    fragment_bytes: int
    setsum: str
    """Sum over everything ever appended, as 64 hex digits."""


class CloudLog:
    """Read-only view of a log in object storage. Make one with :meth:`open`."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        cache_bytes: int = 64 << 20,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
    ) -> Opening[CloudLog]:
        """Open the log under ``url``; needs read access only.

        Raises LogNotFoundError if there is no manifest, CorruptionError if it is damaged, and the
        store's errors. The other options are those of :class:`uploader.CloudTier`.
        """

        async def open_it() -> CloudLog:
            log = cls(
                store=store if store is not None else open_store(url),
                cache_bytes=cache_bytes,
                clock=clock or SystemClock(),
            )
            try:
                await log.refresh()
            except BaseException:
                await log.aclose()
                raise
            return log

        return Opening(open_it)

    def __init__(self, *, store: ObjectStore, cache_bytes: int, clock: Clock) -> None:
        """Not for callers; see :meth:`open`."""
        self._store = store
        self._clock = clock
        self._worker = Worker("cloud", threads=2)
        self._manifest_log = ManifestLog(store, RetryPolicy(clock=clock), self._worker)
        self._fragments = FragmentReader(store=store, worker=self._worker, cache_bytes=cache_bytes)
        # One request for the manifest at a time, so that no older answer overtakes a newer one.
        self._refreshing = asyncio.Lock()
        self._refreshed_at = clock.monotonic()
        self._closed = False

    @property
    def url(self) -> str:
        """Where the log lies, without credentials."""
        return self._store.url

    @property
    def manifest(self) -> Manifest:
        """The manifest as it was read last."""
        return self._manifest_log.manifest

    @property
    def head(self) -> int:
        """First retained offset."""
        return self.manifest.oldest_offset

    @property
    def tail(self) -> int:
        """Offset after the last one that the manifest names."""
        return self.manifest.next_offset

    @property
    def limit(self) -> int:
        """Same as :attr:`tail`: everything the manifest names is visible."""
        return self.tail

    async def refresh(self) -> None:
        """Read the manifest again.

        LogNotFoundError if there is none, CorruptionError if it is damaged or went back.
        """
        async with self._refreshing:
            await self._refresh()

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool = False,
    ) -> Reader:
        """Return a reader; options as :meth:`walstore.Wal.reader`, but not following by default.

        With ``follow`` it reads the manifest again, at first after 0.1 s, then less and less often,
        every 2 s at the least, while nothing new appears. Readers that wait together share what is read.
        """
        return Reader(self, start=start, stop=stop, stream=stream, follow=follow)

    async def fragments(self, start: int = 0, limit: int | None = None) -> list[Fragment]:
        """Return the manifest's entries that overlap ``[start, limit)``, snapshots resolved."""
        self._check_open()
        return await self._fragments.entries(
            self.manifest, start, self.tail if limit is None else limit
        )

    async def read_fragment(self, entry: Fragment) -> FragmentBatch:
        """Return a fragment's records; checks length and offsets against its entry."""
        self._check_open()
        return await self._fragments.read(entry)

    async def verify(self) -> Verified:
        """Read every fragment, one at a time, and check all that its entry and the manifest say.

        Length, offsets, contiguity, setsum and times of each, and that the setsums add up. Raises
        CorruptionError naming the object.
        """
        self._check_open()
        manifest = self.manifest
        await self._worker.run(manifest.scrub)
        total = manifest.collected
        records = size = count = 0
        for entry in await self._fragments.entries(manifest, 0, manifest.next_offset):
            data = await self._fragments.fetch(entry)
            await self._worker.run(_verify, data, entry)
            total += entry.setsum
            records += entry.limit - entry.start
            size += len(data)
            count += 1
        if total != manifest.setsum:
            raise CorruptionError(
                "the fragments' setsums do not add up to the manifest's",
                path=self.url,
                expected=manifest.setsum.hexdigest(),
                found=total.hexdigest(),
            )
        return Verified(count, records, size, total.hexdigest())

    async def wait_limit(self, limit: int) -> None:
        """Return when the manifest names all offsets below ``limit``, asking for it now and then."""
        pause = _FIRST_POLL_SECONDS
        while self.tail < limit:
            await self._clock.sleep(pause)
            async with self._refreshing:
                # Another reader may have asked meanwhile.
                if self._clock.monotonic() - self._refreshed_at > pause - _SAME_TIME_SECONDS:
                    await self._refresh()
            pause = min(pause * 1.5, _LONGEST_POLL_SECONDS)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return the rest of the fragment that holds ``position``, up to ``limit``.

        In batches of about ``max_bytes``, which share the fragment's memory.
        """
        self._check_open()
        return await self._fragments.read_from(self.manifest, position, limit, max_bytes)

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or the tail if all records are older."""
        self._check_open()
        found = await self._fragments.offset_at(self.manifest, timestamp_us)
        return self.tail if found is None else found

    async def aclose(self) -> None:
        """Release connections and threads; twice is allowed. Readers end with WalClosedError."""
        self._closed = True
        self._worker.close()
        await self._store.aclose()

    async def _refresh(self) -> None:
        self._check_open()
        if not await self._manifest_log.load():
            raise LogNotFoundError(f"there is no log at {self.url}", location=self.url)
        self._refreshed_at = self._clock.monotonic()

    def _check_open(self) -> None:
        if self._closed:
            raise WalClosedError(f"the log at {self.url} is closed")


def _verify(data: bytes, entry: Fragment) -> None:
    """Check a fragment, and the times in its footer, which searches go by."""
    times = verify_fragment(data, entry).timestamps_us
    stated, found = fragment_time_bounds(data, path=entry.path), (min(times), max(times))
    if stated != found:
        raise CorruptionError(
            "a fragment's footer has other times than its records",
            path=entry.path,
            expected=stated,
            found=found,
        )
