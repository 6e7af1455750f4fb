"""Following logs in S3: one event loop for many clients, cursors, and a store that is away for a while."""

from __future__ import annotations

import asyncio

import pytest

from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from tests.walstore.spark.streaming.querying import Query, offsets
from tests.walstore.spark.streaming.test_stream_reader import append, cursor

pytestmark = pytest.mark.s3


@pytest.mark.parametrize("layout", ["swap", "chain"])
@pytest.mark.slow
def test_each_record_once_as_they_come(s3_url, layout):  # noqa: F811
    append(s3_url, 10, layout=layout)
    query = Query(s3_url, cursorName="etl", startingOffsets="latest", maxOffsetsPerTrigger=4)
    assert query.drain() == []
    assert cursor(s3_url, "etl") == 11
    append(s3_url, 10, layout=layout)
    query.restart()
    found = offsets(query.trigger())
    query.restart()
    found += offsets(query.drain())
    assert found == list(range(11, 21))
    append(s3_url, 1, layout=layout)
    query.later()
    assert offsets(query.trigger()) == [21]
    assert cursor(s3_url, "etl") == 21


@pytest.mark.slow
def test_many_logs_of_a_bucket(s3_url, s3_server):  # noqa: F811
    bare, _, parameters = s3_url.partition("?")
    for name in ("orders-eu", "orders-us", "clicks"):
        append(f"{bare}/{name}?{parameters}", 5)
    options = {"store.endpoint_url": s3_server.endpoint_url, "store.region": "us-east-1"}
    query = Query(bare, subscribePattern="orders-.*", cursorName="etl", **options)
    rows = query.drain()
    assert {row["topic"] for row in rows} == {"orders-eu", "orders-us"}
    assert len(rows) == 10
    append(f"{bare}/orders-asia?{parameters}", 5)
    query.later(31)
    assert offsets(query.drain(), "orders-asia") == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_asking_from_another_thread_of_the_program(s3_url):  # noqa: F811
    """One at a time: nothing is tied to the thread that opened the log."""
    append(s3_url, 5)
    query = Query(s3_url)

    async def ask() -> None:
        assert len(await asyncio.to_thread(query.trigger)) == 5

    asyncio.run(ask())
    append(s3_url, 5)
    query.later()
    assert len(query.trigger()) == 5
