"""Times and offsets have 64 bits in a bucket, and fewer on disk: nothing is written that cannot be read."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.uploader.parquet import by_pyarrow, wal3_table
from uploader import CloudTier
from uploader.care.restoring.restore import restore
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.stores.memory import MemoryStore
from walstore import CorruptionError, Wal

URL = "memory://log"
LATEST_US = (1 << 63) - 1


async def bucket(*, start: int = 1, timestamp_us: int = 1) -> MemoryStore:
    """Return a log as wal3 would write it."""
    store = MemoryStore()
    manifest = Manifest.initial("wal3", start=start)
    key = layout.fragment_path(manifest.next_seq_no)
    data = await asyncio.to_thread(by_pyarrow, wal3_table(start, timestamp_us, [b"a", b"b"]))
    await store.put_if_absent(key, data)
    grown = manifest.apply_fragments([inspect_fragment(data, key)], "wal3")
    await store.put_if_absent(layout.MANIFEST, grown.serialise())
    return store


def tier(store: MemoryStore) -> CloudTier:
    return CloudTier(URL, store=store)


async def values(path: Path, store: MemoryStore) -> list[tuple[int, bytes]]:
    async with Wal.open(path, tier=tier(store)) as wal, wal.reader(follow=False) as reader:
        return [(record.offset, record.value) async for record in reader]


@pytest.mark.parametrize("timestamp_us", [LATEST_US, LATEST_US + 1, (1 << 64) - 1])
async def test_what_is_appended_behind_it_can_be_read(
    tmp_path: Path, timestamp_us: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = await bucket(timestamp_us=timestamp_us)
    async with Wal.open(tmp_path / "log", tier=tier(store)) as wal:
        assert await wal.append(b"c") == 3
    assert (await values(tmp_path / "log", store))[2:] == [(3, b"c")]
    warned = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert bool(warned) == (timestamp_us > LATEST_US)
    assert all("impossible time" in one.getMessage() for one in warned)


async def test_a_log_that_ends_too_far_on_is_refused_and_not_claimed(tmp_path: Path) -> None:
    store = await bucket(start=1 << 62)
    before = await store.get(layout.MANIFEST)
    with pytest.raises(CorruptionError, match="cannot begin behind"):
        await Wal.open(tmp_path / "log", tier=tier(store))
    assert (await store.get(layout.MANIFEST)).data == before.data


@pytest.mark.parametrize(
    ("start", "timestamp_us"), [(1, LATEST_US + 1), (1 << 62, 1)], ids=["time", "offset"]
)
async def test_it_is_not_restored(tmp_path: Path, start: int, timestamp_us: int) -> None:
    store = await bucket(start=start, timestamp_us=timestamp_us)
    with pytest.raises(CorruptionError, match="no log on disk"):
        await restore(URL, tmp_path / "log", store=store)
