"""Inline fragments: those whose content is in a manifest, until their own objects are in the store.

A fragment of a chain takes two requests, its object and the manifest that names it. A short one is put into
the manifest itself: one request makes it durable, and the writer puts its object at the same time, in the
background. So whoever needs the object need not wait for it, and whoever waits for the append does not wait
for two requests in a row.

Invariants (tests/uploader/chain/test_inline.py)
  N1  A fragment of the log is in its object, or the newest manifest says which manifest holds it.
  N2  A manifest that the newest one says to hold a fragment is not pruned (``Link.is_kept``).
  N3  A fragment leaves the list only when its object was seen, or when the log does not name it any more.

A writer that continues after another one takes over its list, and puts the objects that are missing. Readers
look for the object first; :class:`InlineStore` finds what has none yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from uploader.chain.chain_reader import ChainReader
from uploader.format.entries import Fragment
from uploader.format.garbage import first_seq_no
from uploader.format.layout import SHARD_PREFIX, FragmentName
from uploader.format.link import MOST_INLINE, InlineFragment, Link, encode_content
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.root import cas
from uploader.runtime.task_groups import BackgroundTask, settle_all
from uploader.stores.port import ObjectNotFoundError, ObjectStore, StoredObject, check_length
from uploader.stores.retry import RetryPolicy
from uploader.stores.wrapper import StoreWrapper
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Lane
from walstore.errors import CorruptionError, FormatVersionError, OutcomeUnknownError, WalError

logger = logging.getLogger("walstore.upload")

MOST_OPEN: Final = 32
"""Fragments without an object at once; with more, objects are put first, as without inline fragments."""
MOST_OPEN_BYTES: Final = 8 << 20
"""Their length together."""
_MOST_KNOWN: Final = 4 * MOST_INLINE
"""Keys of objects that were seen; without one of them its object is looked for again."""
_FIRST_OPEN: Final = 2
"""As many until one object was put quickly: an uplink may be slow, and inline fragments are sent twice."""
_QUICK_SECONDS: Final = 2.0
"""A put that takes longer says that the uplink is slow: then objects come first, each once."""
_SLOW_SECONDS: Final = 60.0
"""After this time it is tried again."""
_MOST_READ: Final = 4
"""Fragments of other writers that are in memory at once."""
_RETRY_SECONDS: Final = 1.0
"""Pause after an object was refused, doubled each time up to a minute. Manifests go on meanwhile."""
_CLOSE_SECONDS: Final = 5.0
"""How long closing waits for objects; what is not there then, the next writer puts."""
_ATTEMPTS: Final = 8
"""Looks for a fragment whose manifest is pruned, since its object was seen, each time one reads it."""

ReadLink = Callable[[int], Awaitable[Link | None]]
"""Returns the link in a slot, None if there is none."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A fragment whose object may not be in the store."""

    data: bytes | None = field(repr=False)
    """Its content; None if a link of another writer has it, from which it is read when it is needed."""
    slot: int | None = None
    """That link; None for a fragment of ours, which no link names yet."""
    encoded: bytes = field(default=b"", repr=False)
    """The content as a link of ours is to hold it."""
    store: ObjectStore | None = None
    """Through which its object is put; None: any."""
    begun: float = 0.0
    """When putting it began, by the monotonic clock."""
    backoff: Backoff = field(default_factory=lambda: Backoff(_RETRY_SECONDS, _SLOW_SECONDS))
    """Between attempts to put it."""
    resume_at: float = -inf
    """When it may be tried again."""
    storing: BackgroundTask[None] = field(default_factory=BackgroundTask)


class InlineFragments:
    """The inline fragments of one writer of a chain. Belongs to one event loop."""

    def __init__(
        self,
        store: ObjectStore,
        retry: RetryPolicy,
        read_link: ReadLink,
        worker: Lane,
        *,
        most_bytes: int,
    ) -> None:
        """Take fragments of at most ``most_bytes``; 0: none."""
        self._store = store
        self._retry = retry
        self._read_link = read_link
        self._worker = worker
        self._most_bytes = most_bytes
        self._open: dict[str, _Pending] = {}
        # Keys of objects that were seen, the oldest first. Losing one costs a request.
        self._stored: dict[str, None] = {}
        self._has_failed = False
        self._reading = asyncio.Semaphore(_MOST_READ)
        self._clock = retry.clock
        self._most_open = _FIRST_OPEN
        self._slow_until = -inf

    @property
    def is_slow(self) -> bool:
        """Whether the uplink takes so long that nothing should be sent twice."""
        now = self._clock.monotonic()
        oldest = min((opened.begun for opened in self._open.values() if opened.store), default=now)
        if now - oldest > _QUICK_SECONDS:
            self._note_slow()
        return now < self._slow_until

    def take(self, path: str, data: bytes, store: ObjectStore) -> bool:
        """Take a fragment that is to be published next, and begin to put its object through ``store``;
        return at once.

        False, and nothing happens, if it is too long, too many are without an object, the uplink is slow, or
        putting one failed last time.
        """
        if len(data) > self._most_bytes or self._has_failed or self.is_slow:
            return False
        if len(self._open) >= self._most_open:
            return False
        open_bytes = sum(len(opened.data or b"") for opened in self._open.values())
        if open_bytes + len(data) > MOST_OPEN_BYTES:
            return False
        if path not in self._open:
            self._open[path] = opened = _Pending(
                data,
                encoded=encode_content(data),
                store=store,
                begun=self._clock.monotonic(),
            )
            self._start(path, opened)
        return True

    def contents(self, fragments: Iterable[Fragment]) -> dict[str, bytes]:
        """Return what a link that names fragments must hold, by key."""
        found = ((entry.path, self._open.get(entry.path)) for entry in fragments)
        return {path: opened.encoded for path, opened in found if opened is not None}

    def inherited(self, tip: Link, manifest: Manifest) -> tuple[InlineFragment, ...]:
        """Return which inline fragments of a link the one behind it, with that manifest, must list."""
        first = first_seq_no(manifest)
        return tuple(
            found
            for found in tip.inline
            if found.path not in self._stored and FragmentName.parse(found.path).seq_no >= first
        )

    def adopt(self, link: Link) -> None:
        """Begin to put the objects that a durable link of ours says are missing; return at once."""
        for found in link.inline:
            if found.path not in self._open and found.path not in self._stored:
                self._open[found.path] = _Pending(None, found.slot)
        self.begin()

    def begin(self) -> None:
        """Begin again what failed, some time later; return at once. Raises a task's error if that is a defect
        of the program."""
        now = self._clock.monotonic()
        for path, opened in self._open.items():
            if not opened.storing.is_busy and now >= opened.resume_at:
                ended = opened.storing.take()
                if ended is not None and not ended.cancelled():
                    ended.result()
                self._start(path, opened)

    async def store(self, paths: Iterable[str]) -> None:
        """Return when the objects at these keys are in the store; raises why one is not."""
        for path in paths:
            opened = self._open.get(path)
            if opened is not None:
                await opened.storing.wait()
                if path in self._open:
                    await self._put(path, opened)

    async def wait(self) -> None:
        """Return when no object is being put; some may have failed."""
        for opened in list(self._open.values()):
            await opened.storing.wait()

    async def aclose(self) -> None:
        """Wait some seconds for the objects, then cancel the rest; twice is allowed.

        What failed before is tried once more. If this call is cancelled, nothing is waited for.
        """
        open_ones = list(self._open.items())
        self._open.clear()
        for path, opened in open_ones:
            ended = opened.storing.take()
            if ended is not None and not ended.cancelled() and ended.exception() is None:
                self._start(path, opened)
        await settle_all(
            opened.storing.aclose(grace_seconds=_CLOSE_SECONDS) for _, opened in open_ones
        )

    # -- inside ------------------------------------------------------------------------------

    def _start(self, path: str, opened: _Pending) -> None:
        opened.storing.start(self._try(path, opened), f"put {path}")

    async def _try(self, path: str, opened: _Pending) -> None:
        try:
            await self._put(path, opened)
        except WalError as error:
            if not self._has_failed:
                logger.warning("%s: manifests hold fragments for now: %s", self._store.url, error)
            self._has_failed = True
            opened.resume_at = self._clock.monotonic() + opened.backoff.next_seconds()
        else:
            self._has_failed = False

    async def _put(self, path: str, opened: _Pending) -> None:
        """Put an object, once, however often the store has to be asked."""
        if opened.data is not None:
            await self._create(path, opened.data, opened.store or self._store)
            if self._clock.monotonic() - opened.begun > _QUICK_SECONDS:
                self._note_slow()
            else:
                self._most_open = MOST_OPEN
        else:
            async with self._reading:
                if await self._store.head(path) is None:
                    data = await self._read(path, opened)
                    if data is not None:
                        await self._create(path, data, self._store)
        self._open.pop(path, None)
        self._stored[path] = None
        while len(self._stored) > _MOST_KNOWN:
            del self._stored[next(iter(self._stored))]

    def _note_slow(self) -> None:
        self._most_open = _FIRST_OPEN
        self._slow_until = self._clock.monotonic() + _SLOW_SECONDS

    async def _create(self, path: str, data: bytes, store: ObjectStore) -> None:
        assert not _finds_inline(store), "what is read back must be the object"
        result = await cas.create(store, path, data, retry=self._retry)
        if result.outcome is cas.PutOutcome.LOST and not await self._is_same(path, result.data):
            # Nobody can rightly have put anything else at a key that contains the sum of the records.
            assert result.etag is not None
            result = await cas.swap(store, path, data, result.etag, retry=self._retry)
        if result.outcome is cas.PutOutcome.UNKNOWN:
            raise OutcomeUnknownError(
                f"{self._store.url} did not say whether {path} was put"
            ) from result.cause

    async def _read(self, path: str, opened: _Pending) -> bytes | None:
        """Return what a link of another writer holds; None if it is not needed any more."""
        assert opened.slot is not None
        link = await self._read_link(opened.slot)
        if link is None:
            return None  # it was pruned, after a later writer had seen the object
        data = await self._worker.run(link.content, path)
        if data is None:
            raise CorruptionError(f"the manifest lacks the content of {path}", path=link.key)
        return data

    async def _is_same(self, path: str, data: bytes | None) -> bool:
        try:
            entry = await self._worker.run(inspect_fragment, data or b"", path)
        except CorruptionError:
            return False
        name = FragmentName.parse(path)
        return name == FragmentName(entry.seq_no, entry.start, entry.limit, entry.setsum)


def _finds_inline(store: ObjectStore) -> bool:
    while isinstance(store, StoreWrapper):
        if isinstance(store, InlineStore):
            return True
        store = store.inner
    return False


class InlineStore(StoreWrapper):
    """A log's store, from which fragments that only a manifest holds can be read, too."""

    def __init__(self, inner: ObjectStore, worker: Lane, clock: Clock | None = None) -> None:
        """``worker`` takes the work on long manifests off the event loop."""
        super().__init__(inner.inner if isinstance(inner, InlineStore) else inner)
        self._worker = worker
        self._reader = ChainReader(self.inner, worker, clock or SystemClock())
        self._known: Link | None = None

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object, of at most ``max_bytes``."""
        try:
            return await super().get(key, max_bytes=max_bytes)
        except ObjectNotFoundError:
            if not key.startswith(SHARD_PREFIX):
                raise
            data = await self._inline(key)
            if data is None:
                return await super().get(key, max_bytes=max_bytes)
            check_length(key, len(data), max_bytes)
            return StoredObject(data, "inline")

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)`` as far as there are any."""
        try:
            return await super().get_range(key, start, limit)
        except ObjectNotFoundError:
            if not key.startswith(SHARD_PREFIX):
                raise
            data = await self._inline(key)
            if data is None:
                return await super().get_range(key, start, limit)
            return data[start:limit]

    async def _inline(self, key: str) -> bytes | None:
        """Return what a manifest holds for a key; None if none does, or not any more."""
        try:
            for _ in range(_ATTEMPTS):
                head = await self._reader.find_head(self._known)
                if head is None:
                    return None
                self._known = head.link
                slots = {found.path: found.slot for found in head.link.inline}
                if key not in slots:
                    return None
                is_head = slots[key] == head.link.slot
                link = head.link if is_head else await self._reader.read_link(slots[key])
                if link is not None:
                    return await self._worker.run(link.content, key)
        except (CorruptionError, FormatVersionError):
            pass  # the caller that asked for the fragment finds that the manifests are damaged
        return None
