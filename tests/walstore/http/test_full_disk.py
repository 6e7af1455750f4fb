"""A stream that is created while the disk is full: nothing is left of it, and it can be created again."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.cases import case
from tests.local import SMALL
from tests.walstore.http.conftest import QUICK, Served
from walstore import DiskFullError, Wal, WalStore
from walstore.http import HttpServer
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)
TEXT = {"Content_Type": "text/plain"}
MOST_CALLS = 200


@asynccontextmanager
async def serving(path: Path, fs: FaultyFileSystem) -> AsyncIterator[Served]:
    async with (
        WalStore.open(path, settings=SMALL, fs=fs) as store,
        HttpServer.open(store, "127.0.0.1:0", settings=QUICK) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Served(store, server, session)


@pytest.mark.parametrize("times", [1, None])
async def test_a_stream_that_is_refused_is_not_there(tmp_path: Path, times: int | None) -> None:
    """At each call of the file system in turn; the disk is full for that one, or until all is over."""
    faulty = FaultyFileSystem()
    async with serving(tmp_path, faulty) as served:
        refused = 0
        for nth in range(1, MOST_CALLS):
            name = f"s{nth}"
            with case(nth):
                before = await served.store.logs()
                faulty.fail("*", errno.ENOSPC, nth=nth, times=times)
                known = len(faulty.calls)
                status, _, body = await served.send("PUT", name, b"v", **TEXT)
                is_over = len(faulty.calls) < known + nth
                faulty.heal()
                assert status in (201, 507)
                if status == 507:
                    refused += 1
                    is_left = b"is left for the next try" in body
                    if not is_left:
                        assert await served.store.logs() == before
                        assert await served.status("GET", name) == 404
                    again = await served.status("PUT", name, b"v", **TEXT)
                    assert again == 201 or (is_left and again == 200)
                assert await served.status("PUT", name, b"v", **TEXT) == 200
                assert await served.content(name) == b"v"
                if is_over:
                    break
        assert refused > 5


async def append_and_fail(wal: Wal) -> None:
    await wal.append(b"v")
    raise DiskFullError("no space", outcome="not_written")


async def test_a_log_that_somebody_uses_stays(tmp_path: Path) -> None:
    """It was made for the stream, and another program appended to it before the disk was full."""
    faulty = FaultyFileSystem()
    async with serving(tmp_path, faulty) as served:
        with pytest.raises(DiskFullError):
            await served.store.catalog.make("s", append_and_fail)
        assert await served.store.logs() == ["s"]
        wal = await served.store.wal("s")
        assert wal.tail == 2


async def test_who_uses_it_already_goes_on_with_it(tmp_path: Path) -> None:
    """The log is not closed to find out that it is used."""
    others: list[Wal] = []

    async def use_and_fail(wal: Wal) -> None:
        others.append(wal)
        await append_and_fail(wal)

    async with serving(tmp_path, FaultyFileSystem()) as served:
        with pytest.raises(DiskFullError):
            await served.store.catalog.make("s", use_and_fail)
        assert await others[0].append(b"w") == 2
