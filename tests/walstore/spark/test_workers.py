"""What Spark says where its workers cannot read, in words that help. On a cluster: tests/cluster."""

from __future__ import annotations

import pytest

from walstore.spark.environment import explain_worker


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('java.io.IOException: Cannot run program "/x/python3": error=2', "cannot run /x/python3"),
        ("ModuleNotFoundError: No module named 'walstore'", "no module named 'walstore'"),
        ("ModuleNotFoundError: No module named 'uploader.x'", "no module named 'uploader.x'"),
        ("[PYTHON_VERSION_MISMATCH] 3.9 and 3.11", "another version of Python"),
    ],
)
def test_what_is_wrong_and_what_to_do(text, what):
    found = explain_worker(text)
    assert found is not None
    assert what in found
    assert "install walstore[spark] for one interpreter" in found


def test_other_errors_are_not_the_workers():
    assert explain_worker("No module named 'pandas'") is None
    assert explain_worker("org.apache.spark.SparkException: Job aborted") is None
