"""Discovered by Spark, which looks for ``DefaultSource`` in top-level packages named ``pyspark_*``.

Installed next to ``walstore`` and ``uploader``, so that ``format("walstore")`` needs no registration.
"""

from walstore.spark.source import WalstoreSource as DefaultSource

__all__ = ["DefaultSource"]
