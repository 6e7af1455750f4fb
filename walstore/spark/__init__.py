"""Logs for Spark: ``spark.read.format("walstore").load(location)``.

Where walstore is installed, Spark finds the format by itself (through the package ``pyspark_walstore``),
provided that its Python workers run the same interpreter: set ``PYSPARK_PYTHON`` to ``sys.executable``.
:func:`register` makes it known to a session otherwise, and :func:`local_session` makes a session.
The options are listed at :class:`walstore.spark.source.WalstoreSource`.

Importing this needs neither PySpark nor Java; :func:`problem` says what is missing.
"""

from walstore.spark.environment import problem
from walstore.spark.session import local_session, register

__all__ = ["local_session", "problem", "register"]
