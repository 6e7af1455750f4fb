"""All calls of the fast path to the JVM, with stores in Hadoop's names and rows as ``format("walstore")``.

Credentials are not passed: the JVM finds its own, by Hadoop's default chain.

The session's settings that make Spark skip rows (``spark.sql.files.ignoreMissingFiles``,
``ignoreCorruptFiles``) do not apply to these scans, and page checksums are verified.

Rows get the names, types and nulls of ``format("walstore")``. Spark reads unsigned 64-bit numbers as 20-digit
decimals, unless the schema declares them as longs. That is fastest, but fails on dictionary-encoded numbers.
Our files do not dictionary-encode offsets and record times; wal3's files are read as decimals.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from walstore.spark.environment import FastPathError
from walstore.spark.fast_path.planner import FragmentKind, Scan
from walstore.spark.rows import HEADERS, PRODUCER_TIME, spark_schema

_THRESHOLD: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_PARALLELISM: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_NEVER: Final = "2147483647"
_LISTINGS_PER_SLOT: Final = 4
"""Tasks that list files of a bucket, for each slot of the cluster: each waits for the network."""
_SHOWN: Final = 300
_NUL: Final = "\0"
"""Is in no path."""
_SETTING: Final = threading.Lock()
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
"""Spark treats these in a path as a pattern unless a backslash precedes them."""
_DEFAULT_REGION: Final = "us-east-1"
"""Most servers other than Amazon's ignore it, but requests must be signed for some region."""


@dataclass(frozen=True, slots=True)
class HadoopStore:
    """A log's store as Hadoop names it."""

    scheme: str
    """``file`` or ``s3a``."""
    base: str
    """Prefix of an object's key, with a slash at its end."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Hadoop settings for reading this bucket only."""

    def path(self, key: str) -> str:
        """Return the path of an object, with the characters of patterns escaped."""
        return _GLOB.sub(r"\\\1", self.base + key)


def hadoop_store(url: str, environment: Mapping[str, str]) -> HadoopStore:
    """Return a store in Hadoop's names, from its URL.

    ``environment`` may name the S3 server and the region if the URL does not, as for the Python client
    (``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_DEFAULT_REGION``). FastPathError for
    a store that is neither a directory nor S3.
    """
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/")
    prefix = f"{path}/" if path else ""
    if parts.scheme == "file":
        return HadoopStore("file", f"file:/{prefix}")
    if parts.scheme != "s3":
        raise FastPathError(f"the JVM reads file:// and s3:// stores, not {parts.scheme}://")
    given = dict(parse_qsl(parts.query))
    named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    endpoint = given.get("endpoint_url") or _first(environment, named)
    region = given.get("region") or _first(environment, ("AWS_REGION", "AWS_DEFAULT_REGION"))
    options: dict[str, str] = {}
    if endpoint:
        options["endpoint"] = endpoint
        options["path.style.access"] = "true"
        options["connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
        region = region or _DEFAULT_REGION
    if region:
        options["endpoint.region"] = region
    bucket = parts.netloc
    return HadoopStore(
        "s3a",
        f"s3a://{bucket}/{prefix}",
        {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in options.items()},
    )


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


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
            found = _open_parquet(spark, reader, [store.path(key) for key in keys])
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


def _open_parquet(spark: Any, reader: Any, paths: Sequence[str]) -> DataFrame:
    """As ``reader.parquet(*paths)``, which crosses to the JVM once for each path: 1 s for 10 000."""
    array = spark._jvm.java.util.regex.Pattern.compile(_NUL).split(_NUL.join(paths))  # noqa: SLF001
    found: DataFrame = reader._df(reader._jreader.parquet(array))  # noqa: SLF001
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
        settings = spark._jsparkSession.sessionState().conf()  # noqa: SLF001
        before = {name: spark.conf.get(name) for name in wanted if settings.contains(name)}
        for name, value in wanted.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in wanted:
                known = before.get(name)
                if known is None:  # it was not set; a default stays one
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, known)


def _words(error: Exception) -> str:
    """Return the first line of the error, without the JVM's stack."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return text.partition("\n")[0][:_SHOWN]


_FIELDS: Final[dict[FragmentKind, dict[str, DataType]]] = {
    FragmentKind.OURS: {
        "offset": LongType(),
        "body": BinaryType(),
        "record_timestamp_us": LongType(),
        "stream": StringType(),
        "key": BinaryType(),
        "headers": MapType(StringType(), BinaryType()),
    },
    FragmentKind.WAL3: {
        "offset": DecimalType(20, 0),
        "timestamp_us": DecimalType(20, 0),
        "body": BinaryType(),
    },
}


def stored_schema(kind: FragmentKind) -> StructType:
    """Return the columns to read, with their types for Spark."""
    return StructType([StructField(name, found) for name, found in _FIELDS[kind].items()])


def project(stored: DataFrame, scan: Scan, *, include_headers: bool) -> DataFrame:
    """Return the rows of a scan; ``stored`` has the columns of :func:`stored_schema`."""
    schema = spark_schema(include_headers=include_headers)
    rows = stored.select([_column(field, scan).alias(field.name) for field in schema.fields])
    if scan.cut is None:
        return rows
    start, limit = scan.cut
    return rows.where((F.col("offset") >= F.lit(start)) & (F.col("offset") < F.lit(limit)))


def rename(rows: DataFrame, topic: str, partition: int) -> DataFrame:
    """Return rows of ``format("walstore")`` as those of another topic and partition."""
    return rows.withColumns(
        {"topic": constant(topic, StringType()), "partition": constant(partition).cast("int")}
    )


def constant(value: object, kind: DataType | None = None) -> Column:
    """Return a constant column that is nullable in the schema; Spark folds it."""
    return F.nullif(F.lit(value), F.lit(None).cast(kind or "int"))


def _column(field: StructField, scan: Scan) -> Column:
    is_ours = scan.kind is FragmentKind.OURS
    match field.name:
        case "value":
            return F.col("body")
        case "topic":
            return constant(scan.topic, StringType())
        case "partition":
            return constant(scan.partition)
        case "timestampType":
            return constant(PRODUCER_TIME)
        case "offset":
            return F.col("offset").cast("long")
        case "timestamp":
            time_us = "record_timestamp_us" if is_ours else "timestamp_us"
            return F.timestamp_micros(F.col(time_us).cast("long"))
    if not is_ours:
        return F.lit(None).cast(field.dataType)
    if field.name == HEADERS:
        return F.map_entries(HEADERS).cast(field.dataType)
    return F.col(field.name)
