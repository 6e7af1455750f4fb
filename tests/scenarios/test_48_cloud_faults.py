"""Any one call to the store may fail, happen unseen, be refused, hang or be the last. Nothing is lost.

A fixed life of a log (open, append, ship, close; then again) runs once for each call it makes, with a
fault at that call. Afterwards the log is opened a last time over a healthy store, and the prefix alone must
give back everything, once, with no fragment left over and none written twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.cloud import (
    SEGMENTS,
    LeapingClock,
    RecordingStore,
    cloud_values,
    fragment_keys,
    tier,
    unreferenced,
    values,
)
from tests.local import UnsyncedFileSystem
from tests.uploader.answers import refusal
from tests.waiting import until
from uploader.stores.memory import MemoryStore
from uploader.testing import FaultyStore, StoreKilled, faults
from uploader.testing.faults import Fault, fail, happen_then_fail, timeout
from walstore import StorageUnavailableError, Wal
from walstore.errors import WalError

pytestmark = pytest.mark.slow

EXPECTED = values(60)


PUTS: dict[str, Callable[[], Fault]] = {
    "refused out of nothing": lambda: fail(refusal()),
    "refused after it happened": lambda: happen_then_fail(refusal()),
    "busy": lambda: fail(faults.conflict()),
}
ANY: dict[str, Callable[[], Fault]] = {
    "not reached": lambda: fail(timeout("not_written")),
    "lost on the way there": lambda: fail(timeout()),
    "lost on the way back": lambda: happen_then_fail(timeout()),
}
DEATHS: dict[str, Callable[[], Fault]] = {
    "dies before": faults.kill,
    "dies after": faults.happen_then_kill,
}


class Life:
    """A log, its store, and what came of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.inner = MemoryStore()
        self.store = RecordingStore(self.inner)
        self.fs = UnsyncedFileSystem()
        self.clock = LeapingClock()
        self.errors: list[WalError] = []
        self.failures: list[str] = []

    def open(self, store: FaultyStore | None = None):
        shipped = tier(store or self.store, clock=self.clock)
        return Wal.open(self.directory, settings=SEGMENTS, tier=shipped, fs=self.fs)

    async def run(self) -> None:
        """Live twice; a second life that finds the store dead does not begin."""
        for limit in (40, 60):
            try:
                async with self.open() as wal:
                    for value in EXPECTED[wal.tail - 1 : limit]:
                        await wal.append(value)
                if wal.statistics().tier_failure:
                    self.failures.append(wal.statistics().tier_failure or "")
            except WalError as error:
                self.errors.append(error)

    async def check(self) -> None:
        """Open it once more over a healthy store, and compare."""
        again = RecordingStore(self.inner)
        self.clock = LeapingClock()
        before = {key: (await self.inner.get(key)).data for key in await fragment_keys(self.inner)}
        async with self.open(again) as wal:
            if wal.tail <= len(EXPECTED):
                await wal.append_many(EXPECTED[wal.tail - 1 :])
            await wal.wait_durable(wal.tail - 1, "cloud")
            assert wal.statistics().tier_failure is None
        assert await cloud_values(self.inner) == EXPECTED
        assert await unreferenced(self.inner) == []
        assert not before.keys() & again.attempts.keys()
        for key, data in before.items():
            assert (await self.inner.get(key)).data == data


@pytest.mark.parametrize("fault", ANY)
async def test_any_call_may_fail(fault: str, scratch: Path) -> None:
    """A fault that passes is an error at opening, which may be tried again, and nothing at all later."""
    for nth in count(1):
        life = Life(scratch / str(nth))
        life.store.on("any", ANY[fault](), nth=nth)
        await life.run()
        assert life.failures == []
        assert len(life.errors) <= 1
        for error in life.errors:
            assert error.retriable
        await life.check()
        if life.store.requests < nth:
            break
    assert nth > 15


@pytest.mark.parametrize("fault", PUTS)
@pytest.mark.parametrize(
    ("kind", "key_prefix"),
    [("put_if_absent", "log/"), ("put_if_absent", "manifest/"), ("put_if_match", "manifest/")],
)
async def test_any_put_may_be_refused(fault: str, kind, key_prefix: str, scratch: Path) -> None:
    """For no reason, or because of one's own earlier attempt: nobody notices."""
    for nth in count(1, 2):
        life = Life(scratch / str(nth))
        fired = asyncio.Event()

        async def refuse(request, fired: asyncio.Event = fired) -> object:
            fired.set()
            return await PUTS[fault]()(request)

        life.store.on(kind, refuse, nth=nth, key_prefix=key_prefix)
        await life.run()
        assert life.failures == []
        assert life.errors == []
        await life.check()
        if not fired.is_set():
            break


@pytest.mark.parametrize("fault", DEATHS)
async def test_any_call_may_be_the_last(fault: str, scratch: Path) -> None:
    for nth in count(1):
        life = Life(scratch / str(nth))
        life.store.on("any", DEATHS[fault](), nth=nth)
        with contextlib.suppress(StoreKilled, BaseExceptionGroup):
            await life.run()
        await life.check()
        if life.store.requests < nth:
            break
    assert nth > 15


@pytest.mark.parametrize("happens", [False, True])
async def test_any_call_may_hang(happens: bool, scratch: Path) -> None:
    """An opening that hangs can be cancelled; a closing that hangs gives up by itself."""
    for nth in count(1):
        life = Life(scratch / str(nth))
        reached, opened = asyncio.Event(), asyncio.Event()
        hang = faults.happen_then_hang if happens else faults.hang
        life.store.on("any", hang(asyncio.Event(), reached), nth=nth, times=10**6)

        async def live(life: Life = life, opened: asyncio.Event = opened) -> str | None:
            async with life.open() as wal:
                opened.set()
                for value in EXPECTED[:40]:
                    await wal.append(value)
            return wal.statistics().tier_failure

        living = asyncio.create_task(live())
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait((living, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if reached.is_set() and not opened.is_set():
            living.cancel()
            await asyncio.wait((living,))
            assert living.cancelled()
        else:
            if reached.is_set():
                life.clock.leap()
            failure = await living
            assert (failure is not None) == reached.is_set()
            assert failure is None or "while the log was closing" in failure
        await life.check()
        if not reached.is_set():
            break
    assert nth > 15


async def test_the_store_may_be_away_from_any_call_on_until_it_is_closed(scratch: Path) -> None:
    """Opening fails with an error that may be tried again; later, nothing fails but the shipping."""
    for nth in count(1, 4):
        life = Life(scratch / str(nth))

        async def be_away(request, life: Life = life) -> object:
            life.clock.leap()
            return await fail(timeout("not_written"))(request)

        life.store.on("any", be_away, nth=nth, times=10**6)
        await life.run()
        for error in life.errors:
            assert isinstance(error, StorageUnavailableError)
            assert error.retriable
        await life.check()
        if not life.errors and not life.failures:
            break
    assert nth > 15


@pytest.mark.parametrize("nth", range(5))
async def test_a_put_that_was_given_up_arrives_later(nth: int, scratch: Path) -> None:
    """Closing gave up on it, another life began, cut its fragments otherwise, and then it lands."""
    life = Life(scratch / "log")
    late: list[tuple[str, bytes]] = []

    class Slow(RecordingStore):
        async def put_if_absent(self, key: str, data: bytes) -> str:
            if key.startswith("log/") and len(self.attempts) >= nth:
                late.append((key, data))
                life.clock.leap()
                await asyncio.Event().wait()
            return await super().put_if_absent(key, data)

    async with Wal.open(life.directory, settings=SEGMENTS, fs=life.fs) as wal:
        for value in EXPECTED[:40]:
            await wal.append(value)
    async with life.open(Slow(life.inner)) as wal:
        await until(lambda: bool(late))
    assert "while the log was closing" in (wal.statistics().tier_failure or "")
    assert late

    class Haunted(RecordingStore):
        async def put_if_absent(self, key: str, data: bytes) -> str:
            for old_key, old_data in late:
                if old_key == key:
                    await asyncio.gather(
                        life.inner.put_if_absent(key, old_data), return_exceptions=True
                    )
            return await super().put_if_absent(key, data)

    async with Wal.open(life.directory, settings=SEGMENTS, fs=life.fs) as wal:
        await wal.append_many(EXPECTED[40:50])
    life.clock = LeapingClock()
    async with life.open(Haunted(life.inner)) as wal:
        await wal.append_many(EXPECTED[50:])
        await wal.wait_durable(60, "cloud")
        assert wal.statistics().tier_failure is None
    assert await cloud_values(life.inner) == EXPECTED
    assert await unreferenced(life.inner) == []
