"""The manual's pages on Spark: their programs run, and the tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spark_jvm import SparkJvm
from tests.test_docs import run, snippets
from tests.walstore.spark.versions import NO_LIMITS
from walstore.spark.features import HAS_LIMITS
from walstore.spark.options import KNOWN, STREAM_KNOWN
from walstore.spark.rows import spark_schema
from walstore.spark.versioned.options import (
    APPEND_OPTIONS,
    BATCH_OPTIONS,
    SINK_OPTIONS,
    STREAM_OPTIONS,
)

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("spark*.md") if "```python" in path.read_text())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run_in_order(
    page: str, spark_jvm: SparkJvm, spark_directory: Path
) -> None:
    """Each runs on what the ones before left, and prints what the page says, if it says so."""
    if page in {"spark_streaming", "spark_collections"} and not HAS_LIMITS:
        pytest.skip(NO_LIMITS)
    for code, output in snippets((DOCS / f"{page}.md").read_text()):
        with spark_jvm.lend() as environment:
            printed = run(code, spark_directory, timeout_seconds=300, environment=environment)
        if output is not None:
            assert printed == output


def rows(text: str) -> set[str]:
    """Return what the first cells of a table's rows name."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([\w.*]+)`", cell)}


def test_the_table_lists_every_option() -> None:
    page = (DOCS / "spark.md").read_text()
    options = page.partition("### Options")[2].partition("###")[0]
    assert rows(options) == {*KNOWN, "store.*"} - {"path"}


def test_the_page_for_users_of_kafka_names_what_there_is() -> None:
    page = (DOCS / "spark_from_kafka.md").read_text()
    options = page.partition("## Options of a read")[2].partition("\n## ")[0]
    kafkas = {"groupIdPrefix", "kafka.group.id", "kafkaConsumer.pollTimeoutMs", "fetchOffset.*"}
    assert rows(options) - kafkas <= {*KNOWN, *STREAM_KNOWN}


def test_the_tables_list_every_option_of_collections() -> None:
    page = (DOCS / "spark_collections.md").read_text()
    for heading, known in (
        ("As a data source", BATCH_OPTIONS),
        ("Changes as a stream", STREAM_OPTIONS),
        ("Writing", {*APPEND_OPTIONS, *SINK_OPTIONS} - {"checkpointLocation"}),
    ):
        part = page.partition(f"## {heading}")[2].partition("\n## ")[0]
        table = part.partition("| option | default | |")[2].partition("\n\n")[0]
        assert rows(table) == {*known} - {"path"}


def test_the_table_lists_every_column() -> None:
    page = (DOCS / "spark.md").read_text()
    columns = page.partition("### Columns")[2].partition("###")[0]
    assert rows(columns) == set(spark_schema(include_headers=True).fieldNames())
    for field in spark_schema(include_headers=True):
        assert f"| `{field.name}` | `{field.dataType.simpleString()}` |" in columns
