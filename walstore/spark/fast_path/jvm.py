"""All calls of the fast path to the JVM: what it can open, and a scan of exactly the given files.

The session's settings that make Spark skip rows (``spark.sql.files.ignoreMissingFiles``,
``ignoreCorruptFiles``) do not apply to these scans, and page checksums are verified.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from walstore.spark.fast_path.hadoop import FastPathError, HadoopStore

_THRESHOLD: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_PARALLELISM: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_NEVER: Final = "2147483647"
_LISTINGS_PER_SLOT: Final = 4
"""Tasks that list files of a bucket, for each slot of the cluster: each waits for the network."""
_SHOWN: Final = 300
_SETTING: Final = threading.Lock()


def require_jvm(spark: SparkSession) -> None:
    """Raise FastPathError if the session reaches Spark over the network and has no access to its JVM."""
    try:
        found = spark._jvm  # noqa: SLF001 - PySpark has no public way
    except (AttributeError, PySparkException):
        found = None
    if found is None:
        raise FastPathError("a Spark Connect session does not give access to its JVM")


def require_access(spark: SparkSession, store: HadoopStore, *, is_shared: bool) -> None:
    """Raise FastPathError unless the JVMs of driver and executors can open files of the store.

    ``is_shared`` means that all machines of a cluster see the same directories.
    """
    if store.scheme == "file":
        master = str(spark.sparkContext.master)
        if not is_shared and not master.startswith("local"):
            raise FastPathError(
                f"the store is a directory of this machine, which the executors of {master} may not see;"
                ' if all of them do, set fast_path="always"'
            )
        return
    session: Any = spark
    try:
        conf = session._jsc.hadoopConfiguration()  # noqa: SLF001
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(store.scheme, conf)  # noqa: SLF001
    except Py4JError:
        version = session._jvm.org.apache.hadoop.util.VersionInfo.getVersion()  # noqa: SLF001
        raise FastPathError(
            "the JVM has no S3A connector; start the session with"
            f" spark.jars.packages=org.apache.hadoop:hadoop-aws:{version}"
        ) from None


def scan(
    spark: SparkSession,
    schema: StructType,
    store: HadoopStore,
    keys: Sequence[str],
    *,
    size_bytes: int,
    fail_on_data_loss: bool,
) -> DataFrame:
    """Return the rows of Parquet files, all of which exist now and are ``size_bytes`` long together.

    FastPathError if Spark finds otherwise. Without ``fail_on_data_loss`` a file that is missing when a task
    opens it is left out. Checks every file: 0.1 ms each in a directory, a request or two in a bucket.
    """
    reader = spark.read.schema(schema).options(
        **{
            **store.options,
            "recursiveFileLookup": "true",  # no columns from the names of folders
            "ignoreCorruptFiles": "false",
            "ignoreMissingFiles": "false" if fail_on_data_loss else "true",
            "parquet.page.verify-checksum.enabled": "true",
        }
    )
    try:
        with _listing(spark, store):
            found = reader.parquet(*map(store.path, keys))
        session: Any = found
        relation = session._jdf.queryExecution().analyzed().relation()  # noqa: SLF001
        seen_bytes = int(relation.location().sizeInBytes())
    except (Py4JError, PySparkException) as error:
        raise FastPathError(
            f"Spark cannot open the fragments under {store.base}: {_words(error)}"
        ) from error
    if seen_bytes != size_bytes:
        raise FastPathError(
            f"Spark finds {seen_bytes} bytes in the fragments under {store.base}, this process"
            f" {size_bytes}: they do not look at the same store, or wal3 has rewritten the objects"
        )
    return found


@contextmanager
def _listing(spark: SparkSession, store: HadoopStore) -> Iterator[None]:
    """Let Spark list local files in the driver, and a bucket's files in a limited number of tasks.

    By default it starts one task for each of more than 32 files, at 5 ms each: 40 s instead of 1 s for 10 000
    files in a directory.
    """
    wanted = {_THRESHOLD: _NEVER}
    if store.scheme != "file":
        slots = max(1, spark.sparkContext.defaultParallelism)
        wanted = {_PARALLELISM: str(_LISTINGS_PER_SLOT * slots)}
    with _SETTING:
        before = {name: spark.conf.get(name) for name in wanted}
        for name, value in wanted.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, known in before.items():
                if known is not None:
                    spark.conf.set(name, known)


def _words(error: Exception) -> str:
    """Return the first line of the error, without the JVM's stack."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return text.partition("\n")[0][:_SHOWN]
