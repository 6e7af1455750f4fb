"""Writing to S3: jobs, micro-batches, replays; credentials from the environment alone."""

from __future__ import annotations

import pickle

import pytest

from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from tests.walstore.spark.sink.writing import schema_of, source, values, write_epoch, write_job

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(240)]

ROWS = "key string, value string"


@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_a_partitioned_log_in_a_bucket(s3_url, s3_server, layout):  # noqa: F811
    bare = s3_url.partition("?")[0]
    options = {
        "store.endpoint_url": s3_server.endpoint_url,
        "store.region": "us-east-1",
        "partitions": 2,
        "layout": layout,
        "fragmentBytes": 1024,
    }
    rows = [(f"k{at % 5}", f"{at:05d}" + "x" * 100) for at in range(60)]
    write_job(bare, ROWS, rows[:20], queryId="q", **options)
    write_job(bare, ROWS, rows[:20], queryId="q", **options)
    for _ in range(2):
        write_epoch(bare, ROWS, 0, rows[20:30], rows[30:40], **options)
    write_epoch(bare, ROWS, 1, rows[:5], commits=False, **options)
    write_epoch(bare, ROWS, 1, rows[40:], **options)
    found = sorted(values(f"{s3_url}", 0) + values(f"{s3_url}", 1))
    assert found == [value.encode() for _, value in rows]
    writer = source(bare, **options).writer(schema_of(ROWS), overwrite=False)
    assert b"secret-of-the-tests" not in pickle.dumps(writer)
