"""Reading a log from S3: options of the store, and credentials from the environment alone."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter

import pytest

from tests import local
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from tests.walstore.spark.many import write, write_partitioned
from tests.walstore.spark.reading import fill, planned, read_records, read_rows
from uploader import CloudTier, UploadSettings
from walstore.errors import InvalidSettingsError, LogNotFoundError

pytestmark = pytest.mark.s3


@pytest.mark.slow
def test_a_log_in_a_bucket(log_directory, s3_url, s3_server):  # noqa: F811
    tier = CloudTier(s3_url, settings=UploadSettings(fragment_bytes=65_536))
    records = asyncio.run(fill(log_directory, settings=local.SMALL, tier=tier))
    bare = s3_url.partition("?")[0]
    options = {"store.endpoint_url": s3_server.endpoint_url, "store.region": "us-east-1"}
    assert read_records(bare, minPartitions=3, **options) == records
    assert read_records(s3_url) == records
    partitions = planned(bare, **options)
    assert {partition.topic for partition in partitions} == {"orders"}
    assert b"secret-of-the-tests" not in pickle.dumps(partitions)


@pytest.mark.slow
def test_several_logs_in_a_bucket(s3_url, s3_server):  # noqa: F811
    bare, _, query = s3_url.partition("?")
    for name in ("bills", "eu/clicks"):
        write(f"{bare}/{name}?{query}", [b"x"] * 3)
    write_partitioned(f"{bare}/orders?{query}", 2, {1: [b"o"] * 4})
    options = {"store.endpoint_url": s3_server.endpoint_url, "store.region": "us-east-1"}

    def counts(place: str, **more: str) -> dict[tuple[str, int], int]:
        rows = read_rows(place, **options, **more)
        return dict(Counter((row["topic"], row["partition"]) for row in rows))

    everything = {("bills", 0): 3, ("eu/clicks", 0): 3, ("orders", 1): 4}
    assert counts(bare, subscribePattern=".*") == everything
    assert counts(bare, subscribe="orders,eu/clicks") == {("eu/clicks", 0): 3, ("orders", 1): 4}
    assert counts(f"{bare}/orders", stream="none") == {}
    assert counts(f"{bare}/orders") == {("orders", 1): 4}
    with pytest.raises(LogNotFoundError) as caught:
        planned(bare, **options)
    assert '"bills", "eu/clicks", "orders"' in "".join(caught.value.__notes__)


@pytest.mark.slow
def test_mistakes_are_named(s3_url, s3_server):  # noqa: F811
    with pytest.raises(LogNotFoundError):
        planned(s3_url)
    bare = s3_url.partition("?")[0]
    with pytest.raises(InvalidSettingsError, match="access_key"):
        planned(bare, **{"store.access_key": "hunter2"})
