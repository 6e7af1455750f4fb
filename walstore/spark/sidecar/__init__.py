"""The sidecar: lands a log in a table by Structured Streaming, and keeps a cursor where it is.

:class:`Sidecar` runs it in this process until it is told to stop; ``walstore sidecar`` and
``python -m walstore.spark.sidecar`` are the same at a terminal. See docs/spark_sidecar.md.

Importing this needs neither PySpark nor Java.
"""

from walstore.spark.sidecar.reports import Landed, Observer, Started, Summary
from walstore.spark.sidecar.settings import SidecarSettings, TableFormat

__all__ = ["Landed", "Observer", "SidecarSettings", "Started", "Summary", "TableFormat"]
