"""The Spark session of a sidecar: on this machine, on a cluster, or the one that spark-submit prepared."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from walstore.errors import WalError
from walstore.spark import environment
from walstore.spark.session import local_session, register
from walstore.spark.sidecar.settings import SidecarSettings, TableFormat
from walstore.spark.workers import require_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME: Final = "walstore sidecar"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has made the JVM already."""

SETTINGS: Final = {
    # A column "date" is a day in UTC, wherever the sidecar runs.
    "spark.sql.session.timeZone": "UTC",
    # Whoever stops the sidecar does not wait for a task that hangs.
    "spark.sql.streaming.stopTimeout": "20s",
    # The form that checkpoint.py reads.
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}
_OF_FORMAT: Final[Mapping[TableFormat, Mapping[str, str]]] = {
    TableFormat.DELTA: {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
}
_NEEDED: Final = {
    TableFormat.DELTA: (
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "io.delta:delta-spark_{spark}_2.13:VERSION",
    ),
    TableFormat.ICEBERG: (
        "org.apache.iceberg.spark.SparkCatalog",
        "org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:VERSION",
    ),
}


def open_session(settings: SidecarSettings, *, log_level: str) -> SparkSession:
    """Return a session that reads logs and writes the table's format, with this ``log_level`` of Spark's.

    Raises WalError if Java, a package, a jar, or something on the workers is missing. Blocks for seconds.
    """
    environment.require_packages()
    config = {**SETTINGS, **_OF_FORMAT.get(settings.table_format, {}), **settings.config}
    is_submitted = _SUBMITTED in os.environ
    if settings.master is None and not is_submitted:
        spark = local_session(app_name=APP_NAME, config=config)
    else:
        spark = _session(settings.master, config, is_submitted=is_submitted)
    try:
        spark.sparkContext.setLogLevel(log_level.upper())
        require_format(spark, settings.table_format)
        if not str(spark.sparkContext.master).startswith("local"):
            require_workers(spark)
    except BaseException:
        spark.stop()
        raise
    return spark


def require_format(spark: SparkSession, table_format: TableFormat) -> None:
    """Raise WalError if the session lacks the jar that writes such tables; names its package."""
    if table_format not in _NEEDED:
        return
    name, package = _NEEDED[table_format]
    context: Any = spark.sparkContext
    utilities = context._jvm.org.apache.spark.util.Utils  # noqa: SLF001
    if utilities.classIsLoadable(name):
        return
    minor = ".".join(spark.version.split(".")[:2])
    raise WalError(
        f"Spark cannot write {table_format} tables: {name} is not among its jars; add --config "
        f"spark.jars.packages={package.format(spark=minor)} with a version that fits Spark {minor}"
    )


def _session(master: str | None, config: Mapping[str, str], *, is_submitted: bool) -> SparkSession:
    if not is_submitted:
        environment.require()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(APP_NAME)
    if master is not None:
        builder = builder.master(master)
    shown = {"spark.ui.showConsoleProgress": "false"} if not is_submitted else {}
    for name, value in {**shown, **config}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
