"""The examples run as they are and print what they should; the page names them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.cluster import kill_session
from tests.walstore.spark.versions import NO_LIMITS
from walstore.spark.features import HAS_LIMITS

if TYPE_CHECKING:
    from tests.spark_jvm import SparkJvm

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "aggregate_a_log": """\
{"country": "de", "orders": 334, "cents": 34403}
{"country": "fr", "orders": 333, "cents": 34295}
{"country": "nl", "orders": 333, "cents": 34299}
""",
    "stream_into_a_table": """\
the table has 500 rows of 500 records
the table has 800 rows of 800 records
""",
    "join_two_logs": """\
paid after 5 min 33
paid after 6 min 33
not paid 34
""",
    "backfill_then_follow": "backfilled up to 2001, 3000 rows of 3000 records in all\n",
    "daily_aggregate": """\
batch 0:
  2026-01-01 1045
  2026-01-02 560
batch 1:
  2026-01-01 1045
  2026-01-02 1145
  2026-01-03 1245
""",
    "order_book": """\
4 changes applied
2 changes applied
offset 2: best bid 99 x 5, best ask 101 x 4
offset 3: best bid 100 x 2, best ask 101 x 4
offset 5: best bid 99 x 8, best ask 101 x 4
offset 6: best bid 99 x 8, best ask 100 x 1
change at 5: bid 100, gone
change at 6: ask 100, size 1
the log could begin at 7
""",
    "store_and_forward": """\
100 in the outbox, and no server
100 in the log, 0 of them twice
200 in the outbox, and the server is gone
200 in the log, 0 of them twice
""",
    "web_workers": """\
acknowledged 300 by several workers: True
missing 0
""",
    "background_jobs": "missing 0\n",
}
WITHOUT_SPARK = {"order_book", "store_and_forward", "web_workers", "background_jobs"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in PRINTED if name in WITHOUT_SPARK])
def test_an_example_prints_what_it_should(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, {})


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in PRINTED if name not in WITHOUT_SPARK])
def test_an_example_with_spark_prints_what_it_should(
    name: str, spark_jvm: SparkJvm, spark_directory: Path
) -> None:
    if name == "stream_into_a_table" and not HAS_LIMITS:
        pytest.skip(NO_LIMITS)
    with spark_jvm.lend() as environment:
        check(name, spark_directory, environment)


def check(name: str, directory: Path, environment: Mapping[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=280)
    finally:
        kill_session(process.pid)
    assert process.returncode == 0, err
    assert out == PRINTED[name]
    assert "Traceback" not in err


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert re.findall(r"`python examples/(\w+)\.py`", page) == list(PRINTED)
    assert {path.stem for path in EXAMPLES.glob("*.py")} == PRINTED.keys()
