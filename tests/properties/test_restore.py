"""Whatever was appended: through the cloud and back it is the same log."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cloud import tier
from tests.local import SMALL, UnsyncedFileSystem, read_all
from tests.scenarios.test_44_restore import again, collect
from uploader import UploadSettings
from uploader.stores import MemoryStore
from walstore import Record, Wal
from walstore.care.verify.verifying import verify_directory

APPENDS = st.lists(
    st.fixed_dictionaries(
        {
            "values": st.lists(
                st.binary(max_size=20) | st.just(bytes(3000)), min_size=1, max_size=9
            ),
            "key": st.none() | st.binary(max_size=4),
            "stream": st.none() | st.sampled_from(["eu", "us", "ø"]),
            "headers": st.none() | st.dictionaries(st.text(max_size=2), st.binary(max_size=2)),
            "timestamp_us": st.none() | st.integers(0, 2**50),
        }
    ),
    min_size=1,
    max_size=12,
)
FRAGMENTS = UploadSettings(fragment_bytes=4096, fragment_age_seconds=0.0)


@pytest.mark.slow
@settings(max_examples=20)
@given(APPENDS, st.integers(0, 3), st.none() | st.floats(0, 1), st.integers(1, 5))
def test_through_the_cloud_and_back(
    appends: list[dict[str, object]], collected: int, part: float | None, in_flight: int
) -> None:
    asyncio.run(_there_and_back(appends, collected, part, in_flight))


async def _there_and_back(
    appends: list[dict[str, object]], collected: int, part: float | None, in_flight: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        store, fs = MemoryStore(), UnsyncedFileSystem()
        path = Path(scratch)
        async with Wal.open(
            path / "old", settings=SMALL, tier=tier(store, FRAGMENTS), fs=fs
        ) as wal:
            for append in appends:
                await wal.append_many(**append)  # type: ignore[arg-type]
            expected, streams = await read_all(wal), dict(wal.streams())
        head = 1
        if collected:
            head = (await collect(store, collected)).oldest_offset
        limit = len(expected) + 1
        stop = None if part is None else head + round(part * (limit - head))
        done = await again(store, path / "new", stop=stop, fs=fs, concurrency=in_flight)
        found = await _read(path / "new", store if stop is None else None)
        assert found == expected[head - 1 : None if stop is None else stop - 1]
        assert (done.head, done.limit) == (head, limit if stop is None else stop)
        report = await asyncio.to_thread(verify_directory, path / "new")
        assert report.is_ok, report.problems
        if head == 1 and stop is None:
            async with Wal.open(path / "new", settings=SMALL, fs=fs) as wal:
                assert dict(wal.streams()) == streams


async def _read(path: Path, store: MemoryStore | None) -> list[Record]:
    shipped = None if store is None else tier(store)
    async with Wal.open(path, settings=SMALL, tier=shipped, fs=UnsyncedFileSystem()) as wal:
        found = await read_all(wal)
        await wal.append(b"goes on")
        assert wal.tail == (found[-1].offset if found else wal.tail - 2) + 2
    if shipped is not None:
        assert shipped.uploader.uploaded_fragments == 1
    return found
