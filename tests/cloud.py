"""Logs with a cloud tier for tests: little fragments, stores that remember, and a source without a disk."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence

import pytest

from tests.frames import batch_of, build, values_only
from uploader import ChainSettings, CloudLog, CloudTier, CloudWriter, UploadSettings
from uploader.chain import inline
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.fragments.fragment_builder import encode_fragment
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import hang
from walstore import Settings
from walstore.core.batches.batch import Batch
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.errors import OffsetTrimmedError, WalError

URL = "memory://ignored"
LOG_ID = "0123456789abcdef0123456789abcdef"
SMALL = UploadSettings(
    fragment_bytes=4096, fragment_age_seconds=0.01, max_in_flight=4, parallel_puts=True
)
"""Little fragments, several at once.

Closing waits for the store as long as a program would, however busy this machine is."""
GIVES_UP = dataclasses.replace(SMALL, drain_seconds=0.05)
"""For a store that never answers again, so that it does not matter how soon closing gives up."""
FAST = RetryPolicy(attempts=2, first_wait_seconds=0.001, longest_wait_seconds=0.001)
SEGMENTS = Settings(segment_bytes=64 << 10, batch_bytes=4096)
"""Many batches and segments."""


class LeapingClock(SystemClock):
    """The real clock until a test knows that nothing more will come: then long waits are over at once."""

    def __init__(self) -> None:
        self._leaping = asyncio.Event()
        self._leapt_seconds = 0.0

    def leap(self) -> None:
        """End all waits of a second or more, those under way and those to come."""
        self._leaping.set()

    def monotonic(self) -> float:
        return super().monotonic() + self._leapt_seconds

    async def sleep(self, seconds: float) -> None:
        if seconds < 1:
            await super().sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaping.wait()
                self._leapt_seconds += seconds


class RecordingStore(FaultyStore):
    """Remembers which fragments were asked to be put, how often, and with which bytes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.attempts: Counter[str] = Counter()
        self.contents: dict[str, list[bytes]] = {}

    async def put_if_absent(self, key: str, data: bytes) -> str:
        if key.startswith(layout.FRAGMENT_FOLDER):
            self.attempts[key] += 1
            self.contents.setdefault(key, []).append(data)
        return await super().put_if_absent(key, data)


def tier(
    store: ObjectStore,
    settings: UploadSettings = SMALL,
    *,
    retry: RetryPolicy = FAST,
    clock: Clock | None = None,
) -> CloudTier:
    """Return a tier that ships little fragments to the store and retries without waiting."""
    return CloudTier(URL, store=store, settings=settings, retry=retry, clock=clock)


def cloud_log(store: ObjectStore, clock: Clock | None = None):
    """Open the log in a store."""
    return CloudLog.open(URL, store=store, clock=clock)


def values(count: int, size: int = 500, *, start: int = 1) -> list[bytes]:
    """Return distinct values."""
    return [b"%07d" % number + bytes(size - 7) for number in range(start, start + count)]


async def cloud_values(store: ObjectStore) -> list[bytes]:
    """Return everything that the prefix alone gives back, after verifying it."""
    async with cloud_log(store) as log:
        await log.verify()
        return [record.value async for record in log.reader()]


async def fragment_keys(store: ObjectStore) -> list[str]:
    """Return the keys of all fragments, named by a manifest or not."""
    return [listed.key async for listed in store.list(layout.FRAGMENT_FOLDER)]


async def unreferenced(store: ObjectStore) -> list[str]:
    """Return the fragments that no manifest names."""
    async with cloud_log(store) as log:
        named = {entry.path for entry in await log.fragments()}
    return [key for key in await fragment_keys(store) if key not in named]


async def snapshot(store: ObjectStore) -> dict[str, bytes]:
    """Return all objects."""
    keys = [listed.key async for listed in store.list("")]
    return {key: (await store.get(key)).data for key in keys}


async def copy_store(store: ObjectStore, changes: dict[str, bytes] | None = None) -> MemoryStore:
    """Return a store with the same objects, some replaced."""
    twin = MemoryStore()
    for key, data in {**await snapshot(store), **(changes or {})}.items():
        await twin.put_if_absent(key, data)
    return twin


_NAME = re.compile(rb'walstore-writer [0-9a-f]{16}|"author":"[0-9a-f]{32}"')


async def state_of(store: ObjectStore) -> bytes:
    """Return a hash of all objects, for checks that need nothing but the store.

    Writers and authors of chains are numbered as they appear: with a clock that stands still, their random
    names are all that differs after the same requests.
    """
    found = hashlib.blake2b()
    names: dict[bytes, bytes] = {}
    for key, data in sorted((await snapshot(store)).items()):
        known = _NAME.sub(lambda m: names.setdefault(m[0], b"name %d" % len(names)), data)
        found.update(repr((key, len(data), len(known))).encode())
        found.update(known)
    return found.digest()


async def copy_objects(source: ObjectStore, target: ObjectStore) -> None:
    """Put what one store holds into another, empty one."""
    async for listed in source.list(""):
        await target.put_if_absent(listed.key, (await source.get(listed.key)).data)


async def put_fragment(
    store: ObjectStore, seq_no: int, start: int, content: Sequence[bytes], timestamp_us: int = 7
) -> Fragment:
    """Put a fragment and return its entry, which no manifest names."""
    batch = batch_of(build(values_only(*content, start=start)))
    encoded = await asyncio.to_thread(encode_fragment, [batch], timestamp_us=timestamp_us)
    await store.put_if_absent(layout.fragment_path(seq_no), encoded.data)
    return encoded.entry(seq_no)


class MemorySource:
    """A :class:`walstore.core.tier_port.TierSource` over records in memory."""

    def __init__(self, *, head: int = 1, uploaded_limit: int = 1, log_id: str = LOG_ID) -> None:
        self.log_id = log_id
        self.head = head
        self.uploaded_limit = uploaded_limit
        self.durable_limit = head
        self.is_draining = False
        self.wants_cloud = False
        self.appended_bytes = 0
        self.faults: list[Exception] = []
        """Errors for the next reads."""
        self.refusals: list[WalError] = []
        """What callers that wait for the cloud were told."""
        self._batches: list[Batch] = []
        self._changed = asyncio.Event()

    def append(self, content: Iterable[bytes]) -> None:
        """Make one batch durable."""
        batch = batch_of(build(values_only(*content, start=self.durable_limit)))
        self._batches.append(batch)
        self.durable_limit = batch.limit
        self.appended_bytes += batch.nbytes
        self._notify()

    def hurry(self) -> None:
        """Let somebody wait for the cloud from now on."""
        self.wants_cloud = True
        self._notify()

    def drain(self) -> None:
        """Begin to close."""
        self.is_draining = True
        self._notify()

    async def wait_durable_limit(self, limit: int) -> None:
        while self.durable_limit < limit and not self.is_draining:
            await self._changed.wait()

    async def wait_draining(self) -> None:
        while not self.is_draining:
            await self._changed.wait()

    async def wait_shipping_due(self, appended_bytes: int) -> None:
        while self.appended_bytes < appended_bytes and not (self.wants_cloud or self.is_draining):
            await self._changed.wait()

    async def read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        assert position < limit <= self.durable_limit
        if self.faults:
            raise self.faults.pop(0)
        if position < self.head:
            raise OffsetTrimmedError(
                "not here any more", requested=position, head=self.head, tail=self.durable_limit
            )
        found = next(batch for batch in self._batches if batch.start <= position < batch.limit)
        return [found.slice(position, min(limit, found.limit))]

    def advance_uploaded(self, limit: int) -> None:
        assert limit >= self.uploaded_limit
        self.uploaded_limit = limit
        self._notify()

    def refuse_cloud(self, error: WalError) -> None:
        self.refusals.append(error)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def listed(items: AsyncIterator[object]) -> list[object]:
    """Return what an asynchronous iterator yields."""
    return [item async for item in items]


async def write_without_objects(store: ObjectStore, *values: bytes, url: str = URL) -> None:
    """Append values to a chain, a fragment each, and be killed before one of their objects is put."""
    faulty = FaultyStore(store)
    faulty.on("put_if_absent", hang(asyncio.Event()), key_prefix=layout.SHARD_PREFIX, times=10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "_CLOSE_SECONDS", 0.0)
        patch.setattr(inline, "_FIRST_OPEN", inline.MOST_OPEN)
        patch.setattr(inline, "_QUICK_SECONDS", 1e9)
        async with CloudWriter.open(
            url, store=faulty, layout="chain", chain=ChainSettings(inline_bytes=1 << 20), retry=FAST
        ) as log:
            for value in values:
                await log.append(value)
