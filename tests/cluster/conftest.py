"""One cluster for all tests of this directory; skipped where Spark cannot run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.s3.rgw import ACCESS_KEY, SECRET_KEY
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from walstore.spark import problem


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = problem()
    if missing:
        pytest.skip(missing)
    # Drivers and executors have their credentials in their own environment, as on a real cluster.
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    started = Cluster(tmp_path_factory.mktemp("cluster"), environment=credentials)
    yield started
    started.stop()
