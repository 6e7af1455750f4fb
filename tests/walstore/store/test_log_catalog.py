"""LogCatalog: a log is found or not, in one step, whoever looks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from walstore import InvalidSettingsError, LogNotFoundError, WalStore, connect
from walstore.http.looking import Looking
from walstore.http.protocol import RefusedError
from walstore.http.streams import Streams
from walstore.serve import Server
from walstore.store.log_catalog import catalog_of
from walstore.testing import ManualClock

Look = Callable[[WalStore, str], Awaitable[Any]]


async def of_streams(store: WalStore, address: str) -> None:
    await Streams(store.catalog, ManualClock()).find("a")


async def of_the_page(store: WalStore, address: str) -> None:
    await Looking(store.catalog, {}, ManualClock()).records("a", {})


async def of_a_client(store: WalStore, address: str) -> None:
    async with connect(address, log="a", create=False):
        pass


@pytest.mark.parametrize("look", [of_streams, of_the_page, of_a_client])
async def test_a_log_that_is_looked_for_while_it_is_deleted_is_not_made_anew(
    tmp_path: Path, look: Look
) -> None:
    async with (
        WalStore.open(tmp_path / "store") as store,
        Server.open(store, unix=tmp_path / "s.sock"),
    ):
        await (await store.wal("a")).append(b"v")
        deleting = asyncio.create_task(store.delete("a"))
        await asyncio.sleep(0)  # it has begun
        with pytest.raises((RefusedError, LogNotFoundError), match=r"no such|has no log"):
            await look(store, f"unix://{tmp_path}/s.sock")
        await deleting
        assert await store.logs() == []


async def test_each_kind_of_catalog_finds_its_logs_and_makes_none(tmp_path: Path) -> None:
    async with WalStore.open(tmp_path / "store") as store:
        made = await store.wal("a")
        for logs in (catalog_of(store), catalog_of(made)):
            assert await logs.find("a") is made
            assert await logs.find("b") is None
        await store.close_log("a")
        again = await store.catalog.find("a")
        assert again is not None
        assert not again.is_closing
        assert await store.logs() == ["a"]
        with pytest.raises(InvalidSettingsError, match="not deleted here"):
            await catalog_of(again).delete("a")
        await catalog_of(store).delete("a")
        assert await store.logs() == []


def test_what_only_a_server_asks_is_no_attribute_of_a_store() -> None:
    """Nor is it, by a name that a later version may want."""
    shown = {name for name in dir(WalStore) if not name.startswith("_")}
    assert shown == {
        *("open", "wal", "logs", "opened", "exists", "close_log", "delete", "statistics"),
        *("is_closing", "aclose"),
        *("catalog", "check_owner", "abandon"),  # not for callers
    }
