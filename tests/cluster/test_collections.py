"""Collections on a cluster: tasks run on both workers, fetch row groups and stage rows themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cluster.cluster import Cluster
from tests.s3.rgw import ACCESS_KEY, SECRET_KEY
from uploader import Collection
from uploader.versioned import batch_file

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.timeout(600),
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = 3000


async def fill(url: str, copy: str) -> None:
    """Make a collection of two batches over the same keys, and an empty one."""
    for one in (url, copy):
        async with Collection.open(
            one, create=True, schema=SCHEMA, key=("id",), kind="upsert"
        ) as made:
            if one == url:
                names = ["old"] * ROWS
                rows = pa.table({"id": [*range(ROWS)], "name": names})
                await made.writer().append(rows, lower=0, upper=5)
                some = pa.table({"id": [*range(0, ROWS, 10)], "name": ["new"] * (ROWS // 10)})
                await made.writer().append(some, lower=5, upper=9)


def test_a_collection_in_a_bucket_is_read_written_and_followed(
    spark_cluster: Cluster, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_file, "ROW_GROUP_ROWS", 200)
    url, copy = s3_url.replace("/orders?", "/people?"), s3_url.replace("/orders?", "/copy?")
    asyncio.run(fill(url, copy))
    found = spark_cluster.run("collections", url, copy, str(tmp_path))

    told = found["told"]
    assert len({executor for executor, _ in told}) == 2, "both had tasks"
    assert len(told) == 6
    assert sorted(at for _, part in told for at in part) == [*range(ROWS)]
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert secret not in found["plan"]

    expected = [[at, "old" if at % 10 else "new"] for at in range(ROWS)]
    assert found["copied"] == expected, "written twice, there once"
    assert found["followed"] == [[*row, "upsert", 0] for row in expected]
