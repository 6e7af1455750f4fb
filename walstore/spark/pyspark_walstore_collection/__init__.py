"""Discovered by Spark, which looks for one ``DefaultSource`` in each top-level package named ``pyspark_*``.

Installed next to ``walstore`` and ``uploader``, so that ``format("walstore.collection")`` needs no
registration.
"""

from walstore.spark.versioned.source import CollectionSource as DefaultSource

__all__ = ["DefaultSource"]
