"""Spark finds the source by itself where walstore is installed, as ``pip install`` lays it out."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.walstore.spark.reading import fill

ROOT = Path(__file__).parents[3]
PACKAGE = "walstore/spark/pyspark_walstore"

PROGRAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
frame = spark.read.format("walstore").load(sys.argv[1])
print("rows", frame.count())
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
frame = spark.read.format("walstore").option("pushdown", "on").load(sys.argv[1])
print("few", frame.filter("offset > 90").count())
"""


def test_the_package_is_installed_at_the_top_level():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = config["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = (PACKAGE, f"{PACKAGE}_collection")
    assert wheel["force-include"] == {path: Path(path).name for path in packages}
    for path in packages:
        assert f"/{path}" in wheel["exclude"]
        assert (ROOT / path / "__init__.py").is_file()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_plain_session_reads_a_log(log_directory, tmp_path):
    records = asyncio.run(fill(log_directory, count=100))
    shutil.copytree(ROOT / PACKAGE, tmp_path / "site" / "pyspark_walstore")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)]),
    }
    environment.pop("PYSPARK_DRIVER_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log_directory)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"rows {len(records)}" in done.stdout, done.stderr
    assert "few 10" in done.stdout, done.stderr


REGISTERED = """
import sys
from pyspark.sql import SparkSession
from walstore.spark import register
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
register(spark)
print("rows", spark.read.format("walstore").load(sys.argv[1]).count())
print(spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first())
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_registering_is_all_it_takes_in_an_environment_that_is_not_activated(
    log_directory, tmp_path
):
    """The ``python3`` on the path is another one, which has nothing of what is needed."""
    asyncio.run(fill(log_directory, count=100))
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho another python >&2\nexit 1\n")
    other.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(other.parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED, str(log_directory)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"rows 100\n{sys.executable}\n" in done.stdout, done.stderr
