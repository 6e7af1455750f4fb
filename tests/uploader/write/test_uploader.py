"""The uploader's task: when it ships, what it believes of a manifest, and how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.cloud import LOG_ID, MemorySource, cloud_values, put_fragment, values
from tests.local import turns
from tests.uploader.documents import manifest_of
from tests.waiting import until
from uploader import UploadSettings
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import LogSession
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.ownership import writer_name
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from uploader.write.uploader import Uploader
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    OffsetTrimmedError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing import ManualClock

WRITER = writer_name(bytes.fromhex(LOG_ID))
SETTINGS = UploadSettings(
    fragment_bytes=4096, fragment_age_seconds=5, drain_seconds=10, parallel_puts=True
)


@dataclass
class Bench:
    """An uploader over a store in memory, a source in memory, and a clock that stands still."""

    store: FaultyStore
    source: MemorySource
    clock: ManualClock
    manifests: SwappedRoot
    uploader: Uploader
    worker: Worker

    async def load(self) -> None:
        """Do what opening the tier does."""
        if await self.manifests.load():
            await self.uploader.prepare(is_new=False)

    async def write(self, manifest: Manifest) -> None:
        await self.store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())

    async def outcome(self) -> WalError | None:
        """Load, run to the end, and return what it failed with."""
        await self.load()
        self.source.drain()
        try:
            await self.uploader.run(self.source)
        except WalError as error:
            return error
        return None


@pytest.fixture
async def bench(clock: ManualClock) -> AsyncIterator[Bench]:
    store, worker = FaultyStore(MemoryStore()), Worker("test")
    retry = RetryPolicy(clock=clock, attempts=2, first_wait_seconds=0, longest_wait_seconds=0)
    manifests = SwappedRoot(store, retry, worker)
    session = LogSession("memory://x", store=store, retry=retry, clock=clock, worker=worker)
    uploader = Uploader(session, manifests, SETTINGS)
    yield Bench(store, MemorySource(), clock, manifests, uploader, worker)
    worker.close()


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[asyncio.Task[None]]:
    """The uploader's task, at rest."""
    task = asyncio.create_task(bench.uploader.run(bench.source))
    await until(lambda: bench.manifests.is_known)
    await turns(50)
    yield task
    task.cancel()
    await asyncio.wait((task,))


# -- when it ships ---------------------------------------------------------------------------


async def test_an_idle_log_asks_for_nothing(bench: Bench, running) -> None:
    """One manifest at the beginning, and then not a request in a day."""
    before = bench.store.requests
    for _ in range(100):
        bench.clock.advance(864)
        await turns()
    assert bench.store.requests == before
    assert bench.clock.sleepers == 0


async def test_little_is_shipped_at_an_age(bench: Bench, running) -> None:
    bench.source.append([b"1"])
    await bench.clock.wait_for_sleepers()
    bench.clock.advance(4.9)
    bench.source.append([b"2"])
    await turns(50)
    assert bench.source.uploaded_limit == 1
    bench.clock.advance(0.2)
    await until(lambda: bench.source.uploaded_limit == 3)
    assert bench.uploader.uploaded_fragments == 1


async def test_a_full_fragment_is_shipped_at_once(bench: Bench, running) -> None:
    bench.source.append([b"x" * 2500])
    await turns(50)
    assert bench.source.uploaded_limit == 1
    bench.source.append([b"x" * 2500])
    await until(lambda: bench.source.uploaded_limit == 3)
    assert bench.clock.monotonic() == 0


async def test_somebody_who_waits_is_served_at_once(bench: Bench, running) -> None:
    bench.source.append([b"1"])
    await turns(50)
    bench.source.hurry()
    await until(lambda: bench.source.uploaded_limit == 2)


async def test_who_waits_does_not_wait_for_those_before(bench: Bench, running) -> None:
    """The next fragment is put while the first one is under way, and the one after while that is named."""
    first, swap = asyncio.Event(), asyncio.Event()
    bench.store.on("put_if_absent", faults.hang(first), key_prefix=layout.fragment_path(1))
    bench.store.on("put_if_match", faults.hang(swap), key_prefix=layout.MANIFEST)
    bench.source.hurry()
    bench.source.append(values(1))
    await until(lambda: bench.store.count("put_if_absent").requests == 2)  # and the manifest
    bench.source.append(values(1))
    await bench.clock.wait_for_sleepers(1)  # the interval between two fragments
    bench.clock.advance(SETTINGS.interval_seconds)
    await until(lambda: bench.uploader.uploaded_fragments == 1)
    await bench.worker.run(int)  # it is hashed, too
    first.set()
    await until(lambda: bench.store.count("put_if_match").requests == 1)
    bench.source.append(values(1))
    await bench.clock.wait_for_sleepers(1)
    bench.clock.advance(SETTINGS.interval_seconds)
    await until(lambda: bench.uploader.uploaded_fragments == 3)
    assert bench.source.uploaded_limit == 1
    swap.set()
    await until(lambda: bench.source.uploaded_limit == 4)


async def test_closing_ships_at_once_and_ends(bench: Bench, running) -> None:
    bench.source.append([b"1"])
    await turns(50)
    bench.source.drain()
    await running
    assert bench.source.uploaded_limit == 2
    assert await cloud_values(bench.store.inner) == [b"1"]


async def test_what_comes_while_it_ships_is_shipped_next(bench: Bench, running) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    bench.store.on("put_if_absent", faults.hang(release, reached), key_prefix="log/")
    bench.source.hurry()
    bench.source.append([b"1"])
    await reached.wait()
    bench.source.append([b"2"])
    bench.source.append([b"3"])
    release.set()
    await until(lambda: bench.source.uploaded_limit == 4)
    assert bench.uploader.uploaded_fragments == 2


async def test_an_outage_of_a_day_is_waited_out(bench: Bench, running) -> None:
    for kind in ("put_if_absent", "put_if_match", "get"):
        bench.store.on(kind, fail(timeout()), times=200)
    bench.source.hurry()
    bench.source.append([b"1"])

    def a_minute_later() -> bool:
        bench.clock.advance(60)
        return bench.source.uploaded_limit == 2

    await until(a_minute_later)
    assert not running.done()


@pytest.mark.parametrize("kind", ["put_if_absent", "put_if_match"])
@pytest.mark.parametrize("fails", [False, True], ids=["hangs", "fails"])
async def test_closing_gives_up_on_a_dead_store(bench: Bench, running, kind, fails) -> None:
    fault = fail(timeout("not_written")) if fails else faults.hang(asyncio.Event())
    bench.store.on(kind, fault, times=10**6)
    before = bench.store.count(kind).requests
    bench.source.append([b"1"])
    bench.source.drain()
    await until(lambda: bench.store.count(kind).requests > before)
    for _ in range(99):
        bench.clock.advance(0.1)
        await turns()
    assert not running.done()
    bench.clock.advance(0.2)
    await asyncio.wait((running,))
    error = running.exception()
    assert isinstance(error, StorageUnavailableError)
    assert "fulfilled no request for 10 s" in str(error)
    assert (error.__cause__ is not None) == fails


async def test_cancelling_it(bench: Bench, running) -> None:
    reached = asyncio.Event()
    bench.store.on("put_if_absent", faults.hang(asyncio.Event(), reached), key_prefix="log/")
    bench.source.hurry()
    bench.source.append([b"1"])
    await reached.wait()
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()


# -- what it believes ------------------------------------------------------------------------


async def test_it_makes_the_manifest(bench: Bench) -> None:
    assert await bench.outcome() is None
    assert bench.manifests.manifest == Manifest.initial(WRITER)
    assert bench.source.uploaded_limit == 1


async def test_the_manifest_of_another_log(bench: Bench) -> None:
    """Also if it appears between opening and shipping."""
    bench.source.append([b"ours"])
    theirs = Manifest.initial(writer_name(bytes(16)))
    await bench.write(theirs)
    bench.source.drain()
    with pytest.raises(ContentionError, match="belongs to another log"):
        await bench.uploader.run(bench.source)
    assert bench.source.uploaded_limit == 1
    assert Manifest.parse((await bench.store.inner.get(layout.MANIFEST)).data) == theirs


async def test_records_of_another_program_are_not_taken_for_ours(bench: Bench) -> None:
    bench.source.append(values(10))
    await bench.write(manifest_of(3, 4))
    error = await bench.outcome()
    assert isinstance(error, ContentionError)
    assert bench.source.uploaded_limit == 1


async def shipped_before(bench: Bench, content: list[bytes]) -> Manifest:
    """Put a fragment and a manifest that names it, as an earlier life would have."""
    entry = await put_fragment(bench.store.inner, 1, 1, content)
    manifest = Manifest.initial(WRITER).apply_fragments([entry], WRITER)
    await bench.write(manifest)
    return manifest


async def test_what_it_does_not_remember_is_compared(bench: Bench) -> None:
    """It died after the swap: one read, and on it goes."""
    content = values(10)
    await shipped_before(bench, content)
    bench.source.append([*content, b"next"])
    assert await bench.outcome() is None
    assert await cloud_values(bench.store.inner) == [*content, b"next"]
    assert bench.uploader.uploaded_fragments == 1
    assert bench.store.count("get").requests == 2


async def test_what_it_remembers_is_not_read_again(bench: Bench) -> None:
    content = values(10)
    await shipped_before(bench, content)
    bench.source.append(content)
    bench.source.uploaded_limit = 11
    assert await bench.outcome() is None
    assert bench.store.count("get").requests == 1


async def test_a_copy_of_the_directory_that_went_its_own_way(bench: Bench) -> None:
    """The other copy shipped; this one must not take that for its own, nor go on behind it."""
    manifest = await shipped_before(bench, values(10))
    bench.source.append([*values(9), b"this copy's", b"next"])
    error = await bench.outcome()
    assert isinstance(error, ContentionError)
    assert "holds other records than this log" in str(error)
    assert bench.source.uploaded_limit == 1
    assert bench.manifests.manifest == manifest


async def test_what_is_not_here_any_more_cannot_be_compared(bench: Bench) -> None:
    await shipped_before(bench, values(10))
    bench.source = MemorySource(head=11, uploaded_limit=6)
    bench.source.append([b"next"])
    assert await bench.outcome() is None
    assert await cloud_values(bench.store.inner) == [*values(10), b"next"]


async def test_the_last_fragment_is_missing(bench: Bench) -> None:
    await shipped_before(bench, values(10))
    await bench.store.inner.delete([layout.fragment_path(1)])
    bench.source.append(values(10))
    error = await bench.outcome()
    assert isinstance(error, CorruptionError)
    assert error.path == layout.fragment_path(1)


async def test_the_last_fragment_is_another(bench: Bench) -> None:
    await shipped_before(bench, values(10))
    await bench.store.inner.delete([layout.fragment_path(1)])
    await put_fragment(bench.store.inner, 1, 1, values(9))
    bench.source.append(values(10))
    error = await bench.outcome()
    assert isinstance(error, CorruptionError)
    assert error.path == layout.fragment_path(1)


async def test_a_trimmed_log_needs_the_prefix_that_has_the_rest(bench: Bench) -> None:
    """An empty place is not given a manifest that could never be filled."""
    bench.source = MemorySource(head=100, uploaded_limit=100)
    bench.source.append([b"next"])
    error = await bench.outcome()
    assert isinstance(error, OffsetTrimmedError)
    assert "ship this log to the prefix that has them" in str(error)
    assert await bench.store.inner.head(layout.MANIFEST) is None


async def test_an_empty_manifest_of_another_program_is_taken_over(bench: Bench) -> None:
    await bench.write(Manifest.initial("wal3"))
    bench.source.append([b"1"])
    assert await bench.outcome() is None
    assert bench.manifests.manifest.writer == WRITER
    assert await cloud_values(bench.store.inner) == [b"1"]


async def test_late_fragments_are_planned_anew(bench: Bench, running) -> None:
    async def land() -> None:
        await put_fragment(bench.store.inner, 1, 1, [b"1", b"2"])

    bench.store.on("put_if_absent", faults.call(land), key_prefix="log/")
    bench.source.append([b"1", b"2", b"3"])
    bench.source.drain()
    await running
    assert await cloud_values(bench.store.inner) == [b"1", b"2", b"3"]
    assert (bench.uploader.adopted_fragments, bench.uploader.uploaded_fragments) == (1, 1)


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"fragment_bytes": 4095},
        {"fragment_bytes": (512 << 20) + 1},
        {"max_in_flight": 0},
        {"max_in_flight": 65},
        {"fragment_age_seconds": -0.1},
        {"fragment_age_seconds": float("nan")},
        {"drain_seconds": -1},
    ],
)
def test_settings_out_of_range(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidSettingsError, match=next(iter(changes))):
        UploadSettings(**changes)


def test_settings_at_their_bounds() -> None:
    UploadSettings(fragment_bytes=4096, max_in_flight=1, fragment_age_seconds=0, drain_seconds=0)
    found = UploadSettings(fragment_bytes=512 << 20, max_in_flight=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.max_in_flight = 1  # type: ignore[misc]
