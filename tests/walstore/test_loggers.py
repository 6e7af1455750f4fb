"""What the library logs, and under which names."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

import pytest

from tests.cloud import tier
from uploader.stores.memory import MemoryStore
from walstore import Wal, WalStore

ROOT: Final = Path(__file__).parent.parent.parent


def test_every_logger_is_documented() -> None:
    used: set[str] = set()
    for package in ("walstore", "uploader"):
        for path in (ROOT / package).rglob("*.py"):
            used |= set(re.findall(r'= logging\.getLogger\("(walstore[.\w]*)"\)', path.read_text()))
    section = (ROOT / "docs/serving.md").read_text().split("\n## Messages\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(walstore\.\w+)`", section)) == used - {"walstore"}


async def test_the_life_of_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At level INFO, a line each, with what an operator asks first."""
    caplog.set_level(logging.INFO, "walstore.log")
    path = tmp_path / "store"
    async with WalStore.open(path) as store:
        async with await store.wal("orders") as wal:
            await wal.append(b"v")
        await (await store.wal("orders")).aclose()
        await store.delete("orders")
    directory = path / "orders"
    assert caplog.messages == [
        f"{directory}: opened at epoch 1, offsets [1, 1); a new log",
        f"{directory}: closed at 2",
        f"{directory}: opened at epoch 2, offsets [1, 2)",
        f"{directory}: closed at 2",
        f"{directory}: deleted",
    ]


async def test_where_it_is_shipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with Wal.open(tmp_path, tier=tier(store)) as wal:
        await wal.append(b"v", durability="cloud")
    caplog.set_level(logging.INFO, "walstore.log")
    async with Wal.open(tmp_path, tier=tier(store)):
        (opened,) = caplog.messages
    assert (
        opened == f"{tmp_path}: opened at epoch 2, offsets [1, 2); shipped to {store.url} below 2"
    )
