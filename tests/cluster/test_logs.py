"""Logs on a cluster: tasks run on both workers, fetch and stage themselves, and run this interpreter."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests import local
from tests.cluster.cluster import Cluster
from tests.s3.rgw import ACCESS_KEY, SECRET_KEY
from tests.walstore.spark.reading import fill
from uploader import CloudTier, UploadSettings
from walstore import Record

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.timeout(600),
]


@pytest.fixture
def records(log_directory: Path, s3_url: str) -> list[Record]:
    """The records of a log in a bucket, where it lies in many fragments."""
    tier = CloudTier(s3_url, settings=UploadSettings(fragment_bytes=16_384))
    return asyncio.run(fill(log_directory, settings=local.SMALL, tier=tier))


def test_a_log_in_a_bucket_is_read_written_and_streamed(
    spark_cluster: Cluster, s3_url, records, tmp_path
):
    copy = s3_url.replace("/orders?", "/copy?")
    found = spark_cluster.run("work", s3_url, copy, str(tmp_path))
    offsets, values = [one.offset for one in records], sorted(one.value.hex() for one in records)

    told = found["read"]["told"]
    assert len({executor for executor, _, _ in told}) == 2, "both had tasks"
    assert {python for _, python, _ in told} == {sys.executable}
    assert sorted(at for _, _, part in told for at in part) == offsets
    assert found["read"]["values"] == values
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert secret not in found["read"]["plan"]

    assert found["written"] == {"values": values, "partitions": [0, 1]}, "written twice, there once"
    assert found["streamed"] == {"batches": 3, "offsets": offsets, "values": values}
