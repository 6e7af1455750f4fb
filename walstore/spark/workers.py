"""Whether a cluster's workers can read logs, asked of themselves before a job starts.

The driver can only look at its own machine (``environment.py``); on a cluster the interpreter of that name
may be missing elsewhere, or lack a package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from walstore.errors import WalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_OTHER_VERSION: Final = "PYTHON_VERSION_MISMATCH"


def require_workers(spark: SparkSession) -> None:
    """Raise WalError if an executor's Python cannot import this package.

    Runs one task for each slot of the cluster: a second or two, and the wait for executors. An executor that
    joins later is not asked.
    """
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    # Made by a function, so that it travels as code: walstore may be just what they cannot import.
    try:
        found = context.parallelize(range(slots), slots).mapPartitions(_make_probe()).collect()
    except Exception as error:
        text = explain_worker(str(error))
        if text is None:
            raise
        raise WalError(text) from None
    problems = sorted({text for text in found if text})
    if problems:
        raise WalError(_advise("; ".join(problems)))


def explain_worker(text: str) -> str | None:
    """Return what an error of Spark's says about the workers' Python and what to do, or None if nothing."""
    program = _NO_PROGRAM.search(text)
    if program is not None:
        return _advise(f"a worker cannot run {program[1]}")
    if _OTHER_VERSION in text:
        return _advise("a worker runs another version of Python than the driver")
    module = _NO_MODULE.search(text)
    if module is not None and module[1].partition(".")[0] in {"walstore", "uploader", "pyarrow"}:
        return _advise(f"no module named {module[1]!r}")
    return None


def _advise(what: str) -> str:
    return (
        f"the cluster's workers cannot read logs: {what}; install walstore[spark] for one interpreter at the"
        " same path on every machine, and name it in PYSPARK_PYTHON before the session starts"
    )


def _make_probe() -> Callable[[Iterable[int]], Iterator[str | None]]:
    def probe(_: Iterable[int]) -> Iterator[str | None]:
        import importlib
        import platform
        import sys

        try:
            for name in ("pyarrow", "tenacity", "walstore.spark.source", "uploader"):
                importlib.import_module(name)
        except ImportError as error:
            yield f"{sys.executable} on {platform.node()}: {error}"
            return
        yield None

    return probe
