"""Tasks that run together: none outlives the call that began them."""

from __future__ import annotations

import asyncio

import pytest

from uploader.chain.shards import list_behind
from uploader.stores import MemoryStore
from uploader.together import all_of
from walstore.errors import StorageUnavailableError


async def test_results_come_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await all_of(after(turns) for turns in (3, 1, 2)) == [3, 1, 2]
    assert await all_of([]) == []


class OneShardFails(MemoryStore):
    """Does not answer but for one folder, of which it says that it is away."""

    async def list(self, prefix: str, *, after: str | None = None):
        if prefix != "shard0003/":
            await asyncio.Event().wait()
        raise StorageUnavailableError("away")
        yield


async def test_nothing_goes_on_after_a_failure() -> None:
    """A writer that gave up has no request under way any more when its store is closed."""
    with pytest.raises(StorageUnavailableError, match="away"):
        await list_behind(OneShardFails(), 7)
    assert asyncio.all_tasks() == {asyncio.current_task()}
