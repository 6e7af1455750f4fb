"""Delta and Iceberg in tests: their jars, where somebody has put them, and what a table holds.

Nothing is fetched. The jars are looked for in the directory that WALSTORE_DELTA_JARS or WALSTORE_ICEBERG_JARS
names, and where Spark puts what a session has asked for with ``spark.jars.packages``.

Run as ``python -m tests.lakes FORMAT JARS PATH`` it prints the offsets in a table, in a process of its own:
jars can be given to a JVM only as it starts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat

MINOR = ".".join(pyspark.__version__.split(".")[:2])
ROOT = Path(__file__).parents[1]

_JAR = {"delta": "*delta-spark_*.jar", "iceberg": "*iceberg-spark-runtime-*.jar"}
_WITH = {"delta": ("*io.delta*", "*unitycatalog*", "*[Rr]oaring*", "*jts-core*"), "iceberg": ()}
_PACKAGE = {
    "delta": "io.delta:delta-spark_{minor}_2.13:VERSION",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:VERSION",
}


@dataclass(frozen=True)
class Lake:
    """A format with its jars, and a place for one table ``orders`` of it."""

    format: str
    jars: str
    path: Path

    @property
    def config(self) -> dict[str, str]:
        """Settings of a session, and of a sidecar, that can write such tables; small."""
        found = {"spark.jars": self.jars, "spark.sql.shuffle.partitions": "2"}
        if self.format == "delta":
            return {**found, "spark.databricks.delta.snapshotPartitions": "2"}
        return {
            **found,
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(self.path / "warehouse"),
        }

    @property
    def table(self) -> str:
        """Path or name of the table."""
        return str(self.path / "orders") if self.format == "delta" else "lake.db.orders"

    def session(self) -> SparkSession:
        """Return a session as a sidecar would have it; only in a process without one."""
        from walstore.spark import local_session
        from walstore.spark.sidecar.session import session_config

        settings = SidecarSettings(
            location="-",
            table=self.table,
            checkpoint="-",
            table_format=TableFormat(self.format),
            config=self.config,
        )
        return local_session(threads=2, config=session_config(settings))

    def commits(self) -> int:
        """How many commits the table has, apart from an empty one that makes it."""
        if self.format == "delta":
            log = self.path / "orders" / "_delta_log"
            return len([path for path in log.glob("*.json") if path.stem.isdigit()])
        log = self.path / "warehouse" / "db" / "orders" / "metadata"
        return max(0, len(list(log.glob("v*.metadata.json"))) - 1)

    def offsets(self) -> list[int]:
        """Return the offsets of its records, in order; fails if one says something else."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.lakes", self.format, self.jars, str(self.path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert all(said == f"record {offset}" for offset, said in found)
        return [offset for offset, _ in found]


def open_lake(table_format: str, path: Path) -> Lake:
    """Return the format with its jars; raises LookupError, with advice, where they are not at hand."""
    variable = f"WALSTORE_{table_format.upper()}_JARS"
    named = os.environ.get(variable)
    places = [Path(named)] if named else sorted(Path.home().glob(".ivy2*/jars"))
    package = _PACKAGE[table_format].format(minor=MINOR)
    others = []
    for place in places:
        for jar in sorted(place.glob(_JAR[table_format]), reverse=True):
            made = re.search(r"(?:delta-spark_|runtime-)(\d\.\d)_2\.13", jar.name)
            minor = made[1] if made else "?"
            if minor == MINOR:
                beside = {found for name in _WITH[table_format] for found in place.glob(name)}
                jars = sorted(
                    {jar} | {found for found in beside if "delta-spark_" not in found.name}
                )
                return Lake(table_format, ",".join(map(str, jars)), path)
            others.append(jar.name)
    raise LookupError(
        f"jars of {table_format} for Spark {MINOR}, if there are such (here: {', '.join(others) or 'none'}): "
        f"{variable} may name their directory, or start a session once with spark.jars.packages={package}"
    )


def find_lake(table_format: str, path: Path) -> Lake:
    """Return the format with its jars; skips the test where they are not at hand."""
    import pytest

    try:
        return open_lake(table_format, path)
    except LookupError as error:
        pytest.skip(f"needs {error}")


def main(table_format: str, jars: str, path: str) -> None:
    """Print offset and value of each record in the table, in order."""
    lake = Lake(table_format, jars, Path(path))
    spark = lake.session()
    is_delta = table_format == "delta"
    rows = spark.read.format("delta").load(lake.table) if is_delta else spark.table(lake.table)
    found = rows.selectExpr("offset", "cast(value as string)").orderBy("offset").collect()
    sys.stdout.write(json.dumps([list(row) for row in found]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
