"""What Spark needs of this machine, and what to do where it is missing."""

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
from walstore.runtime.extras import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OLDEST_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow", "tenacity")
_ANSWER_SECONDS: Final = 60.0
_PYTHON_SETTING: Final = "spark.pyspark.python"
_LOCAL_MASTERS: Final = ("local", "local-cluster")


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

    PySpark would look for ``python3`` on the path, which in a virtual environment that is not activated is
    another one. Whoever named an interpreter, in PYSPARK_PYTHON or the setting ``spark.pyspark.python``,
    gets that one. On a cluster nothing is changed: its machines need not have a program of this name.
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

    Asks the workers' interpreter if it is another one than this. A session that reaches Spark over
    the network (Spark Connect) does not say which it is, and is not checked.
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
        return f"{java} does not tell its version ({where}): {advice}"
    if int(version[1]) < OLDEST_JAVA:
        return (
            f"Spark needs Java {OLDEST_JAVA} or newer; {java} is {version[1]} ({where}): {advice}"
        )
    return None


def _import_problem(python: str) -> str | None:
    """Return the last line of what an interpreter says to the imports of a worker, or None."""
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
