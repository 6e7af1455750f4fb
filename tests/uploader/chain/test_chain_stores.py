"""A chain on real stores: names in the right order, one winner for each slot."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.uploader.chain.chains import run
from uploader.chain import ChainRoot, ChainSettings
from uploader.stores import RetryPolicy, open_store
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where an empty store lies."""
    if request.param == "directory":
        return (tmp_path / "store").as_uri()
    return request.getfixturevalue("s3_url")


@pytest.mark.slow
async def test_two_writers_and_a_reader(url: str) -> None:
    worker = Worker("test")
    async with contextlib.aclosing(open_store(url)) as store:
        logs = [
            ChainRoot(store, RetryPolicy(), worker, settings=ChainSettings(alpha=alpha))
            for alpha in (3, 5)
        ]
        for log in logs:
            await log.load_or_create("w")
        expected = run(*[2] * 12)
        for turn in range(3):
            log = logs[turn % 2]
            await log.load()
            items = expected[4 * turn : 4 * turn + 4]
            await asyncio.gather(*(log.publish([item], "w") for item in items))
            await log.settle()
        with pytest.raises(ContentionError):
            await logs[1].publish(run(2, seq_no=9, start=17, salt="x"), "w")
        reader = ChainRoot(store, RetryPolicy(), worker)
        await reader.load()
        assert reader.manifest.fragments == tuple(expected)
        for log in logs:
            await log.aclose()
    worker.close()
