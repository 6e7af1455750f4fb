"""The Spark session of a sidecar: on this machine, on a cluster, or the one prepared by spark-submit.

Errors of the source reach the driver as text in the middle of Spark's and Python's tracebacks. The text
contains the error's class, which determines the message and the exit code.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from walstore import WalError, errors
from walstore.spark.environment import explain_worker, require, require_packages, require_workers
from walstore.spark.session import local_session, register
from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger("walstore.spark")

APP_NAME: Final = "walstore sidecar"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has already started the JVM."""

SETTINGS: Final = {
    # A column "date" is a day in UTC, wherever the sidecar runs.
    "spark.sql.session.timeZone": "UTC",
    # Stopping the sidecar does not wait for a task that hangs.
    "spark.sql.streaming.stopTimeout": "20s",
    # Without it "once" ends on Spark 4.0 and 4.1 as soon as a batch left over from a crash has landed.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
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
_EXTENSIONS: Final = "spark.sql.extensions"
_PACKAGES: Final = "spark.jars.packages"
_NOT_STARTED: Final = "JAVA_GATEWAY_EXITED"


def open_session(settings: SidecarSettings, *, log_level: str) -> SparkSession:
    """Return a session that reads logs and writes the table's format, with Spark's ``log_level``.

    Raises WalError if Java, a package, a jar, or a package on the workers is missing. Blocks for seconds.
    """
    require_packages()
    config = session_config(settings)
    is_submitted = _SUBMITTED in os.environ
    try:
        if settings.master is None and not is_submitted:
            spark = local_session(app_name=APP_NAME, config=config)
        else:
            spark = _session(settings.master, config, is_submitted=is_submitted)
    except Exception as error:
        if _NOT_STARTED not in str(error):
            raise
        raise WalError(_explain_start(config.get(_PACKAGES))) from None
    try:
        spark.sparkContext.setLogLevel(log_level.upper())
        require_format(spark, settings.table_format)
        if not str(spark.sparkContext.master).startswith("local"):
            require_workers(spark)
    except BaseException:
        spark.stop()
        raise
    return spark


def close_session(spark: SparkSession) -> None:
    """Stop Spark, which may be gone already."""
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001 - nothing depends on it
        logger.info("Spark did not stop in order: %s", error)


def require_format(spark: SparkSession, table_format: TableFormat) -> None:
    """Raise WalError if the session lacks the jar that writes such tables; names its package."""
    if table_format not in _NEEDED:
        return
    name, package = _NEEDED[table_format]
    context: Any = spark.sparkContext
    utilities = context._jvm.org.apache.spark.util.Utils  # noqa: SLF001
    minor = ".".join(spark.version.split(".")[:2])
    if utilities.classIsLoadable(name):
        loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001
        source = loader.loadClass(name).getProtectionDomain().getCodeSource()
        check_jar("" if source is None else source.getLocation().toString(), minor)
        return
    whose = " to spark-submit itself" if _SUBMITTED in os.environ else ""
    raise WalError(
        f"Spark cannot write {table_format} tables: {name} is not among its jars; give --packages "
        f"{package.format(spark=minor)}{whose}, with a VERSION that there is for Spark "
        f"{minor}; if there is none, use an older Spark"
    )


def check_jar(place: str, minor: str) -> None:
    """Raise WalError if a jar's name shows that it was built for another Spark than ``minor``, as ``4.2``.

    With such a jar a first run may land, but the next cannot read the table.
    """
    jar = place.rpartition("/")[2]
    made = re.search(r"(\d+\.\d+)_2\.1\d", jar)
    if made is not None and made[1] != minor:
        raise WalError(
            f"{jar} was made for Spark {made[1]}, and this is Spark {minor}: use matching versions"
        )


def session_config(settings: SidecarSettings) -> dict[str, str]:
    """Return the session's settings: ours, the format's, and the user's, which override the others.

    Extensions of the format and of the user are combined.
    """
    ours = {**SETTINGS, **_OF_FORMAT.get(settings.table_format, {})}
    config = {**ours, **settings.config}
    if _EXTENSIONS in ours and _EXTENSIONS in settings.config:
        both = f"{ours[_EXTENSIONS]},{settings.config[_EXTENSIONS]}".split(",")
        config[_EXTENSIONS] = ",".join(dict.fromkeys(name.strip() for name in both))
    return config


def _explain_start(packages: str | None) -> str:
    said = "Spark's Java process ended at its start; its output is above"
    if packages is None:
        return said
    return f"{said}: perhaps {packages} cannot be found; is there such a version for this Spark?"


def _session(master: str | None, config: Mapping[str, str], *, is_submitted: bool) -> SparkSession:
    if not is_submitted:
        require()
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


_OURS: Final = re.compile(r"^\s*(?:\w+\.)*walstore\.errors\.(\w+): (.+)$", re.MULTILINE)
_CAUSE: Final = re.compile(
    r"^(?:Caused by: |: )?[\w.$]*(?:Exception|Error)(?:: (.*))?$", re.MULTILINE
)
_CONCURRENT: Final = re.compile(
    r"Concurrent update to the log|CONCURRENT_STREAM_LOG_UPDATE|Race while writing batch"
    r"|Multiple streaming queries are concurrently using"
    r"|DELTA_CONCURRENT_TRANSACTION|ConcurrentTransactionException"
    # A file of the checkpoint that two queries created at the same moment.
    r"|Rename destination \S+ already exists"
    # Or that one of them had not created yet, when the other had written a batch.
    r"|STREAMING_CHECKPOINT_MISSING_METADATA_FILE|the metadata file is missing but offset"
)
_OTHER_SPARK: Final = re.compile(
    r"IncompatibleClassChangeError|NoSuchMethodError|NoSuchFieldError|AbstractMethodError|NoClassDefFoundError"
    r"|because it is not an interface"
)
_GONE: Final = (
    "Answer from Java side is empty",
    "error while trying to connect to the Java server",
    "Connection refused",
)
_QUERY: Final = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
"""Names a query, which tells users nothing, before the reason."""
_MOST_CHARS: Final = 300


def to_error(text: str) -> WalError:
    """Return the error in a failed query's text: ours with its class, or else Spark's in one line."""
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = getattr(errors, name, WalError)
        if isinstance(kind, type) and issubclass(kind, WalError):
            # Not by the constructor, whose other arguments are not in the text.
            found = kind.__new__(kind, message.strip())
            assert isinstance(found, WalError)
            return found
    workers = explain_worker(text)
    if workers is not None:
        return WalError(workers)
    if any(words in text for words in _GONE):
        return WalError("Spark's Java process has ended; start again, and see --spark-log")
    if _CONCURRENT.search(text):
        return WalError("another query runs with the same checkpoint; one of them had to end")
    said = _say(text)
    if _OTHER_SPARK.search(text):
        return WalError(f"a jar was made for another version of Spark than this one: {said}")
    return WalError(f"Spark's query failed: {said}")


def _say(text: str) -> str:
    """Return Spark's error in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [found.strip() for found in _CAUSE.findall(text) if found.strip()]
    said = (causes or lines or ["nothing"])[-1] if causes else (lines or ["nothing"])[0]
    return _QUERY.sub("", said)[:_MOST_CHARS]


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise Spark's errors in the block as errors of ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise to_error(str(error)) from None
