"""The rights of docs/stores.md as a bucket's policy at a real S3 server: the tests of ``test_99_rights``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.s3.rgw import OTHERS, SECRET_KEY
from tests.scenarios import test_99_rights
from tests.scenarios.test_99_rights import ROLES, Rights, statements
from tests.walstore.cli.conftest import cli  # noqa: F401 - fixture

pytestmark = [pytest.mark.s3, pytest.mark.timeout(300)]


class BucketRights:
    """Those of users of the gateway, which applies them always."""

    interval = 4

    def __init__(self, admin: Any, bucket: str) -> None:
        self._admin, self._bucket = admin, bucket

    def allow(self, without: str = "") -> None:
        found = [
            {**one, "Sid": role + one["Sid"], "Principal": {"AWS": [f"arn:aws:iam:::user/{role}"]}}
            for role in ROLES
            for one in statements(role, self._bucket, without)
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": found})
        self._admin.put_bucket_policy(Bucket=self._bucket, Policy=policy)

    def credentials(self, user: str) -> tuple[str, str]:
        return OTHERS[user], SECRET_KEY

    @contextmanager
    def applied(self) -> Iterator[None]:
        yield


@pytest.fixture
def rights(s3_admin: Any, s3_bucket: str) -> Rights:
    return BucketRights(s3_admin, s3_bucket)


globals().update(
    {
        name: each
        for name, each in vars(test_99_rights).items()
        if name[:5] == "test_" or name in ("url", "run_as")
    }
)
