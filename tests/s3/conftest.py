"""The scenarios of the cloud tier over a real S3 server instead of memory. Only for ``make test-s3``."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.s3.rgw import ENDPOINT
from tests.scenarios import test_40_upload, test_51_cloud_contention
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
)
from uploader.stores import S3Store

if ENDPOINT not in os.environ:
    collect_ignore_glob = ["test_*.py"]


class Shared(S3Store):
    """Stays open when a log closes it, as a store in memory does."""

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
async def _stores_of_the_scenarios(monkeypatch, s3_bucket):  # noqa: F811 - fixture
    """Give each test a bucket, and each store it makes a prefix of its own."""
    made: list[Shared] = []
    numbers = itertools.count()

    def make() -> Shared:
        store = Shared(
            s3_bucket,
            prefix=f"log-{next(numbers)}",
            endpoint_url=os.environ[ENDPOINT],
            region="us-east-1",
        )
        made.append(store)
        return store

    for module in (test_51_cloud_contention, test_40_upload):
        monkeypatch.setattr(module, "MemoryStore", make)
    yield
    for store in made:
        await S3Store.aclose(store)
