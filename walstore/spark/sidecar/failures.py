"""Finds the cause of a failed query in Spark's error text.

Errors of the source reach the driver as text in the middle of Spark's and Python's tracebacks. The text
contains the error's class, which determines the message and the exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from walstore import WalError, errors
from walstore.spark.environment import explain_worker

_OURS: Final = re.compile(r"^\s*(?:\w+\.)*walstore\.errors\.(\w+): (.+)$", re.MULTILINE)
_CAUSE: Final = re.compile(
    r"^(?:Caused by: |: )?[\w.$]*(?:Exception|Error)(?:: (.*))?$", re.MULTILINE
)
_CONCURRENT: Final = re.compile(
    r"Concurrent update to the log|CONCURRENT_STREAM_LOG_UPDATE|Race while writing batch"
    r"|Multiple streaming queries are concurrently using"
    r"|DELTA_CONCURRENT_TRANSACTION|ConcurrentTransactionException"
    # A file of the checkpoint that two queries created at the same moment.
    r"|Rename destination \S+ already exists"
)
_OTHER_SPARK: Final = re.compile(
    r"IncompatibleClassChangeError|NoSuchMethodError|NoSuchFieldError|AbstractMethodError|NoClassDefFoundError"
    r"|because it is not an interface"
)
_GONE: Final = (
    "Answer from Java side is empty",
    "error while trying to connect to the Java server",
    "Connection refused",
)
_MOST_CHARS: Final = 300


def to_error(text: str) -> WalError:
    """Return the error in a failed query's text: ours with its class, or else Spark's in one line."""
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = getattr(errors, name, WalError)
        if isinstance(kind, type) and issubclass(kind, WalError):
            # Not by the constructor, whose other arguments are not in the text.
            found = kind.__new__(kind, message.strip())
            assert isinstance(found, WalError)
            return found
    workers = explain_worker(text)
    if workers is not None:
        return WalError(workers)
    if any(words in text for words in _GONE):
        return WalError("Spark's Java process has ended; start again, and see --spark-log")
    if _CONCURRENT.search(text):
        return WalError("another query runs with the same checkpoint; one of them had to end")
    said = _say(text)
    if _OTHER_SPARK.search(text):
        return WalError(f"a jar was made for another version of Spark than this one: {said}")
    return WalError(f"Spark's query failed: {said}")


def _say(text: str) -> str:
    """Return Spark's error in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [found.strip() for found in _CAUSE.findall(text) if found.strip()]
    said = (causes or lines or ["nothing"])[-1] if causes else (lines or ["nothing"])[0]
    return said[:_MOST_CHARS]


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise Spark's errors in the block as errors of ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise to_error(str(error)) from None
