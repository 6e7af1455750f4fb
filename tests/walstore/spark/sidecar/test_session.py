"""What a failed query's text says, as errors with their kind."""

from __future__ import annotations

import pytest

from walstore.errors import CorruptionError, OffsetTrimmedError, WalError
from walstore.spark.sidecar.session import to_error

PYTHON = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [X] Traceback:
  File "read.py", line 53, in read_rows
    raise {error}
{error}
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.SparkException
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


def test_our_errors_keep_their_kind():
    text = "walstore.errors.OffsetTrimmedError: it is gone (requested=1 head=5 tail=9)"
    found = to_error(PYTHON.format(error=text))
    assert isinstance(found, OffsetTrimmedError)
    assert str(found) == "it is gone (requested=1 head=5 tail=9)"
    found = to_error(PYTHON.format(error="walstore.errors.CorruptionError: bad bytes: log/1"))
    assert isinstance(found, CorruptionError)


def test_the_last_of_several_errors_is_what_became_of_it():
    text = "walstore.errors.StorageUnavailableError: first\nwalstore.errors.LogSealedError: last"
    assert str(to_error(text)) == "last"


def test_names_that_are_no_errors():
    assert type(to_error("walstore.errors.annotations: x")) is WalError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x\nModuleNotFoundError: No module named 'walstore'", "workers cannot read logs: no mod"),
        ("Answer from Java side is empty", "Java process has ended"),
        ("Concurrent update to the log. Multiple streaming jobs", "with the same checkpoint"),
        ("[DELTA_CONCURRENT_TRANSACTION] x", "with the same checkpoint"),
        (
            "An error occurred\n: java.lang.IncompatibleClassChangeError: class a.B can not implement c.D\n",
            "a jar was made for another version of Spark than this one: class a.B can not",
        ),
        ("Rename destination parent file:/t not found", "Spark's query failed: Rename destination"),
        (
            "Rename destination file:/table/_checkpoint/metadata already exists.",
            "with the same checkpoint",
        ),
        (
            "[STREAM_FAILED] Multiple streaming queries are concurrently using file:/t/_spark_metadata.",
            "with the same checkpoint",
        ),
        (
            (
                "[STREAM_FAILED] Query [id = 1] terminated with exception: Checkpoint location file:/t"
                " is in an inconsistent state: the metadata file is missing but offset and/or commit logs"
                " contain data."
            ),
            "with the same checkpoint",
        ),
        ("Race while writing batch 0 to the file sink metadata", "with the same checkpoint"),
        ("[CODE] Disk is full.\nmore", "Spark's query failed: [CODE] Disk is full."),
        ("a\nCaused by: java.io.IOException: No space left on device\n\tat x", "No space left"),
        (
            "An error occurred while calling o5.x.\n: org.apache.hadoop.X: No\n\tat y\n",
            "An error occurred",
        ),
        (
            'An error occurred\n: a.b.FileSystemException: No FileSystem for scheme "s3a"\n\tat y',
            'failed: No FileSystem for scheme "s3a"',
        ),
        ("", "nothing"),
    ],
)
def test_others_in_one_line(text, message):
    found = str(to_error(text))
    assert message in found
    assert "\n" not in found
