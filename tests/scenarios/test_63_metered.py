"""What a meter around the store of a log tells: what it was asked for, and that idle logs ask for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud import cloud_log, tier, values
from tests.local import turns
from uploader import UploadSettings
from uploader.stores import HedgedStore, MemoryStore, MeteredStore, RetryingStore
from walstore import Wal
from walstore.testing import ManualClock

DAY = 100, 864


@pytest.fixture
def metered(clock: ManualClock) -> MeteredStore:
    return MeteredStore(MemoryStore(), clock=clock)


async def a_day_passes(clock: ManualClock) -> None:
    steps, seconds = DAY
    for _ in range(steps):
        clock.advance(seconds)
        await turns()


@pytest.mark.parametrize("wrap", [lambda store: store, HedgedStore, RetryingStore])
async def test_an_idle_log_makes_no_requests(
    log_directory: Path, metered: MeteredStore, clock: ManualClock, wrap
) -> None:
    """Neither an open log with a tier nor an open view of it, whatever lies between them and the store."""
    cloud = tier(wrap(metered), UploadSettings(), clock=clock)
    async with Wal.open(log_directory, tier=cloud, clock=clock) as wal:
        await wal.append(b"1", durability="cloud")
        async with cloud_log(wrap(metered), clock) as view:
            assert [record.value async for record in view.reader()] == [b"1"]
            before = metered.usage()
            await a_day_passes(clock)
            assert metered.usage() == before
        await wal.append(b"2", durability="cloud")
        assert metered.usage() != before
        before = metered.usage()
        await a_day_passes(clock)
        assert metered.usage() == before


async def test_what_shipping_costs_is_told(log_directory: Path, metered: MeteredStore) -> None:
    """Bytes of fragments once; requests for fragments and for swaps; nothing failed."""

    async def fragments() -> dict[str, int]:
        found = metered.inner.list("log/")
        return {listed.key: listed.size_bytes async for listed in found}

    async with Wal.open(log_directory, tier=tier(metered)) as wal:
        await wal.append(b"first", durability="cloud")
        before, there = metered.usage(), await fragments()
        await wal.append_many(values(100), durability="cloud")
        used, put = metered.usage(), await fragments()
    new = [size for key, size in put.items() if key not in there]
    requests = used.of("put_if_absent").requests - before.of("put_if_absent").requests
    sent = used.of("put_if_absent").sent_bytes - before.of("put_if_absent").sent_bytes
    assert (requests, sent) == (len(new), sum(new))
    assert used.of("put_if_match").requests > before.of("put_if_match").requests
    assert sum(of.failures + of.cancelled for of in used.kinds.values()) == 0
    assert used.cost() > before.cost() > 0
