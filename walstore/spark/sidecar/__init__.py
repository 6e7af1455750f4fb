"""The sidecar: lands a log in a table by Structured Streaming, and moves a cursor behind it.

``sidecar.Sidecar`` runs it in this process until it is stopped; ``walstore sidecar`` and
``python -m walstore.spark.sidecar`` run it from a terminal. See docs/spark_sidecar.md.

Importing this needs neither PySpark nor Java.
"""

from walstore.spark.sidecar.landing import Landed, Observer, Started, Summary
from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat

__all__ = ["Landed", "Observer", "SidecarSettings", "Started", "Summary", "TableFormat"]
