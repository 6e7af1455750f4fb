"""The fast path: fragments that Spark can open itself are read by its own Parquet reader.

``reading.py`` decides and builds the frame; ``planner.py`` says which fragments are read and checks what they
say of themselves (``kinds.py``, ``footers.py``); ``places.py`` says how the JVM names them; ``jvm.py`` is
all that touches the JVM; ``columns.py`` makes of their columns those of ``format("walstore")``.
"""

from walstore.spark.fast_path.hadoop import FastPathError
from walstore.spark.fast_path.reading import read

__all__ = ["FastPathError", "read"]
