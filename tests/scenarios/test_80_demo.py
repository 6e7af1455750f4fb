"""The demo as a user runs it: the whole path, a kill in the middle, and a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from walstore import spark
from walstore.care.verify import verify_directory

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(300)]


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "walstore.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_spark(tmp_path: Path) -> None:
    done = _demo("--seconds", "6", "--no-spark", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "demo: ok"
    found = {line.split("  ")[0]: line.split() for line in lines[:-1]}
    assert found["lost"][1] == "0"
    assert found["duplicated"][1] == "0"
    assert verify_directory(tmp_path / "log").is_ok
    assert list((tmp_path / "store" / "log").rglob("*.parquet"))


@pytest.mark.spark
@pytest.mark.skipif(spark.problem() is not None, reason=str(spark.problem()))
def test_with_spark_as_json() -> None:
    done = _demo("--seconds", "6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ok"], found["spark_ok"], found["problems"]) == (True, True, [])
    assert (found["lost"], found["duplicated"], found["kills"]) == (0, 0, 1)
    assert found["records"] >= found["acknowledged"] > 1000
    # As many as the bytes fill, on a machine of any speed; each life may end before its last one is reported.
    assert found["segments"] >= found["megabytes"] * 1e6 // (4 << 20) - 2
    assert found["fragments"] > 1
    assert set(found["streams"]) == {"cpu", "memory", "disk", "network", "processes", "text"}
    assert "demo: ok" in done.stderr
    assert not Path(found["directory"]).exists()


@pytest.mark.s3
def test_in_a_bucket(s3_url: str, s3_admin, s3_bucket: str) -> None:  # noqa: F811 - fixtures
    done = _demo("--seconds", "4", "--no-spark", "--store", s3_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "demo: ok"
    keys = [item["Key"] for item in s3_admin.list_objects_v2(Bucket=s3_bucket)["Contents"]]
    assert all(key.startswith("logs/orders/demo-") for key in keys)
    assert any(key.endswith("manifest/MANIFEST") for key in keys)
    assert "the objects are kept under s3://" in done.stderr


def test_a_log_that_was_tampered_with_fails_the_demo(tmp_path: Path) -> None:
    """The verdict is not a formality: a child that claims more than it wrote is found out."""
    program = """
import sys
from walstore.cli.demo.checks import Story
take = Story.take
def lie(self, message):
    if message[0] == "ack":
        message = [*message[:2], message[2] + 1_000_000]
    take(self, message)
Story.take = lie
from walstore.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "demo", "--seconds", "2", "--no-spark"),
            *("--directory", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "demo: failed"
    assert "records acknowledged" in done.stderr
