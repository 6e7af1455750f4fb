"""A Spark session on this machine that can read logs, and what makes it so of any other."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from walstore.spark.environment import (
    choose_interpreter,
    require,
    require_interpreter,
    require_packages,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local_session(
    *,
    app_name: str = "walstore",
    threads: int | None = None,
    driver_memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with ``format("walstore")``, or the one that already runs.

    ``threads`` is how many tasks run at a time (default: one per core). ``driver_memory`` is the JVM's
    heap. ``config`` adds to and overrides the settings: no web pages, times in UTC, no progress line,
    nothing reachable from other machines. The workers run this interpreter; for this the environment
    of this process is changed (``PYSPARK_PYTHON``, ``PYSPARK_DRIVER_PYTHON``, ``SPARK_LOCAL_IP``, and
    ``PYTHONPATH`` where walstore is not installed).

    Raises WalError if Java or a package is missing. Blocks for some seconds: do not call it on an event loop.
    """
    require()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _share_checkout()
    builder = SparkSession.builder.appName(app_name).master(f"local[{threads or '*'}]")
    settings = {
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Without it Spark 4.0 and 4.1 end such a trigger after one batch, even one left over from a crash.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
        **(config or {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("walstore")`` and ``format("walstore.collection")`` known to a session.

    If Spark runs on this machine alone (master ``local[*]``), its Python workers run the interpreter of this
    process from now on, unless PYSPARK_PYTHON or ``spark.pyspark.python`` names another. So a program in a
    virtual environment needs no other setting. Raises WalError if the session's Python workers run an
    interpreter that lacks walstore or a package it needs. Registering twice is allowed.
    """
    require_packages()
    choose_interpreter(spark)
    require_interpreter(spark)
    from pyspark.errors import AnalysisException

    from walstore.spark.source import WalstoreSource
    from walstore.spark.versioned.source import CollectionSource

    for source in (WalstoreSource, CollectionSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # Spark 4.0 refuses a source that it discovered by itself, which is the same class.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def _share_checkout() -> None:
    """Let workers import walstore if it is run from its sources without being installed."""
    root = str(Path(__file__).parents[2])
    if root in {*site.getsitepackages(), site.getusersitepackages()}:
        return
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
