"""Delta and Iceberg tables that are there before a sidecar: what fits, and what is said to others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lakes import ROOT, find_lake

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def checks(table_format: str, path: Path) -> dict[str, Any]:
    lake = find_lake(table_format, path)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.walstore.spark.sidecar.lake_checks"),
            *(lake.format, lake.jars, str(path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_that_is_there(table_format: str, tmp_path: Path):
    said = checks(table_format, tmp_path)
    assert said["none"] is None
    assert "it lacks topic string, partition int, timestamp timestamp" in said["narrow"]
    assert "value is string and not binary" in said["narrow"]
    assert "has date, which would stay empty: name all" in said["dated"]
    assert said["dated, told"] is None
    if table_format == "delta":
        assert "is divided by date: give --partition-by date" in said["dated, told more"]
        assert "holds files and is no Delta table (part-0.parquet)" in said["files"]
    else:
        assert said["dated, told more"] is None, "Iceberg divides as the table says"
        assert "knows no Iceberg catalog for ocean.db.x" in said["no catalog"]
        assert "there is no Iceberg table at /nothing: make it first" in said["no path"]
    assert said["places"] == [
        "/wide" if table_format == "delta" else "/warehouse/db/wide",
        "/checkpoints/wide",
    ]
    assert (said["rows"], said["count"], said["again"], said["streams"]) == (300, 300, 300, 2)
    assert "has records of orders up to 300, and with this new" in said["new checkpoint"]
    for word in ("no table", "other table"):
        assert "the checkpoint has landed" in said[word]
