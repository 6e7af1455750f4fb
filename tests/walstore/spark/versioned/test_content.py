"""Spark reads what a reader's snapshot has: by its own Parquet reader, and by Python tasks."""

from __future__ import annotations

import pytest

from tests.walstore.spark.versioned.columns import EVERY
from tests.walstore.spark.versioned.random_collections import STEPS, build, counted, expected, run
from walstore.spark import read_collection

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/c"


@pytest.mark.parametrize("steps", [(EVERY,), STEPS], ids=["every", "evolved"])
@pytest.mark.parametrize("kind", ["diff", "upsert"])
@pytest.mark.parametrize("seed", range(2))
def test_it_is_the_snapshot(spark, url, kind, steps, seed):
    for as_of in run(build(url, kind, seed, steps=steps)):
        wanted = expected(url, as_of)
        for path in ("always", "never"):
            found = read_collection(spark, url, as_of, fast_path=path)
            assert counted(found.toArrow()) == wanted
