"""The sidecar on a cluster, as spark-submit runs it: from a log in a bucket into a table, with a cursor."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pyspark
import pytest

from tests import local
from tests.cluster.cluster import Cluster
from tests.sidecars import landed_rows, sidecar
from tests.walstore.spark.reading import fill
from uploader import CloudLog, CloudTier, UploadSettings
from walstore.spark import sidecar as package

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.timeout(600),
]

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PROGRAM = Path(package.__path__[0]) / "__main__.py"


def test_submitted_to_a_cluster(spark_cluster: Cluster, log_directory, s3_url, tmp_path):
    tier = CloudTier(s3_url, settings=UploadSettings(fragment_bytes=16_384))
    records = asyncio.run(fill(log_directory, settings=local.SMALL, tier=tier))
    spark_cluster.free()
    command = [str(SUBMIT)]
    for name, value in spark_cluster.settings().items():
        command += ["--conf", f"{name}={value}"]
    environment = {**spark_cluster.environment, "PYSPARK_PYTHON": sys.executable}
    with sidecar(
        *(s3_url, "--to", tmp_path / "table", "--once", "--max-records-per-trigger", 400),
        *("--cursor", "lander"),
        command=[*command, str(PROGRAM)],
        environment=environment,
    ) as running:
        report = running.read_until(len(records) + 1)
        assert report["cursors"] == report["positions"]
        assert running.end() == 0, running.err
    rows = landed_rows(tmp_path / "table", "offset", "value")
    assert rows == [(one.offset, one.value) for one in records]

    async def position() -> int:
        async with CloudLog.open(s3_url) as log:
            found = await log.cursors.load("lander")
            assert found is not None
            return found.position

    assert asyncio.run(position()) == len(records) + 1
