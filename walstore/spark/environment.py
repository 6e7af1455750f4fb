"""What Spark needs on the driver and on the workers.

An error names what is missing and how to install it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from walstore import MissingExtraError, WalError
from walstore.core.runtime.extras import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OLDEST_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow", "tenacity")
_ANSWER_SECONDS: Final = 60.0
_PYTHON_SETTING: Final = "spark.pyspark.python"
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_OTHER_VERSION: Final = "PYTHON_VERSION_MISMATCH"
_LOCAL_MASTERS: Final = ("local", "local-cluster")


class FastPathError(WalError):
    """The JVM cannot read this log by itself; ``fast_path="auto"`` reads it with Python instead."""


def problem() -> str | None:
    """Return why Spark cannot run here and what to install, or None if it can."""
    missing = _missing_packages()
    return str(missing) if missing else _java_problem()


def require_packages() -> None:
    """Raise MissingExtraError if a Python package is missing in this interpreter."""
    missing = _missing_packages()
    if missing:
        raise missing


def require() -> None:
    """Raise WalError if Java is missing, MissingExtraError if a Python package is."""
    require_packages()
    found = _java_problem()
    if found:
        raise WalError(found)


def choose_interpreter(spark: SparkSession) -> None:
    """Let the workers of a session on this machine run the interpreter of this process.

    By default PySpark runs the ``python3`` of the path, which is another interpreter if the virtual
    environment is not activated. An interpreter named in PYSPARK_PYTHON or in the setting
    ``spark.pyspark.python`` is kept. On a cluster nothing is changed: this path may not exist there.
    """
    if os.environ.get("PYSPARK_PYTHON"):
        return
    try:
        context = spark.sparkContext
        named = context.getConf().get(_PYTHON_SETTING)
        is_local = (context.master or "").partition("[")[0] in _LOCAL_MASTERS
    except Exception:  # noqa: BLE001 - whatever a session without a context raises
        return
    if named or is_local:
        context.pythonExec = named or sys.executable


def require_interpreter(spark: SparkSession) -> None:
    """Raise WalError if the session's Python workers could not import this package.

    Runs the workers' interpreter if it is not this one. A Spark Connect session does not reveal its
    interpreter and is not checked.
    """
    try:
        named = spark.sparkContext.pythonExec
    except Exception:  # noqa: BLE001 - whatever a session without a context raises
        return
    found = shutil.which(named)
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return
    problem = _import_problem(found) if found else "there is no such program"
    if problem:
        raise WalError(
            f"Spark's workers would run {named!r}, which cannot import walstore ({problem}); set "
            f"PYSPARK_PYTHON={sys.executable} before the session starts"
        )


def _missing_packages() -> MissingExtraError | None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    return missing_extra(", ".join(missing), "spark", "Spark") if missing else None


def _java_problem() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    where = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set"
    advice = (
        f"install Java {OLDEST_JAVA}, for example apt-get install openjdk-17-jre-headless, "
        "or set JAVA_HOME"
    )
    if java is None:
        return f"Spark needs Java {OLDEST_JAVA} or newer and finds none ({where}): {advice}"
    found = _answer([java, "-version"])
    version = re.search(r'version "(?:1\.)?(\d+)', found)
    if version is None:
        return f"{java} does not report its version ({where}): {advice}"
    if int(version[1]) < OLDEST_JAVA:
        return (
            f"Spark needs Java {OLDEST_JAVA} or newer; {java} is {version[1]} ({where}): {advice}"
        )
    return None


def _import_problem(python: str) -> str | None:
    """Return the last line that an interpreter prints if a worker's imports fail, or None."""
    answer = _answer([python, "-c", "import pyarrow, pyspark, walstore.spark.source; print('ok')"])
    lines = answer.strip().splitlines() or ["no answer"]
    return None if lines[-1] == "ok" else lines[-1]


def _answer(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the programs that Spark itself would start
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def require_workers(spark: SparkSession) -> None:
    """Raise WalError if an executor's Python cannot import this package.

    Runs one task for each slot of the cluster, which takes a second or two after the executors are up. An
    executor that joins later is not checked.
    """
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    # A nested function, which is pickled by value: the workers may not be able to import walstore.
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
    """Return what is wrong with the workers' Python, and the remedy, from Spark's error text; else None."""
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
