"""Found by every Python that tests start: Spark's processes import PySpark from where pip installed it.

Spark puts an archive with the same modules in front of it. Python compiles what it imports from there anew in
each process, which takes half a second of processor time; each source and each stream has some of its own.
"""

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if "/site-packages/pyspark/python/lib/" not in path]
