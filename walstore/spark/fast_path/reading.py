"""``walstore.spark.read``: the rows of ``format("walstore")``, by the JVM's own reader where possible."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Literal, get_args

from walstore import InvalidSettingsError
from walstore.spark.environment import FastPathError, require_packages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from walstore.spark.fast_path.planner import FileRange, Scan
    from walstore.spark.options import ReadOptions

logger = logging.getLogger("walstore.spark")

FastPath = Literal["auto", "always", "never"]


def read(
    spark: SparkSession,
    location: str | os.PathLike[str],
    options: Mapping[str, object] | None = None,
    *,
    fast_path: FastPath = "auto",
    **more: object,
) -> DataFrame:
    """Return the records of logs, with the columns and options of ``format("walstore")``.

    Spark's own Parquet reader reads fragments in a store that it can open itself, and skips columns that a
    query does not need: in a directory if Spark runs on this machine alone, in S3 if the JVM has Hadoop's
    S3A connector. Records of a local log that are in no fragment yet are read from its files.

    This call fixes what is read: later executions of the frame see the same records. A fragment that garbage
    collection deletes before it is read fails the query with Spark's ``FILE_NOT_EXIST``, unless
    ``failOnDataLoss`` is false; a cursor prevents the deletion.

    Args:
        spark: The session.
        location: As for ``load``: the URL of a store or a log's directory.
        options: Options of :class:`walstore.spark.source.WalstoreSource`; in any case.
        fast_path: ``auto`` uses ``format("walstore")`` if the JVM cannot read, and logs why;
            ``always`` raises FastPathError instead, and assumes that all machines of a cluster
            see a ``file:`` store; ``never`` is ``format("walstore")`` itself.
        more: More options.

    Raises InvalidSettingsError for invalid options, LogNotFoundError, OffsetTrimmedError and
    OffsetNotWrittenError for what does not exist, CorruptionError for a fragment that is missing or not the
    one that the manifest names, and the store's errors. With ``never`` Spark raises them, later.
    """
    require_packages()
    check_fast_path(fast_path)
    given = _texts({**(options or {}), **more})
    path = os.fspath(location)
    return by_jvm(
        fast_path,
        path,
        lambda is_shared: _read(spark, path, given, is_shared=is_shared),
        lambda: spark.read.format("walstore").options(**given).load(path),
    )


def check_fast_path(fast_path: FastPath) -> None:
    """Raise InvalidSettingsError for another word."""
    if fast_path not in get_args(FastPath):
        raise InvalidSettingsError(f"fast_path must be auto, always or never, not {fast_path!r}")


def by_jvm(
    fast_path: FastPath,
    what: str,
    jvm: Callable[[bool], DataFrame],
    python: Callable[[], DataFrame],
) -> DataFrame:
    """Return what ``jvm`` reads or, if the JVM cannot, what ``python`` does, which is logged.

    ``jvm`` is told whether all machines of a cluster see the same directories.
    """
    if fast_path == "never":
        return python()
    try:
        return jvm(fast_path == "always")
    except FastPathError as error:
        if fast_path == "always":
            raise
        logger.info("%s is read by Python: %s", what, error)
        return python()


def _read(
    spark: SparkSession, path: str, given: Mapping[str, str], *, is_shared: bool
) -> DataFrame:
    from walstore.spark.fast_path import jvm
    from walstore.spark.fast_path.planner import divide, plan
    from walstore.spark.options import parse_options
    from walstore.spark.rows import spark_schema

    options = parse_options({**given, "path": path})
    jvm.require_jvm(spark)
    if options.location.is_store:  # before the log is opened
        store = jvm.hadoop_store(options.location.text, os.environ)
        jvm.require_access(spark, store, is_shared=is_shared)
    planned = plan(options)
    for url in {fragments.url for fragments in planned.fragments}:
        jvm.require_access(spark, jvm.hadoop_store(url, os.environ), is_shared=is_shared)
    slots = max(1, spark.sparkContext.defaultParallelism)
    scans = divide(planned.scans(options.stream), -(-options.min_partitions // slots))
    try:
        frames = [_scan(spark, scan, options) for scan in scans]
    except FastPathError:
        planned.check()  # says what is wrong with a fragment, if that is it
        raise
    frames += [_files(spark, found, options) for found in planned.files]
    if frames:
        return _union(frames)
    return spark.createDataFrame([], spark_schema(include_headers=options.include_headers))


def _scan(spark: SparkSession, scan: Scan, options: ReadOptions) -> DataFrame:
    from walstore.spark.fast_path import jvm

    stored = jvm.scan(
        spark,
        jvm.stored_schema(scan.kind),
        jvm.hadoop_store(scan.url, os.environ),
        [part.entry.path for part in scan.parts],
        size_bytes=scan.size_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    rows = jvm.project(stored, scan, include_headers=options.include_headers)
    return rows if options.stream is None else rows.where(rows.stream == options.stream)


def _files(spark: SparkSession, found: FileRange, options: ReadOptions) -> DataFrame:
    """Return records that are in no fragment yet; the source also reads those shipped meanwhile."""
    from walstore.spark.fast_path import jvm

    reader = spark.read.format("walstore").options(
        startingOffsets=str(found.start),
        endingOffsets=str(found.limit),
        includeHeaders=options.include_headers,
        failOnDataLoss=options.fail_on_data_loss,
        tier="auto" if options.use_tier else "off",
    )
    if options.stream is not None:
        reader = reader.option("stream", options.stream)
    return jvm.rename(reader.load(found.directory), found.topic, found.partition)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of frames, as a balanced tree."""
    while len(frames) > 1:
        frames = [
            reduce(lambda one, other: one.union(other), frames[at : at + 2])
            for at in range(0, len(frames), 2)
        ]
    return frames[0]


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as text, as Spark's readers convert them: ``true``, ``false``, None left out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
