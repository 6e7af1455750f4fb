"""How much stored bytes the records of a log take, asked in runs: what limits of streams go by."""

from __future__ import annotations

import asyncio
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests import local
from tests.walstore.spark.reading import fill
from uploader import CloudTier, UploadSettings
from walstore.spark.blocking import SyncRunner
from walstore.spark.planned_log import DirectoryLog, StoreLog

pytestmark = pytest.mark.slow

COUNT = 1000


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log that keeps few files, and where it was shipped to."""
    root = tmp_path_factory.mktemp("spans")
    url = f"file://{root}/store"
    tier = CloudTier(url, settings=UploadSettings(fragment_bytes=16_384))
    settings = local.SMALL.replace(retention_bytes=0)
    asyncio.run(fill(root / "log", COUNT, settings=settings, tier=tier))
    return root / "log", url


@pytest.fixture(params=["store", "directory"])
def log(request, places):
    path, url = places
    made = (
        StoreLog.open(url, "store") if request.param == "store" else DirectoryLog(str(path), "log")
    )
    with closing(made):
        yield made


@pytest.mark.parametrize(("start", "limit"), [(1, COUNT + 1), (7, 905), (500, 501), (9, 9)])
def test_spans_cover_what_is_asked_for(log, start, limit):
    spans = log.spans(start, limit, 1 << 30)
    assert [span.start for span in spans] == [start, *(span.limit for span in spans[:-1])][
        : len(spans)
    ]
    assert all(one.limit == other.start for one, other in pairwise(spans))
    assert (spans[-1].limit if spans else start) == limit
    assert all(span.size_bytes > 0 for span in spans)


def test_no_more_than_the_bytes_asked_for(log):
    everything = log.spans(1, COUNT + 1, 1 << 30)
    total = sum(span.size_bytes for span in everything)
    few = log.spans(1, COUNT + 1, total // 10)
    assert few[-1].limit < COUNT // 2
    assert sum(span.size_bytes for span in few[:-1]) < total // 10
    assert sum(span.size_bytes for span in few) >= total // 10


def test_a_part_of_a_span_counts_by_its_records(log):
    first = log.spans(1, COUNT + 1, 1 << 30)[0]
    half = (first.start + first.limit) // 2
    (rest, *_) = log.spans(half, first.limit, 1 << 30)
    assert 0 < rest.size_bytes < first.size_bytes


def test_a_loop_keeps_what_is_open_between_calls():
    runner = SyncRunner()

    async def ask() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert runner.run(ask()) is runner.run(ask())
    runner.close()
    runner.close()
