"""What needs an extra says which, and how to install it, where a package of it is missing."""

from __future__ import annotations

import pickle

import pytest

from tests import programs
from walstore import InvalidSettingsError, MissingExtraError
from walstore.core.runtime.extras import extra_of, missing_extra, needs_extra

WITHOUT = """
import sys
package, statement = sys.argv[1:]
sys.modules[package] = None  # importing it fails now, as where it is not installed
try:
    exec(statement, {})
except ImportError as error:
    print(type(error).__name__, error.name, error)
"""

NEEDS = [
    ("pyarrow", "from uploader import CloudTier", "cloud"),
    ("tenacity", "import uploader.stores", "cloud"),
    ("pyarrow", "from walstore.cloud import CloudTier", "cloud"),
    ("pyarrow", "from walstore.cloud.testing import FaultyStore", "cloud"),
    (
        "aioboto3",
        "import asyncio, uploader as u; asyncio.run(u.CloudLog.open('s3://b-b/x').__aenter__())",
        "cloud",
    ),
    ("pyarrow", "import walstore.core.batches.arrow", "cloud"),
    ("pyarrow", "import walstore.arrow", "cloud"),
    (
        "pyarrow",
        "import tempfile, walstore.sync as s\nwith s.open(tempfile.mkdtemp()) as l: l.to_arrow()",
        "cloud",
    ),
    ("typer", "import walstore.cli", "cli"),
    ("rich", "from walstore.cli.app import run", "cli"),
    ("pyspark", "import walstore.spark as s; s.local_session()", "spark"),
    ("pyspark", "import walstore.spark as s; s.register(None)", "spark"),
    ("pyspark", "import walstore.spark as s; s.read(None, '/log')", "spark"),
    ("pyarrow", "import walstore.spark as s; s.partition_rows(None, 1)", "spark"),
    ("pyspark", "import walstore.spark.source", "spark"),
    ("prometheus_client", "from walstore.metrics import PrometheusMetrics as P; P()", "metrics"),
    ("prometheus_client", "import walstore.spark.sidecar.metrics", "metrics"),
]


@pytest.mark.slow
def test_what_needs_an_extra_names_it() -> None:
    for package, statement, extra in NEEDS:
        done = programs.run(WITHOUT, package, statement)
        assert done.stderr == "", statement
        assert done.stdout.startswith(f"MissingExtraError {package} "), (statement, done.stdout)
        assert f"needs the extra '{extra}' ({package} cannot be imported by" in done.stdout
        assert done.stdout.endswith(f'pip install "walstore[{extra}]"\n')


def test_an_error_of_two_families() -> None:
    """Programs catch it as an import error, or as an error of walstore's."""
    error = missing_extra("pyarrow", "cloud", "reading")
    assert isinstance(error, ImportError)
    assert isinstance(error, InvalidSettingsError)
    assert (error.name, error.extra, error.outcome, error.retriable) == (
        "pyarrow",
        "cloud",
        "not_written",
        False,
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.name, copy.extra) == (
        MissingExtraError,
        str(error),
        "pyarrow",
        "cloud",
    )


def test_a_module_of_ours_that_is_missing_is_a_mistake_of_ours() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match="nowhere") as caught,
        needs_extra("cloud"),
    ):
        import walstore.nowhere  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtraError)


def test_the_extra_of_a_package() -> None:
    assert extra_of(ModuleNotFoundError("x", name="pyarrow.parquet")) == "cloud"
    assert extra_of(ModuleNotFoundError("x", name="something")) is None
    with pytest.raises(MissingExtraError, match=r"walstore\[cloud\]"), needs_extra("cloud"):
        raise ModuleNotFoundError("x", name="aiohttp.client")  # what a package of an extra needs
