"""Logs for Spark: ``spark.read.format("walstore").load(location)``.

Where walstore is installed, Spark finds the format by itself (through the package ``pyspark_walstore``),
provided that its Python workers run the same interpreter: set ``PYSPARK_PYTHON`` to ``sys.executable``.
Otherwise :func:`register` adds it to a session, and :func:`local_session` makes a session with it.
:class:`walstore.spark.source.WalstoreSource` lists the options. :func:`read` takes the same options and uses
Spark's own Parquet reader where it can. :func:`read_collection` reads a versioned collection,
:func:`merge_engine` compacts one.

Importing this needs neither PySpark nor Java; :func:`problem` returns what is missing.
"""

from walstore.spark.environment import FastPathError, problem
from walstore.spark.fast_path.reading import read
from walstore.spark.session import local_session, register
from walstore.spark.sink import finish_commits, partition_rows, sweep_staging
from walstore.spark.versioned import merge_engine
from walstore.spark.versioned.content import read_collection

__all__ = [
    "FastPathError",
    "finish_commits",
    "local_session",
    "merge_engine",
    "partition_rows",
    "problem",
    "read",
    "read_collection",
    "register",
    "sweep_staging",
]
