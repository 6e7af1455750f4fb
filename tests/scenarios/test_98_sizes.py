"""The formulas of docs/handbook.md for disk, memory, requests and descriptors, against small logs."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final

import pytest

from tests.cases import case
from tests.local import segments
from tests.programs import COMMANDS, WALSTORE, start
from uploader import CloudTier, UploadSettings
from uploader.stores import MeteredStore, open_store
from walstore import Wal, WalStore, connect
from walstore.serve import Server

PAGE: Final = (Path(__file__).parents[2] / "docs" / "handbook.md").read_text()
COMMIT_BYTES: Final = int(re.findall(r"bytes of a commit = (\d+)", PAGE)[0])
RECORD_BYTES: Final = int(re.findall(r"bytes of a record = value \+ key \+ (\d+)", PAGE)[0])
KEY, HEADERS = b"key 1234", {"trace": b"0" * 16}


@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize("size", [0, 100, 1000])
async def test_bytes_on_disk(log_directory: Path, count: int, size: int) -> None:
    """The formula is an upper limit, and not by much."""
    shapes: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"stream": "eu"}, 0),
        ({"key": KEY, "stream": "eu"}, len(KEY)),
        ({"headers": HEADERS}, sum(len(name) + len(value) for name, value in HEADERS.items())),
    ]
    async with Wal.open(log_directory) as wal:
        for options, more in shapes:
            with case(sorted(options)):
                before = wal.statistics().appended_bytes
                for _ in range(10):
                    await wal.append_many([b"v" * size] * count, **options)
                found = (wal.statistics().appended_bytes - before) / 10
                limit = count * (size + more + RECORD_BYTES) + COMMIT_BYTES
                assert found <= limit
                if size:
                    assert found > limit / 3
        written = wal.statistics().appended_bytes
    files = sum(path.stat().st_size for path in segments(log_directory))
    assert written <= files <= written + 4096, "closed, a segment has little around its commits"


async def test_bytes_of_records_with_times_and_streams_of_their_own(log_directory: Path) -> None:
    """What shares a commit need not be alike."""
    async with Wal.open(log_directory) as wal:
        start = 1_750_000_000_000_000
        calls = (
            wal.append(b"v" * 50, stream=f"s{n % 50}", timestamp_us=start + 1_000_000 * n)
            for n in range(1000)
        )
        await asyncio.gather(*calls)
        found = wal.statistics()
        assert found.appended_bytes <= (
            1000 * (50 + RECORD_BYTES) + (found.commits + 50) * COMMIT_BYTES
        )


def fragments_of(wal: Wal) -> int:
    shipped = wal.statistics().upload
    assert shipped is not None
    return shipped.fragments


async def test_requests_of_a_tier(log_directory: Path) -> None:
    """A put and a swap for each fragment, and a put for every 64th and every 2048th."""
    url = "memory://sizes"
    store = MeteredStore(open_store(url))
    settings = UploadSettings(interval_seconds=0)
    count = 2 * settings.roll_up.fragments_per_snapshot
    async with Wal.open(log_directory, tier=CloudTier(url, store=store, settings=settings)) as wal:
        await wal.append(b"first", durability="cloud")
        before, fragments = store.usage(), fragments_of(wal)
        for _ in range(count):
            await wal.append(b"v" * 100, durability="cloud")
        used, made = store.usage(), fragments_of(wal) - fragments
        assert made == count
        kinds = ("put_if_absent", "put_if_match", "get", "get_range", "head", "list", "delete")
        requests = {kind: used.of(kind).requests - before.of(kind).requests for kind in kinds}
        assert sum(requests.values()) - 2 * made in (1, 2), requests
        assert used.cost() - before.cost() == pytest.approx(sum(requests.values()) * 5e-6)
        idle = store.usage()
        async with wal.reader(follow=False) as reader:
            async for _ in reader:
                pass
        assert store.usage() == idle


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_descriptors(tmp_path: Path) -> None:
    per_log, base, per_stored = map(
        int, re.findall(r"10 \+ (\d+) × logs opened alone, or (\d+) \+ (\d+) × min", PAGE)[0]
    )
    async with AsyncExitStack() as stack:
        before = _open_descriptors()
        for number in range(5):
            wal = await stack.enter_async_context(Wal.open(tmp_path / f"alone{number}"))
            await wal.append(b"v")
        assert _open_descriptors() - before <= 5 * per_log
        before = _open_descriptors()
        store = await stack.enter_async_context(WalStore.open(tmp_path / "store"))
        for number in range(5):
            await (await store.wal(f"l{number}")).append(b"v")
        assert _open_descriptors() - before <= base + 5 * per_stored
        before = _open_descriptors()
        server = await stack.enter_async_context(Server.open(store, unix=tmp_path / "s"))
        assert _open_descriptors() - before == 1
        for _ in range(5):
            await stack.enter_async_context(connect(str(server.addresses[0]), log="l0"))
        assert _open_descriptors() - before == 1 + 2 * 5, "both ends are of this process"


async def test_memory_of_a_server(tmp_path: Path) -> None:
    """A client appends three times what cache and channel hold; the server stays within the budget."""
    budget = int(re.findall(r"= (\d+) MiB at most with idle readers", PAGE)[0])
    arguments = (tmp_path / "log", "--unix", tmp_path / "s", "--json")
    with start(
        WALSTORE, "serve", *arguments, imports=COMMANDS, stdout=PIPE, stderr=DEVNULL
    ) as server:
        try:
            assert server.stdout is not None
            (address,) = json.loads(await asyncio.to_thread(server.stdout.readline))["addresses"]
            async with connect(address) as wal:
                for _ in range(9):
                    await asyncio.gather(
                        *(wal.append_many([bytes(64 << 10)] * 64) for _ in range(8))
                    )
            status = Path(f"/proc/{server.pid}/status").read_text()
            most = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
            assert 50 << 10 < most < budget << 10
        finally:
            server.kill()
