"""The fast path over S3, by Hadoop's S3A connector: it is no part of Spark, so its jars may be missing.

They are looked for in the directory that WALSTORE_S3A_JARS names, and where Spark puts what a session has
asked for with ``spark.jars.packages``. Nothing is fetched: they take 670 MB.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import local
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from tests.walstore.spark.reading import fill
from uploader import CloudTier, UploadSettings

JARS = "WALSTORE_S3A_JARS"

pytestmark = [
    pytest.mark.s3,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture
def jars() -> str:
    named = os.environ.get(JARS)
    places = [Path(named)] if named else sorted(Path.home().glob(".ivy2*/jars"))
    for place in places:
        if list(place.glob("*hadoop-aws-*.jar")) and list(place.glob("*bundle-*.jar")):
            return str(place)
    pytest.skip(
        f"no jars of Hadoop's S3A connector (hadoop-aws, the AWS SDK's bundle): {JARS} may name their"
        " directory, or start a session once with spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION"
    )


def test_a_log_in_a_bucket(log_directory, s3_url, jars):  # noqa: F811
    tier = CloudTier(s3_url, settings=UploadSettings(fragment_bytes=65_536))
    asyncio.run(fill(log_directory, settings=local.SMALL, tier=tier))
    done = subprocess.run(
        [sys.executable, "-m", "tests.walstore.spark.fast_path.s3a", jars, s3_url],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "native": True,
        "rows": 1000,
        "cut": 38,
        "inputs": ["s3a"],
        "setting": None,
        "mistake": "InvalidSettingsError",
    }
