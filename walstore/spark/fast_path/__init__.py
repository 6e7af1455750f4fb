"""The fast path: Spark's own Parquet reader reads fragments that Spark can open itself.

``reading.py`` decides and builds the frame; ``planner.py`` chooses the fragments and checks their footers;
``hadoop.py`` maps a store to Hadoop's names; only ``jvm.py`` calls the JVM, and converts the fragments'
columns to those of ``format("walstore")``.
"""

from walstore.spark.fast_path.hadoop import FastPathError
from walstore.spark.fast_path.reading import read

__all__ = ["FastPathError", "read"]
